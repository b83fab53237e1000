"""The score of one query with each of some documents, from encodings: what an exact index gives, without an index.

Shapes: N documents, D dimensions, T tokens or active terms of all documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sourcier.encodings import DenseVectors, Encoding, TermVectors, TermWeights, TokenVectors


def scores(query: Encoding, documents: Any) -> np.ndarray:
    """The scores of one query (an encoding of one row) with documents of the same family. [N] float32"""
    if isinstance(query, DenseVectors):
        found = documents.comparable @ query.comparable[0]
    elif isinstance(query, TokenVectors):
        found = _maxsim(query, documents)
    elif isinstance(query, TermWeights):
        found = _common_terms(query.terms, query.weights[:, None], documents, documents.weights[:, None])
    elif isinstance(query, TermVectors):
        found = _common_terms(query.terms, query.vectors, documents, documents.vectors)
    else:
        raise TypeError(f"no score is known for {type(query).__name__}")
    return np.asarray(found, dtype=np.float32)


def _maxsim(query: TokenVectors, documents: TokenVectors) -> np.ndarray:
    """A document without tokens scores as low as can be."""
    filled = np.flatnonzero(np.diff(documents.offsets))
    found = np.full(len(documents), np.finfo(np.float32).min, dtype=np.float32)
    if len(filled):
        products = documents.vectors @ query.vectors.T  # [T, tokens of the query]
        found[filled] = np.maximum.reduceat(products, documents.offsets[filled], axis=0).sum(axis=1)
    return found


def _common_terms(
    terms: np.ndarray, vectors: np.ndarray, documents: TermWeights | TermVectors, of_documents: np.ndarray
) -> np.ndarray:
    """The dot products of the vectors of common terms, summed."""
    if not len(terms):
        return np.zeros(len(documents))
    places = np.searchsorted(terms, documents.terms).clip(max=len(terms) - 1)
    common = terms[places] == documents.terms
    products = np.einsum("td,td->t", vectors[places[common]], of_documents[common])
    rows = np.repeat(np.arange(len(documents)), np.diff(documents.offsets))[common]
    return np.bincount(rows, weights=products, minlength=len(documents))
