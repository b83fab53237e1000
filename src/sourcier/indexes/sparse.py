"""Exact search over term weights (SPLADE): inverted lists, dot product.

A weight is a vector of length 1: everything else is as for term vectors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sourcier.encodings import TermVectors, TermWeights
from sourcier.indexes.checks import expect
from sourcier.indexes.term_vectors import TermVectorsSegment


class SparseSegment(TermVectorsSegment):
    """Scores over inverted lists, the best kept. A document without a common term scores 0."""

    kind: ClassVar[str] = "sparse"

    @classmethod
    def _as_term_vectors(cls, encoding: Any) -> TermVectors:
        expect(cls.kind, encoding, TermWeights)
        return TermVectors(encoding.offsets, encoding.terms, encoding.weights[:, None])

    @classmethod
    def _as_own(cls, vectors: TermVectors) -> TermWeights:
        return TermWeights(vectors.offsets, vectors.terms, vectors.vectors[:, 0])
