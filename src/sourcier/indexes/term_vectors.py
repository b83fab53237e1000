"""Exact search over a vector for each active term of a text (SparseEmbed): the dot products of common terms, summed.

Shapes: Q queries, N documents with content, T active terms of all texts together, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from sourcier.encodings import TermVectors
from sourcier.indexes.checks import (
    accept_vectors,
    as_float32,
    expect,
    expect_dimensions,
    refuse_negative_terms,
    refuse_non_finite_queries,
)
from sourcier.indexes.kind import Chunks, Segment
from sourcier.indexes.manifest import Written
from sourcier.indexes.postings import Postings, PostingsWriter
from sourcier.indexes.ranking import Ranked, TopK, concatenated, exclude


class TermVectorsSegment(Segment):
    """Scores over inverted lists, the best kept. A document without a common term scores 0."""

    kind: ClassVar[str] = "term_vectors"

    @classmethod
    def accept(cls, ids: Sequence[str], encoding: Any, dimensions: int | None) -> np.ndarray:
        encoding = cls._as_term_vectors(encoding)
        accept_vectors(ids, encoding.vectors, dimensions, encoding.offsets)
        refuse_negative_terms(encoding.terms)
        return np.ones(len(encoding), dtype=bool)

    @classmethod
    def write(cls, folder: Path, chunks: Chunks, build: Any, like: Self | None = None) -> Written:
        postings, dimensions = PostingsWriter(folder), None
        try:
            for chunk in map(cls._as_term_vectors, chunks):
                if len(chunk.vectors):
                    dimensions = chunk.vectors.shape[1]
                postings.add(chunk.offsets, chunk.terms, as_float32(chunk.vectors))
            postings.finish(dimensions or 0)
        finally:
            postings.close()
        return Written(
            dimensions=dimensions,
            counts={"postings": postings.count},
            settings={"documents": len(chunks)},
        )

    def __init__(self, folder: Path, written: Written) -> None:
        self.postings = Postings(folder)
        self._dimensions = written.dimensions
        self._count = int(written.settings["documents"])

    def __len__(self) -> int:
        return self._count

    def checked(self, queries: Any) -> TermVectors:
        queries = self._as_term_vectors(queries)
        vectors = as_float32(queries.vectors)
        if len(vectors):
            expect_dimensions(vectors, self._dimensions)
            refuse_negative_terms(queries.terms)
            refuse_non_finite_queries(vectors, queries.offsets)
        return TermVectors(queries.offsets, np.asarray(queries.terms, dtype=np.int64), vectors)

    def silent(self, queries: TermVectors) -> np.ndarray:
        return np.diff(queries.offsets) == 0

    def best(self, queries: TermVectors, depth: int, allowed: np.ndarray | None, search: Any) -> Ranked:
        rankings = [
            self._best_of_query(queries[row : row + 1], depth, allowed) for row in range(len(queries))
        ]
        return concatenated(rankings, depth)

    def chunks(self, keep: np.ndarray) -> Iterator[Any]:
        return map(self._as_own, self.postings.chunks(keep))

    def _best_of_query(self, query: TermVectors, depth: int, allowed: np.ndarray | None) -> Ranked:
        best = TopK(1, depth)
        scores = self.postings.scores(query.terms, query.vectors, len(self))
        best.offer(exclude(scores, allowed)[:, None], 0)
        return best.ranked()

    @classmethod
    def _as_term_vectors(cls, encoding: Any) -> TermVectors:
        """The encoding of this kind as the general one."""
        expect(cls.kind, encoding, TermVectors)
        return encoding

    @classmethod
    def _as_own(cls, vectors: TermVectors) -> Any:
        """The reverse."""
        return vectors
