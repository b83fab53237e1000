"""Exact search over a vector for each active term of a text (SparseEmbed): the dot products of common terms, summed.

Shapes: Q queries, N documents with content, T active terms of all texts together, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sourcier.encodings import TermVectors
from sourcier.indexes.base import IndexBase
from sourcier.indexes.checks import (
    as_float32,
    expect,
    expect_dimensions,
    refuse_negative_terms,
    refuse_non_finite_documents,
    refuse_non_finite_queries,
)
from sourcier.indexes.directory import Version
from sourcier.indexes.postings import Postings, PostingsWriter
from sourcier.indexes.ranking import Ranked, TopK, concatenated, no_results
from sourcier.indexes.store import StoreWriter


class TermVectorsWriter(StoreWriter):
    """Inverts documents into lists of their terms."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._postings = PostingsWriter(folder)

    def add(self, ids: Sequence[str], encoding: Any) -> np.ndarray:
        encoding = self._as_term_vectors(encoding)
        vectors = as_float32(encoding.vectors)
        if len(vectors):
            self._check_dimensions(vectors)
            refuse_negative_terms(encoding.terms)
            refuse_non_finite_documents(vectors, ids, encoding.offsets)
        self._postings.add(encoding.offsets, encoding.terms, vectors)
        return np.ones(len(encoding), dtype=bool)

    def finish(self) -> tuple[dict[str, int], dict[str, Any]]:
        self._postings.finish(self.dimensions or 0)
        return {"postings": self._postings.count}, {}

    def close(self) -> None:
        self._postings.close()

    def _as_term_vectors(self, encoding: Any) -> TermVectors:
        expect("term_vectors", encoding, TermVectors)
        return encoding


class TermVectorsIndex(IndexBase):
    """Scores over inverted lists, the best kept. A document without a common term scores 0."""

    kind: ClassVar[str] = "term_vectors"
    writer: ClassVar[type[StoreWriter]] = TermVectorsWriter

    def __init__(self, version: Version) -> None:
        super().__init__(version)
        self.postings = Postings(version.folder)

    def _checked(self, queries: Any) -> TermVectors:
        expect(self.kind, queries, TermVectors)
        return self._checked_vectors(queries)

    def _checked_vectors(self, queries: TermVectors) -> TermVectors:
        vectors = as_float32(queries.vectors)
        if len(vectors):
            expect_dimensions(vectors, self._version.manifest.dimensions)
            refuse_negative_terms(queries.terms)
            refuse_non_finite_queries(vectors, queries.offsets)
        return TermVectors(queries.offsets, np.asarray(queries.terms, dtype=np.int64), vectors)

    def _silent(self, queries: TermVectors) -> np.ndarray:
        return np.diff(queries.offsets) == 0

    def _best(self, queries: TermVectors, depth: int) -> Ranked:
        if not depth:
            return no_results(len(queries))
        rankings = (self._best_of_query(queries[row : row + 1], depth) for row in range(len(queries)))
        return concatenated(list(rankings), depth)

    def _best_of_query(self, query: TermVectors, depth: int) -> Ranked:
        best = TopK(1, depth)
        best.offer(self.postings.scores(query.terms, query.vectors, self._rows.filled)[:, None], 0)
        return best.ranked()
