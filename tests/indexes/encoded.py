"""Random encodings of each family, and scores of every pair computed plainly in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sourcier.encodings import DenseVectors, TermVectors, TermWeights, TokenVectors
from sourcier.indexes import create, open_index

TERMS = 30


def dense(random: np.random.Generator, count: int, dimensions: int = 8) -> DenseVectors:
    return DenseVectors(_numbers(random, (count, dimensions)))


def tokens(random: np.random.Generator, count: int, dimensions: int = 8) -> TokenVectors:
    offsets = _offsets(random.integers(1, 9, size=count))
    return TokenVectors(offsets, _numbers(random, (offsets[-1], dimensions)))


def weights(random: np.random.Generator, count: int) -> TermWeights:
    offsets, terms = _terms(random, count)
    return TermWeights(offsets, terms, np.abs(_numbers(random, len(terms))) + np.float32(0.125))


def term_vectors(random: np.random.Generator, count: int, dimensions: int = 4) -> TermVectors:
    offsets, terms = _terms(random, count)
    return TermVectors(offsets, terms, _numbers(random, (len(terms), dimensions)))


def dense_scores(queries: DenseVectors, documents: DenseVectors) -> np.ndarray:
    return queries.vectors.astype(np.float64) @ documents.vectors.T.astype(np.float64)


def token_scores(queries: TokenVectors, documents: TokenVectors) -> np.ndarray:
    products = queries.vectors.astype(np.float64) @ documents.vectors.T.astype(np.float64)
    return np.array(
        [
            [products[rows][:, columns].max(axis=1).sum() for columns in _slices(documents)]
            for rows in _slices(queries)
        ]
    )


def weight_scores(queries: TermWeights, documents: TermWeights) -> np.ndarray:
    return _table(queries, queries.weights[:, None]) @ _table(documents, documents.weights[:, None]).T


def term_vector_scores(queries: TermVectors, documents: TermVectors) -> np.ndarray:
    return _table(queries, queries.vectors) @ _table(documents, documents.vectors).T


@dataclass(frozen=True)
class Kind:
    """A kind of index with a way to make encodings for it and to score them."""

    name: str
    encode: Callable[[np.random.Generator, int], Any]
    scores: Callable[[Any, Any], np.ndarray]


KINDS = [
    Kind("dense", dense, dense_scores),
    Kind("multivector", tokens, token_scores),
    Kind("sparse", weights, weight_scores),
    Kind("term_vectors", term_vectors, term_vector_scores),
]


def build(kind: str, folder: Path, encoding: Any, ids: list[str] | None = None, **options: Any) -> Any:
    """An index of one chunk, opened."""
    with create(kind, folder) as writer:
        writer.add(ids or names(len(encoding)), encoding, **options)
        writer.finish()
    return open_index(folder)


def names(count: int, first: int = 0) -> list[str]:
    return [f"d{number}" for number in range(first, first + count)]


def best_first(scores: np.ndarray) -> np.ndarray:
    """Columns by falling score, ties by rising column."""
    return np.argsort(-scores, axis=1, kind="stable")


def _numbers(random: np.random.Generator, shape: Any) -> np.ndarray:
    """Multiples of 1/8 of small size: their products and sums are exact in float32, and tie often."""
    return (random.integers(-8, 9, size=shape) / 8).astype(np.float32)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _terms(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Between 1 and 6 terms a row, rising."""
    rows = [np.sort(random.choice(TERMS, size=random.integers(1, 7), replace=False)) for _ in range(count)]
    terms = np.concatenate([np.empty(0, dtype=np.int64), *rows]).astype(np.int32)
    return _offsets(np.array([len(row) for row in rows])), terms


def _slices(encoding: Any) -> list[slice]:
    return [slice(start, stop) for start, stop in zip(encoding.offsets, encoding.offsets[1:], strict=False)]


def _table(encoding: Any, vectors: np.ndarray) -> np.ndarray:
    """Each row as one long vector with a place for every term and dimension."""
    table = np.zeros((len(encoding), TERMS, vectors.shape[1]))
    for row, entries in enumerate(_slices(encoding)):
        table[row, encoding.terms[entries]] = vectors[entries]
    return table.reshape(len(encoding), -1)
