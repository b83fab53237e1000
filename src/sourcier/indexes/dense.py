"""Exact search over one vector a document: every query against every document, in tiles of matrix products.

Shapes: Q queries, N documents with content, T documents of a tile, D dimensions, K candidates of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numba import njit

from sourcier.encodings import DenseVectors
from sourcier.indexes.arrays import ArrayWriter, map_array
from sourcier.indexes.base import IndexBase
from sourcier.indexes.checks import (
    as_float32,
    expect,
    expect_dimensions,
    refuse_non_finite_documents,
    refuse_non_finite_queries,
    refuse_overflow,
)
from sourcier.indexes.directory import Version
from sourcier.indexes.ranking import Ranked, TopK, candidates_for, concatenated, no_results, rounding, settle
from sourcier.indexes.store import StoreWriter

_VECTORS = "vectors.npy"
#: Queries of a group and documents of a tile: their scores (2 MB) stay in the cache until the best are picked.
_GROUP, _TILE = 256, 2048


class DenseWriter(StoreWriter):
    """Appends vectors to one matrix."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._vectors: ArrayWriter | None = None
        self._largest_norm = 0.0

    def add(self, ids: Sequence[str], encoding: Any) -> np.ndarray:
        expect("dense", encoding, DenseVectors)
        vectors = as_float32(encoding.comparable)
        if len(vectors):
            self._check_dimensions(vectors)
            refuse_non_finite_documents(vectors, ids)
            self._largest_norm = max(self._largest_norm, largest_norm(vectors))
            if self._vectors is None:
                self._vectors = ArrayWriter(self.folder / _VECTORS, np.float32, vectors.shape[1:])
            self._vectors.append(vectors)
        return np.ones(len(vectors), dtype=bool)

    def finish(self) -> tuple[dict[str, int], dict[str, Any]]:
        if self._vectors is None:
            self._vectors = ArrayWriter(self.folder / _VECTORS, np.float32, (0,))
        self._vectors.close()
        return {}, {"largest_norm": self._largest_norm}

    def close(self) -> None:
        if self._vectors is not None:
            self._vectors.close()


class DenseIndex(IndexBase):
    """Dot products with all documents, the best kept."""

    kind: ClassVar[str] = "dense"
    writer: ClassVar[type[StoreWriter]] = DenseWriter

    def __init__(self, version: Version) -> None:
        super().__init__(version)
        self.vectors = map_array(version.folder / _VECTORS)  # [N, D]
        self._largest_norm = float(version.manifest.settings["largest_norm"])

    def _checked(self, queries: Any) -> np.ndarray:
        expect(self.kind, queries, DenseVectors)
        vectors = as_float32(queries.comparable)
        expect_dimensions(vectors, self._version.manifest.dimensions)
        refuse_non_finite_queries(vectors)
        return vectors

    def _silent(self, queries: np.ndarray) -> np.ndarray:
        return np.zeros(len(queries), dtype=bool)

    def _best(self, queries: np.ndarray, depth: int) -> Ranked:
        if not depth:
            return no_results(len(queries))
        groups = (queries[start : start + _GROUP] for start in range(0, len(queries), _GROUP))
        return concatenated([self._best_of_group(group, depth) for group in groups], depth)

    def _best_of_group(self, queries: np.ndarray, depth: int) -> Ranked:
        count = len(self.vectors)
        error = rounding(self.vectors.shape[1]) * self._largest_norm * norms(queries)
        refuse_overflow(error)
        best = TopK(len(queries), candidates_for(depth, count))
        # One piece of memory for the products of all tiles: it stays in the cache.
        room = np.empty((min(_TILE, count), len(queries)), dtype=np.float32)
        for start in range(0, count, _TILE):
            tile = self.vectors[start : start + _TILE]
            best.offer(np.matmul(tile, queries.T, out=room[: len(tile)]), start)
        return settle(
            best.ranked(),
            depth,
            count,
            error,
            rescore=lambda rows: _pair_scores(queries, self.vectors, rows),
            rescore_all=lambda query: _pair_scores(
                queries[query : query + 1], self.vectors, np.arange(count)[None]
            )[0],
        )


def norms(vectors: np.ndarray) -> np.ndarray:
    """The length of each vector, in float64. [rows]"""
    return np.sqrt(np.einsum("id,id->i", vectors, vectors, dtype=np.float64))


def largest_norm(vectors: np.ndarray) -> float:
    return float(norms(vectors).max(initial=0.0))


# Terms of a sum may be taken in another order, which lets it run on vectors; it is the same order for every pair.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _pair_scores(queries: np.ndarray, documents: np.ndarray, rows: np.ndarray) -> np.ndarray:
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
