"""The kind `warp`: what `codec` and `search` do, on disk.

    centroids.npy, cutoffs.npy, levels.npy   the codec
    codes.npy, own.npy, offsets.npy          tokens, document by document
    blocks.npy                               the document of every 64th token
    tokens.npy, lists.npy                    tokens by centroid

A token takes D * bits / 8 bytes for its code, 2 or 4 for its centroid and 4 for its place in a list. A segment of too
few tokens to learn from is a `multivector` one, exact; so is its search.

Shapes: T tokens, N documents with content, D dimensions, Q queries, q tokens of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numba import njit

from sourcier.config import setting
from sourcier.encodings import TokenVectors
from sourcier.indexes.arrays import ArrayWriter, map_array, new_mapped_array, save_array
from sourcier.indexes.checks import as_float32
from sourcier.indexes.kind import Chunks, Segment
from sourcier.indexes.manifest import Written
from sourcier.indexes.multivector import MultiVectorSegment
from sourcier.indexes.ranking import Ranked, in_order
from sourcier.indexes.warp import search as searching
from sourcier.indexes.warp.codec import Codec, centroid_count, encode, train
from sourcier.ranges import check_ranges
from sourcier.types import SourcierError

_CODES, _OWN, _OFFSETS, _BLOCKS = "codes.npy", "own.npy", "offsets.npy", "blocks.npy"
_TOKENS, _LISTS = "tokens.npy", "lists.npy"
#: Tokens of the sample for each centroid: enough for k-means, few enough to be quick.
_SAMPLE = 32
#: Tokens that a query token looks at, where lists are short: enough for the documents behind them to be many.
_PROBED = 1000
#: Fewer tokens are kept as they are.
_LEAST = 4096
#: Tokens are counted in 32 bits.
_MOST = 2**31 - 1
#: Documents that compaction moves at a time.
_CHUNK = 2**12


@dataclass(frozen=True, kw_only=True)
class WarpBuild:
    """How tokens are coded."""

    bits: int = setting(2, "bits for each dimension of a token: 1, 2 or 4", among=(1, 2, 4))
    centroids: int | None = setting(
        None, "how many; by default the power of two at or below 8 * sqrt(tokens)", at_least=1
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class WarpSearch:
    """What a search looks at: more of either finds more and takes longer."""

    #: Lists for each query token; by default as many as hold `_PROBED` tokens on average, and at least 4.
    probes: int | None = setting(None, "lists that each query token looks at", at_least=1)
    #: Documents that are scored with all tokens; at least twice as many as hits are asked for.
    candidates: int = setting(128, "documents that are scored with all tokens", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class TokenCodes:
    """Documents as the codec of a segment has them: what compaction moves. Rows as in `TokenVectors`."""

    offsets: np.ndarray
    own: np.ndarray
    codes: np.ndarray


class WarpSegment(Segment):
    """Approximate MaxSim with all documents: the best of those that look best."""

    kind: ClassVar[str] = "warp"
    Build: ClassVar[type] = WarpBuild
    Search: ClassVar[type] = WarpSearch

    @classmethod
    def accept(cls, ids: Sequence[str], encoding: Any, dimensions: int | None) -> np.ndarray:
        return MultiVectorSegment.accept(ids, encoding, dimensions)

    @classmethod
    def write(cls, folder: Path, chunks: Chunks, build: WarpBuild, like: Self | None = None) -> Written:
        codec = like.codec if like is not None else None
        if codec is None:
            sample = _sample(chunks, build)
            if len(sample) < _LEAST:
                written = MultiVectorSegment.write(folder, chunks, MultiVectorSegment.Build())
                return Written(
                    dimensions=written.dimensions,
                    counts=written.counts,
                    settings={"form": "exact", **written.settings},
                )
            codec = train(sample, _centroids(sample, build), build.bits)
        codec.save(folder)
        tokens = _write_tokens(folder, chunks, codec)
        _write_lists(folder, len(codec.centroids))
        return Written(
            dimensions=codec.centroids.shape[1],
            counts={"tokens": tokens, "centroids": len(codec.centroids)},
            settings={"form": "codes", "unit": codec.unit},
        )

    def __init__(self, folder: Path, written: Written) -> None:
        self._exact: MultiVectorSegment | None = None
        #: None where the segment is exact.
        self.codec: Codec | None = None
        self._dimensions = written.dimensions
        if written.settings["form"] == "exact":
            self._exact = MultiVectorSegment(folder, written)
            return
        self.codec = Codec.open(folder, unit=bool(written.settings["unit"]))
        self.lists = searching.Lists(
            *(map_array(folder / name) for name in (_CODES, _OWN, _OFFSETS, _BLOCKS, _TOKENS, _LISTS))
        )

    def __len__(self) -> int:
        return len(self._exact) if self._exact is not None else len(self.lists.offsets) - 1

    def checked(self, queries: Any) -> TokenVectors:
        return MultiVectorSegment.checked_queries(self.kind, queries, self._dimensions)

    def silent(self, queries: TokenVectors) -> np.ndarray:
        return np.asarray(np.diff(queries.offsets) == 0)

    def best(
        self, queries: TokenVectors, depth: int, allowed: np.ndarray | None, search: WarpSearch
    ) -> Ranked:
        if self._exact is not None:
            return self._exact.best(queries, depth, allowed, MultiVectorSegment.Search())
        rows = np.full((len(queries), depth), -1, dtype=np.int64)
        scores = np.full((len(queries), depth), -np.inf, dtype=np.float32)
        for place in np.flatnonzero(~self.silent(queries)):
            found = self._best_of_query(queries[place : place + 1].vectors, depth, allowed, search)
            rows[place, : found.rows.shape[1]] = found.rows[0]
            scores[place, : found.rows.shape[1]] = found.scores[0]
        return Ranked(rows, scores)

    def chunks(self, keep: np.ndarray) -> Iterator[Any]:
        if self._exact is not None:
            yield from self._exact.chunks(keep)
            return
        for start in range(0, len(keep), _CHUNK):
            yield self._codes_of(start + np.flatnonzero(keep[start : start + _CHUNK]))

    def _best_of_query(
        self, query: np.ndarray, depth: int, allowed: np.ndarray | None, search: WarpSearch
    ) -> Ranked:
        """Probes more lists until they hold as many documents as are asked for."""
        assert self.codec is not None
        wanted, probes = max(search.candidates, 2 * depth), search.probes or self._usual_probes()
        while True:
            found = searching.candidates(query, self.codec, self.lists, probes, wanted, allowed)
            if len(found) >= depth or probes >= len(self.codec.centroids):
                break
            probes *= 4
        scores = searching.exact_scores(query, self.codec, self.lists, found)
        ranked = in_order(found[None], scores[None])
        return Ranked(ranked.rows[:, :depth], ranked.scores[:, :depth])

    def _usual_probes(self) -> int:
        return max(4, -(-_PROBED * (len(self.lists.list_offsets) - 1) // max(1, len(self.lists.tokens))))

    def _codes_of(self, documents: np.ndarray) -> TokenCodes:
        offsets, tokens = searching.tokens_of(self.lists.offsets, documents)
        return TokenCodes(offsets, self.lists.own[tokens], self.lists.codes[tokens])


def _sample(chunks: Chunks, build: WarpBuild) -> np.ndarray:
    """Tokens from all over the collection to learn from, at most so many that memory allows. [S, D]

    Codes of other segments are left out; where a codec is known, none is learned.
    """
    total = sum(len(chunk.vectors) for chunk in chunks)
    wanted = min(total, _SAMPLE * (build.centroids or centroid_count(max(total, 1))))
    random = np.random.default_rng(0)
    parts, before, taken = [np.empty((0, 0), dtype=np.float32)], 0, 0
    for chunk in chunks:
        before += len(chunk.vectors)
        # So many that the share of all that was seen is the share of the sample that was taken.
        due = round(wanted * before / total) - taken if total else 0
        places = np.sort(random.choice(len(chunk.vectors), size=due, replace=False))
        parts.append(as_float32(chunk.vectors[places]))
        taken += due
    return np.concatenate(parts[1:]) if len(parts) > 1 else parts[0]


def _centroids(sample: np.ndarray, build: WarpBuild) -> int:
    """How many centroids to learn: never more than there are tokens to learn from."""
    return min(len(sample), build.centroids or max(1, len(sample) // _SAMPLE))


def _write_tokens(folder: Path, chunks: Chunks, codec: Codec) -> int:
    """Code all tokens, chunk by chunk; gives how many there are."""
    narrow = np.uint16 if len(codec.centroids) <= 2**16 else np.uint32
    count = 0
    with (
        closing(ArrayWriter(folder / _CODES, np.uint8, (codec.code_bytes,))) as codes,
        closing(ArrayWriter(folder / _OWN, narrow)) as owners,
        closing(ArrayWriter(folder / _OFFSETS, np.int64)) as offsets,
    ):
        offsets.append(np.zeros(1, dtype=np.int64))
        for chunk in chunks:
            if isinstance(chunk, TokenCodes):
                own, coded = chunk.own, chunk.codes
            else:
                own, coded = encode(codec, as_float32(chunk.vectors))
            owners.append(own)
            codes.append(coded)
            offsets.append(count + chunk.offsets[1:])
            count += len(own)
            if count > _MOST:
                raise SourcierError(
                    f"a segment of kind 'warp' holds at most {_MOST:,} tokens: split the corpus"
                )
    return count


def _write_lists(folder: Path, centroids: int) -> None:
    """Sort the tokens by centroid, through maps."""
    own, offsets = map_array(folder / _OWN), map_array(folder / _OFFSETS)
    counts = np.zeros(centroids, dtype=np.int64)
    for start in range(0, len(own), 2**20):
        counts += np.bincount(own[start : start + 2**20], minlength=centroids)
    lists = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    save_array(folder / _LISTS, lists)
    _place(own, lists[:-1].copy(), new_mapped_array(folder / _TOKENS, np.int32, (len(own),)))
    firsts = np.arange(0, len(own), searching.BLOCK)
    save_array(folder / _BLOCKS, (np.searchsorted(offsets, firsts, side="right") - 1).astype(np.int32))


@njit(cache=True, nogil=True)
def _place(own: np.ndarray, free: np.ndarray, tokens: np.ndarray) -> None:
    """Put each token into the list of its centroid; `free` [C] moves along."""
    for token in range(len(own)):
        place = free[own[token]]
        free[own[token]] = place + 1
        tokens[place] = token
