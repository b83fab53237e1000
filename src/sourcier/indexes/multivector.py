"""Exact MaxSim over a vector for each token: for each query token the best of a document's tokens, summed.

Documents are ragged: their tokens stand one after the other, without padding.

Shapes: Q queries, N documents with content, C tokens of all queries of a group, T tokens of all documents (of a tile),
D dimensions, K candidates of a query. Query q is the columns `query_offsets[q]:query_offsets[q + 1]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numba import njit

from sourcier.encodings import TokenVectors
from sourcier.indexes.arrays import ArrayWriter, map_array
from sourcier.indexes.checks import (
    accept_vectors,
    as_float32,
    expect,
    expect_dimensions,
    refuse_non_finite_queries,
    refuse_overflow,
)
from sourcier.indexes.dense import largest_norm, norms
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

_VECTORS, _OFFSETS = "vectors.npy", "offsets.npy"
#: Query tokens of a group, at most where one query has fewer.
_GROUP_TOKENS = 512
#: Products of a tile (2 MB): they stay in the cache until the maxima are taken.
_TILE_PRODUCTS = 2**19


class MultiVectorSegment(Segment):
    """MaxSim with all documents, the best kept."""

    kind: ClassVar[str] = "multivector"

    @classmethod
    def accept(cls, ids: Sequence[str], encoding: Any, dimensions: int | None) -> np.ndarray:
        expect(cls.kind, encoding, TokenVectors)
        accept_vectors(ids, encoding.vectors, dimensions, encoding.offsets)
        return np.asarray(np.diff(encoding.offsets) > 0)

    @classmethod
    def write(cls, folder: Path, chunks: Chunks, build: Any, like: Self | None = None) -> Written:
        tokens, longest, dimensions = 0, 0.0, None
        with (
            closing(ArrayWriter(folder / _VECTORS, np.float32, None)) as file,
            closing(ArrayWriter(folder / _OFFSETS, np.int64)) as ends,
        ):
            ends.append(np.zeros(1, dtype=np.int64))
            for chunk in chunks:
                vectors = as_float32(chunk.vectors)
                dimensions = vectors.shape[1]
                longest = max(longest, largest_norm(vectors))
                file.append(vectors)
                ends.append(tokens + chunk.offsets[1:])
                tokens += len(vectors)
        return Written(dimensions=dimensions, counts={"tokens": tokens}, settings={"largest_norm": longest})

    def __init__(self, folder: Path, written: Written) -> None:
        self.vectors = map_array(folder / _VECTORS)  # [T, D]
        self.offsets = map_array(folder / _OFFSETS)  # [N + 1]
        self._dimensions = written.dimensions
        self._largest_norm = float(written.settings["largest_norm"])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def checked(self, queries: Any) -> TokenVectors:
        return self.checked_queries(self.kind, queries, self._dimensions)

    @staticmethod
    def checked_queries(kind: str, queries: Any, dimensions: int | None) -> TokenVectors:
        """The queries of any kind that holds tokens, refused where they do not fit."""
        expect(kind, queries, TokenVectors)
        vectors = as_float32(queries.vectors)
        if len(vectors):
            expect_dimensions(vectors, dimensions)
        refuse_non_finite_queries(vectors, queries.offsets)
        return TokenVectors(np.asarray(queries.offsets, dtype=np.int64), vectors)

    def silent(self, queries: TokenVectors) -> np.ndarray:
        return np.diff(queries.offsets) == 0

    def best(self, queries: TokenVectors, depth: int, allowed: np.ndarray | None, search: Any) -> Ranked:
        groups = [self._best_of_group(group, depth, allowed) for group in _groups(queries)]
        return concatenated(groups, depth)

    def chunks(self, keep: np.ndarray) -> Iterator[TokenVectors]:
        for first, last in self._tiles(1):
            whole = TokenVectors(self.offsets[first : last + 1], self.vectors)
            yield whole.take(np.flatnonzero(keep[first:last]))

    def _best_of_group(self, queries: TokenVectors, depth: int, allowed: np.ndarray | None) -> Ranked:
        count = len(self) if allowed is None else int(np.count_nonzero(allowed))
        error = self._error(queries)
        refuse_overflow(error)
        best = TopK(len(queries), candidates_for(depth, count))
        tiles = list(self._tiles(len(queries.vectors)))
        longest = max(int(self.offsets[last] - self.offsets[first]) for first, last in tiles)
        # One piece of memory for the products of all tiles: it stays in the cache.
        room = np.empty((longest, len(queries.vectors)), dtype=np.float32)
        for first, last in tiles:
            offsets = self.offsets[first : last + 1]
            tokens = self.vectors[offsets[0] : offsets[-1]]
            products = np.matmul(tokens, queries.vectors.T, out=room[: len(tokens)])
            scores = _sum_of_maxima(products, offsets, queries.offsets)
            best.offer(exclude(scores, None if allowed is None else allowed[first:last]), first)
        return settle(
            best.ranked(),
            depth,
            count,
            error,
            rescore=lambda rows: self._pair_scores(queries, rows),
            rescore_all=lambda query: exclude(
                self._pair_scores(queries[query : query + 1], np.arange(len(self))[None])[0], allowed
            ),
        )

    def _tiles(self, columns: int) -> Iterator[tuple[int, int]]:
        """Runs of whole documents whose scores fill a tile; a document that is longer has a tile of its own."""
        tokens = max(_TILE_PRODUCTS // max(columns, 1), 1)
        first, count = 0, len(self.offsets) - 1
        while first < count:
            fitting = int(np.searchsorted(self.offsets, self.offsets[first] + tokens, side="right")) - 1
            last = max(fitting, first + 1)
            yield first, last
            first = last

    def _error(self, queries: TokenVectors) -> np.ndarray:
        """How far a score from a matrix product and one pair by pair can lie apart. [Q]"""
        lengths = norms(queries.vectors)
        sums = np.array([lengths[start:stop].sum() for start, stop in pairwise(queries.offsets)])
        terms = self.vectors.shape[1] + int(np.diff(queries.offsets).max())
        return rounding(terms) * self._largest_norm * sums

    def _pair_scores(self, queries: TokenVectors, rows: np.ndarray) -> np.ndarray:
        return _pair_scores(queries.vectors, queries.offsets, self.vectors, self.offsets, rows)


def _groups(queries: TokenVectors) -> Iterator[TokenVectors]:
    """Consecutive queries that have about `_GROUP_TOKENS` tokens together."""
    first = 0
    while first < len(queries):
        fitting = (
            int(np.searchsorted(queries.offsets, queries.offsets[first] + _GROUP_TOKENS, side="right")) - 1
        )
        last = max(fitting, first + 1)
        yield queries[first:last]
        first = last


@njit(cache=True, nogil=True)
def _sum_of_maxima(products: np.ndarray, offsets: np.ndarray, query_offsets: np.ndarray) -> np.ndarray:
    """MaxSim from the products [T, C] of document tokens and query tokens. [documents of the tile, Q]"""
    documents, queries = len(offsets) - 1, len(query_offsets) - 1
    scores = np.empty((documents, queries), dtype=np.float32)
    best = np.empty(products.shape[1], dtype=np.float32)
    for document in range(documents):
        start, stop = offsets[document] - offsets[0], offsets[document + 1] - offsets[0]
        best[:] = products[start]
        for token in range(start + 1, stop):
            for column in range(len(best)):
                best[column] = max(best[column], products[token, column])
        for query in range(queries):
            total = np.float32(0.0)
            for column in range(query_offsets[query], query_offsets[query + 1]):
                total += best[column]
            scores[document, query] = total
    return scores


# Terms of a sum may be taken in another order, which lets it run on vectors; it is the same order for every pair.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _pair_scores(
    queries: np.ndarray,
    query_offsets: np.ndarray,
    documents: np.ndarray,
    offsets: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """MaxSim of each query with its candidates. [Q, K] float32"""
    scores = np.empty(rows.shape, dtype=np.float32)
    for query in range(rows.shape[0]):
        for rank in range(rows.shape[1]):
            row = rows[query, rank]
            total = 0.0
            for own in range(query_offsets[query], query_offsets[query + 1]):
                best = np.float32(-np.inf)
                for token in range(offsets[row], offsets[row + 1]):
                    product = np.float32(0.0)
                    for dimension in range(queries.shape[1]):
                        product += queries[own, dimension] * documents[token, dimension]
                    best = max(best, product)
                total += np.float64(best)
            scores[query, rank] = total
    return scores
