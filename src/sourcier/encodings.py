"""What an encoder gives to an index: numpy arrays, one class a family, without padding.

A `Representation` (in `sourcier.models.representations`) is the same thing while it is being trained: torch tensors,
padded, with gradients. Its `.encoding()` gives one of these.

Shapes: N texts, D dimensions, V terms of the vocabulary, T tokens or active terms of all texts together.
Row i of a ragged encoding is `offsets[i]:offsets[i + 1]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar, Union

import numpy as np

Ragged = TypeVar("Ragged", bound="_Ragged")


@dataclass(slots=True)
class DenseVectors:
    """One vector a text. `vectors` [N, D] float32."""

    vectors: np.ndarray

    @property
    def comparable(self) -> np.ndarray:
        """The vectors whose dot products are the scores. [N, D]"""
        return self.vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice) -> DenseVectors:
        return type(self)(self.vectors[rows])

    def take(self, rows: np.ndarray) -> DenseVectors:
        """The given rows, in the given order."""
        return type(self)(self.vectors[rows])

    @classmethod
    def concatenate(cls, parts: Sequence[DenseVectors]) -> DenseVectors:
        return cls(np.concatenate([part.vectors for part in parts]))


class CosineVectors(DenseVectors):
    """One vector a text, of any length: only the angle between two of them counts."""

    __slots__ = ()

    @property
    def comparable(self) -> np.ndarray:
        norms = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return self.vectors / np.maximum(norms, np.finfo(np.float32).tiny)


class _Ragged:
    """Rows of unequal length: `offsets` [N + 1] int64, and arrays whose first axis is T."""

    __slots__ = ()
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self: Ragged, rows: slice) -> Ragged:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("a ragged encoding is sliced with step 1")
        stop = max(start, stop)
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        return type(
            self
        )(  # type: ignore[call-arg]
            offsets=self.offsets[start : stop + 1] - first,
            **{name: getattr(self, name)[first:last] for name in self._flat_names()},
        )

    def take(self: Ragged, rows: np.ndarray) -> Ragged:
        """The given rows, in the given order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Entry j of new row i lies j behind the start of the old row: at (old start - new start) + new place.
        places = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        flat = {name: getattr(self, name)[places] for name in self._flat_names()}
        return type(self)(offsets=offsets, **flat)  # type: ignore[call-arg]

    @classmethod
    def concatenate(cls: type[Ragged], parts: Sequence[Ragged]) -> Ragged:
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(  # type: ignore[call-arg]
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in cls._flat_names()},
        )

    @classmethod
    def _flat_names(cls) -> list[str]:
        return [item.name for item in fields(cls) if item.name != "offsets"]  # type: ignore[arg-type]


@dataclass(slots=True)
class TermWeights(_Ragged):
    """Weights of the active terms of a text (SPLADE). `terms` [T] int32, rising in a row; `weights` [T] float32 > 0."""

    offsets: np.ndarray
    terms: np.ndarray
    weights: np.ndarray


@dataclass(slots=True)
class TermVectors(_Ragged):
    """A vector for each active term (SparseEmbed). `terms` [T] int32, rising in a row; `vectors` [T, D] float32."""

    offsets: np.ndarray
    terms: np.ndarray
    vectors: np.ndarray


@dataclass(slots=True)
class TokenVectors(_Ragged):
    """A vector for each token (ColBERT). `vectors` [T, D] float32."""

    offsets: np.ndarray
    vectors: np.ndarray


Encoding = Union[DenseVectors, TermWeights, TermVectors, TokenVectors]
