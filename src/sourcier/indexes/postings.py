"""Inverted lists on disk: for each term the documents that hold it, each with a vector (of length 1 for a weight).

    postings.offsets.npy    [V + 1] int64: the postings of term v are `offsets[v]:offsets[v + 1]`
    postings.documents.npy  [P] int32, rising in a list
    postings.vectors.npy    [P, D] float32

They are inverted in two passes. Documents come term by term into temporary files, while the postings of each term
are counted; then each posting is put at its place. All arrays are mapped: memory is bounded by the chunk of documents.

Shapes: N documents with content, V terms, P postings, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numba import njit

from sourcier.encodings import TermVectors
from sourcier.indexes.arrays import ArrayWriter, map_array, new_mapped_array, save_array

_OFFSETS, _DOCUMENTS, _VECTORS = "postings.offsets.npy", "postings.documents.npy", "postings.vectors.npy"
_FORWARD = "forward.{}.npy"
#: Postings that are moved at a time.
_CHUNK = 2**18


class PostingsWriter:
    """Collects postings document by document, and inverts them at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._terms = ArrayWriter(self._forward("terms"), np.int32)
        self._documents = ArrayWriter(self._forward("documents"), np.int32)
        self._vectors: ArrayWriter | None = None
        self._counts = np.zeros(0, dtype=np.int64)
        self._rows = 0

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def add(self, offsets: np.ndarray, terms: np.ndarray, vectors: np.ndarray) -> None:
        """Append documents; `terms` [T] and `vectors` [T, D] of document i are `offsets[i]:offsets[i + 1]`."""
        rows = np.arange(self._rows, self._rows + len(offsets) - 1, dtype=np.int32)
        self._rows += len(rows)
        if not len(terms):
            return
        if self._vectors is None:
            self._vectors = ArrayWriter(self._forward("vectors"), np.float32, vectors.shape[1:])
        self._terms.append(terms)
        self._documents.append(np.repeat(rows, np.diff(offsets)))
        self._vectors.append(vectors)
        counts = np.bincount(terms, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def finish(self, dimensions: int) -> None:
        """Write the inverted lists and remove the temporary files."""
        self.close()
        offsets = np.concatenate([[0], np.cumsum(self._counts)]).astype(np.int64)
        save_array(self._folder / _OFFSETS, offsets)
        total = int(offsets[-1])
        documents = new_mapped_array(self._folder / _DOCUMENTS, np.int32, (total,))
        vectors = new_mapped_array(self._folder / _VECTORS, np.float32, (total, dimensions))
        if total:
            self._invert(offsets[:-1].copy(), documents, vectors)
        for name in ("terms", "documents", "vectors"):
            self._forward(name).unlink(missing_ok=True)

    def close(self) -> None:
        for array in (self._terms, self._documents, self._vectors):
            if array is not None:
                array.close()

    def _invert(self, free: np.ndarray, documents: np.ndarray, vectors: np.ndarray) -> None:
        forward = [map_array(self._forward(name)) for name in ("terms", "documents", "vectors")]
        for start in range(0, len(documents), _CHUNK):
            terms, rows, values = (array[start : start + _CHUNK] for array in forward)
            _place(terms, rows, values, free, documents, vectors)

    def _forward(self, name: str) -> Path:
        return self._folder / _FORWARD.format(name)


class Postings:
    """The inverted lists of a committed version, mapped."""

    def __init__(self, folder: Path) -> None:
        self.offsets = map_array(folder / _OFFSETS)
        self.documents = map_array(folder / _DOCUMENTS)
        self.vectors = map_array(folder / _VECTORS)

    @property
    def terms(self) -> int:
        """The number behind the largest term that a document holds."""
        return len(self.offsets) - 1

    def scores(self, terms: np.ndarray, vectors: np.ndarray, documents: int) -> np.ndarray:
        """One query against all documents: dot products of the vectors of common terms, summed. [N] float32"""
        return _scores(terms, vectors, self.offsets, self.documents, self.vectors, documents)

    def chunks(self, keep: np.ndarray) -> Iterator[TermVectors]:
        """The documents of `keep` [N] bool as they came, some at a time."""
        width = max(1, len(keep) * _CHUNK // max(len(self.documents), 1))
        for start in range(0, len(keep), width):
            yield self._forward(start, keep[start : start + width])

    def _forward(self, first: int, keep: np.ndarray) -> TermVectors:
        """The documents of `keep` among those from `first` on."""
        places, terms = _places(self.offsets, self.documents, first, first + len(keep))
        rows = self.documents[places] - first
        kept = keep[rows]
        places, terms, rows = places[kept], terms[kept], rows[kept]
        order = np.argsort(rows, kind="stable")
        lengths = np.bincount(rows, minlength=len(keep))[keep]
        return TermVectors(
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            terms[order],
            self.vectors[places[order]],
        )


@njit(cache=True, nogil=True)
def _place(
    terms: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    free: np.ndarray,
    documents: np.ndarray,
    vectors: np.ndarray,
) -> None:
    """Put postings that come in the order of documents into the lists of their terms; `free` [V] moves along."""
    for entry in range(len(terms)):
        place = free[terms[entry]]
        free[terms[entry]] = place + 1
        documents[place] = rows[entry]
        vectors[place] = values[entry]


@njit(cache=True, nogil=True)
def _places(
    offsets: np.ndarray, documents: np.ndarray, first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where the postings of documents `first` to `last` stand, list by list, and their terms. [P] each"""
    places, found = np.empty(len(documents), dtype=np.int64), 0
    terms = np.empty(len(documents), dtype=np.int32)
    for term in range(len(offsets) - 1):
        start, stop = offsets[term], offsets[term + 1]
        place = start + np.searchsorted(documents[start:stop], first)
        while place < stop and documents[place] < last:
            places[found], terms[found] = place, term
            found += 1
            place += 1
    return places[:found], terms[:found]


# Terms of a sum may be taken in another order, which lets it run on vectors; it is the same order for every posting.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _scores(
    terms: np.ndarray,
    queries: np.ndarray,
    offsets: np.ndarray,
    documents: np.ndarray,
    vectors: np.ndarray,
    count: int,
) -> np.ndarray:
    scores = np.zeros(count, dtype=np.float32)
    for own in range(len(terms)):
        term = terms[own]
        if term + 1 >= len(offsets):
            continue  # no document holds a term beyond the last list
        for place in range(offsets[term], offsets[term + 1]):
            product = np.float32(0.0)
            for dimension in range(vectors.shape[1]):
                product += queries[own, dimension] * vectors[place, dimension]
            scores[documents[place]] += product
    return scores
