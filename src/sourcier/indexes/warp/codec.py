"""A token vector as its nearest centroid and a few bits for each dimension of what is left: train, encode, decode.

(Santhanam et al. 2022, "PLAID", section 3; the residual's levels are not the quantiles of ColBERTv2 but those of the
least squared error in each dimension, which is a fifth smaller at 2 bits.)

Shapes: T tokens, C centroids, D dimensions, L = 2 ** bits levels, B = D * bits / 8 bytes of a code, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import faiss
import numpy as np
from numba import njit

from sourcier.indexes.arrays import map_array, save_array
from sourcier.indexes.forks import survive_forks

#: Rounds of k-means: more of them move the centroids hardly any more.
_ROUNDS = 5
#: Products of tokens with centroids that are held at a time (16 MB).
_TILE_PRODUCTS = 2**22
#: How far the square of a length of 1 can be from it: what a model in half precision gives.
_UNIT = 1e-2
#: Residuals that the levels are learned from, and how often they are moved: after that they hardly move any more.
_LEVEL_SAMPLE, _LEVEL_ROUNDS = 2**15, 20

_CENTROIDS, _CUTOFFS, _LEVELS = "centroids.npy", "cutoffs.npy", "levels.npy"


@dataclass(frozen=True)
class Codec:
    """What is learned from a sample of tokens.

    `centroids` [C, D] float32 of values that float16 can hold; `cutoffs` [D, L - 1] float32, between which the levels
    lie; `levels` [D, L] float32: what stands for a residual between two cutoffs. `unit`: tokens have length 1, and so
    have those that are decoded for a score.
    """

    centroids: np.ndarray
    cutoffs: np.ndarray
    levels: np.ndarray
    unit: bool

    @cached_property
    def values(self) -> np.ndarray:
        """The residuals that each value of each byte of a code stands for. [B, 256, dimensions of a byte]"""
        return _values(self.levels, self.bits, self.code_bytes)

    @cached_property
    def padded(self) -> np.ndarray:
        """The centroids with zeros where the last byte of a code stands for more dimensions than there are."""
        width = self.code_bytes * 8 // self.bits
        return np.pad(self.centroids, ((0, 0), (0, width - self.centroids.shape[1])))

    @property
    def bits(self) -> int:
        return int(self.levels.shape[1]).bit_length() - 1

    @property
    def code_bytes(self) -> int:
        """B"""
        return -(-self.centroids.shape[1] * self.bits // 8)

    def save(self, folder: Path) -> None:
        save_array(folder / _CENTROIDS, self.centroids.astype(np.float16))
        save_array(folder / _CUTOFFS, self.cutoffs)
        save_array(folder / _LEVELS, self.levels)

    @classmethod
    def open(cls, folder: Path, *, unit: bool) -> Codec:
        return cls(
            map_array(folder / _CENTROIDS).astype(np.float32),
            np.array(map_array(folder / _CUTOFFS)),
            np.array(map_array(folder / _LEVELS)),
            unit,
        )


def centroid_count(tokens: int) -> int:
    """How many centroids suit a number of tokens: the power of two at or below 8 * sqrt(tokens)."""
    return 1 << (max(1, int(8 * tokens**0.5)).bit_length() - 1)


def train(sample: np.ndarray, centroids: int, bits: int) -> Codec:
    """A codec for tokens like those of the sample [S, D], S >= centroids; the same for the same sample."""
    survive_forks()
    kmeans = faiss.Kmeans(
        sample.shape[1],
        centroids,
        niter=_ROUNDS,
        seed=0,
        max_points_per_centroid=2**31 - 1,
        min_points_per_centroid=1,
    )
    kmeans.train(sample)
    # Rounded to what is stored, so that codes are made with the centroids that they are read with.
    found = kmeans.centroids.astype(np.float16).astype(np.float32)
    some = sample[:: max(1, len(sample) // _LEVEL_SAMPLE)]
    residuals = some - found[nearest(some, found)]
    levels = np.stack([_least_squares(column, 2**bits) for column in residuals.T]).astype(np.float32)
    unit = np.allclose(np.einsum("td,td->t", some, some), 1, atol=_UNIT)
    return Codec(found, _between(levels), levels, unit)


def nearest(tokens: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The centroid at the least distance from each token. [T] int32"""
    found = np.empty(len(tokens), dtype=np.int32)
    half = (centroids * centroids).sum(axis=1) / 2
    width = max(1, _TILE_PRODUCTS // len(centroids))
    for start in range(0, len(tokens), width):
        products = tokens[start : start + width] @ centroids.T
        products -= half
        found[start : start + width] = products.argmax(axis=1)
    return found


def encode(codec: Codec, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centroid [T] int32 and the code [T, B] uint8 of each token."""
    own = nearest(tokens, codec.centroids)
    return own, _pack(tokens, own, codec.centroids, codec.cutoffs, codec.bits, codec.code_bytes)


def decode(codec: Codec, own: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The vectors that centroids [T] and codes [T, B] stand for. [T, D] float32"""
    tokens = np.empty((len(own), codec.padded.shape[1]), dtype=np.float32)
    _unpack(own, codes, codec.padded, codec.values.reshape(-1), codec.values.shape[2], tokens)
    return tokens[:, : codec.centroids.shape[1]]


def _least_squares(values: np.ndarray, count: int) -> np.ndarray:
    """The `count` levels that stand for values [S] with the least squared error, rising (Lloyd 1982, Method I)."""
    # Groups of equal size to begin with.
    levels = np.quantile(values, (np.arange(count) + 0.5) / count)
    for _ in range(_LEVEL_ROUNDS):
        level = np.searchsorted(_between(levels), values, side="right")
        counts = np.bincount(level, minlength=count)
        sums = np.bincount(level, weights=values, minlength=count)
        # A level that nothing is nearest to stays: it stands between its neighbours as before.
        levels = np.where(counts > 0, sums / np.maximum(counts, 1), levels)
    return levels


def _between(levels: np.ndarray) -> np.ndarray:
    """The middle between each two levels [..., L]: what lies above it belongs to the upper one. [..., L - 1]"""
    return np.ascontiguousarray((levels[..., 1:] + levels[..., :-1]) / 2)


@njit(cache=True, nogil=True)
def _pack(
    tokens: np.ndarray, own: np.ndarray, centroids: np.ndarray, cutoffs: np.ndarray, bits: int, width: int
) -> np.ndarray:
    codes = np.zeros((len(tokens), width), dtype=np.uint8)
    each = 8 // bits
    for token in range(len(tokens)):
        for dimension in range(tokens.shape[1]):
            residual = tokens[token, dimension] - centroids[own[token], dimension]
            level = 0
            for cutoff in range(cutoffs.shape[1]):
                level += residual >= cutoffs[dimension, cutoff]
            codes[token, dimension // each] |= np.uint8(level << (bits * (dimension % each)))
    return codes


@njit(cache=True, nogil=True)
def _unpack(
    own: np.ndarray,
    codes: np.ndarray,
    centroids: np.ndarray,
    values: np.ndarray,
    each: int,
    tokens: np.ndarray,
) -> None:
    """Fill `tokens` [T, B * each]; `values`: flat, `each` of them for each value of each byte."""
    # Views of rows, a bound that is a minimum, or memory of numba's own make this several times as slow.
    for token in range(len(own)):
        centroid = own[token]
        for byte in range(codes.shape[1]):
            first, value = byte * each, (byte * 256 + codes[token, byte]) * each
            for place in range(each):
                tokens[token, first + place] = centroids[centroid, first + place] + values[value + place]


def _values(levels: np.ndarray, bits: int, width: int) -> np.ndarray:
    """The residuals that each value of each byte of a code stands for. [B, 256, 8 / bits]"""
    each = 8 // bits
    padded = np.zeros((width * each, levels.shape[1]), dtype=np.float32)
    padded[: len(levels)] = levels
    level = (np.arange(256)[:, None] >> (bits * np.arange(each))) & ((1 << bits) - 1)  # [256, each]
    dimension = np.arange(width * each).reshape(width, 1, each)
    return np.ascontiguousarray(padded[dimension, level[None]])
