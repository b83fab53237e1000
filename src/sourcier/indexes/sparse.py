"""Exact search over term weights (SPLADE): inverted lists, dot product.

A weight is a vector of length 1: everything else is as for term vectors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sourcier.encodings import TermVectors, TermWeights
from sourcier.indexes.checks import expect
from sourcier.indexes.store import StoreWriter
from sourcier.indexes.term_vectors import TermVectorsIndex, TermVectorsWriter


class SparseWriter(TermVectorsWriter):
    """Inverts documents into lists of their terms, with weights."""

    def _as_term_vectors(self, encoding: Any) -> TermVectors:
        return _as_term_vectors(encoding)


class SparseIndex(TermVectorsIndex):
    """Scores over inverted lists, the best kept. A document without a common term scores 0."""

    kind: ClassVar[str] = "sparse"
    writer: ClassVar[type[StoreWriter]] = SparseWriter

    def _checked(self, queries: Any) -> TermVectors:
        return self._checked_vectors(_as_term_vectors(queries))


def _as_term_vectors(encoding: Any) -> TermVectors:
    expect("sparse", encoding, TermWeights)
    return TermVectors(encoding.offsets, encoding.terms, encoding.weights[:, None])
