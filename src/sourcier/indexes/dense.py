"""Exact search over one vector a document: every query against every document, in tiles of matrix products.

Shapes: Q queries, N documents with content, T documents of a tile, D dimensions, K candidates of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numba import njit

from sourcier.encodings import DenseVectors
from sourcier.indexes.arrays import ArrayWriter, map_array
from sourcier.indexes.checks import (
    accept_vectors,
    as_float32,
    expect,
    expect_dimensions,
    refuse_non_finite_queries,
    refuse_overflow,
)
from sourcier.indexes.kind import Chunks, Segment
from sourcier.indexes.manifest import Written
from sourcier.indexes.ranking import (
    Ranked,
    TopK,
    candidates_for,
    concatenated,
    exclude,
    rounding,
    settle,
)

#: The file of the vectors.
VECTORS = "vectors.npy"
#: Queries of a group and documents of a tile: their scores (2 MB) stay in the cache until the best are picked.
_GROUP, _TILE = 256, 2048
#: Documents that are moved at a time.
_CHUNK = 2**16


class DenseSegment(Segment):
    """Dot products with all documents, the best kept."""

    kind: ClassVar[str] = "dense"

    @classmethod
    def accept(cls, ids: Sequence[str], encoding: Any, dimensions: int | None) -> np.ndarray:
        expect(cls.kind, encoding, DenseVectors)
        accept_vectors(ids, encoding.vectors, dimensions)
        return np.ones(len(encoding), dtype=bool)

    @classmethod
    def write(cls, folder: Path, chunks: Chunks, build: Any, like: Self | None = None) -> Written:
        longest, dimensions = 0.0, None
        with closing(ArrayWriter(folder / VECTORS, np.float32, None)) as file:
            for chunk in chunks:
                vectors = as_float32(chunk.comparable)
                dimensions = vectors.shape[1]
                longest = max(longest, largest_norm(vectors))
                file.append(vectors)
        return Written(dimensions=dimensions, counts={}, settings={"largest_norm": longest})

    def __init__(self, folder: Path, written: Written) -> None:
        self.vectors = self._mapped(folder)  # [N, D]
        self._dimensions = written.dimensions
        self._largest_norm = float(written.settings["largest_norm"])

    def _mapped(self, folder: Path) -> np.ndarray:
        return map_array(folder / VECTORS)

    def __len__(self) -> int:
        return len(self.vectors)

    def checked(self, queries: Any) -> np.ndarray:
        expect(self.kind, queries, DenseVectors)
        vectors = as_float32(queries.comparable)
        expect_dimensions(vectors, self._dimensions)
        refuse_non_finite_queries(vectors)
        return vectors

    def silent(self, queries: np.ndarray) -> np.ndarray:
        return np.zeros(len(queries), dtype=bool)

    def best(self, queries: np.ndarray, depth: int, allowed: np.ndarray | None, search: Any) -> Ranked:
        groups = (queries[start : start + _GROUP] for start in range(0, len(queries), _GROUP))
        return concatenated([self._best_of_group(group, depth, allowed) for group in groups], depth)

    def chunks(self, keep: np.ndarray) -> Iterator[DenseVectors]:
        for start in range(0, len(keep), _CHUNK):
            yield DenseVectors(self.vectors[start : start + _CHUNK][keep[start : start + _CHUNK]])

    def _best_of_group(self, queries: np.ndarray, depth: int, allowed: np.ndarray | None) -> Ranked:
        count = len(self.vectors) if allowed is None else int(np.count_nonzero(allowed))
        error = rounding(self.vectors.shape[1]) * self._largest_norm * norms(queries)
        refuse_overflow(error)
        best = TopK(len(queries), candidates_for(depth, count))
        # One piece of memory for the products of all tiles: it stays in the cache.
        room = np.empty((min(_TILE, len(self.vectors)), len(queries)), dtype=np.float32)
        for start in range(0, len(self.vectors), _TILE):
            tile = self.vectors[start : start + _TILE]
            products = np.matmul(tile, queries.T, out=room[: len(tile)])
            best.offer(exclude(products, None if allowed is None else allowed[start : start + _TILE]), start)
        return self._settled(queries, best.ranked(), depth, error, allowed)

    def _settled(
        self,
        queries: np.ndarray,
        candidates: Ranked,
        depth: int,
        error: np.ndarray,
        allowed: np.ndarray | None,
    ) -> Ranked:
        """The best documents by their scores pair by pair, from candidates whose scores may be wrong by `error` [Q]."""
        return settle(
            candidates,
            depth,
            len(self) if allowed is None else int(np.count_nonzero(allowed)),
            error,
            rescore=lambda rows: pair_scores(queries, self.vectors, rows),
            rescore_all=lambda query: exclude(
                pair_scores(queries[query : query + 1], self.vectors, np.arange(len(self.vectors))[None])[0],
                allowed,
            ),
        )


def norms(vectors: np.ndarray) -> np.ndarray:
    """The length of each vector, in float64. [rows]"""
    return np.sqrt(np.einsum("id,id->i", vectors, vectors, dtype=np.float64))


def largest_norm(vectors: np.ndarray) -> float:
    return float(norms(vectors).max(initial=0.0))


# Terms of a sum may be taken in another order, which lets it run on vectors; it is the same order for every pair.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def pair_scores(queries: np.ndarray, documents: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The dot product of each query with its candidates, summed in float64. [Q, K] float32"""
    scores = np.empty(rows.shape, dtype=np.float32)
    for query in range(rows.shape[0]):
        for rank in range(rows.shape[1]):
            row = rows[query, rank]
            total = 0.0
            for dimension in range(queries.shape[1]):
                total += np.float64(queries[query, dimension]) * np.float64(documents[row, dimension])
            scores[query, rank] = total
    return scores
