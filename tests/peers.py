"""Vectors of our models and of sentence-transformers as lists of arrays that can be compared, one a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sourcier.encodings import DenseVectors, TermVectors, TermWeights, TokenVectors
from sourcier.models.encoder import SearchModel
from sourcier.types import Side

#: Short, punctuated, longer than any limit of the tests, and empty.
TEXTS = ["find a well", "Water, in the lake!", "rain " * 60, "(a) train the model", ""]


def ours(model: SearchModel, side: Side, texts: Sequence[str] = TEXTS) -> list[np.ndarray]:
    """A vector, a vector of all terms, or a matrix of tokens for each text."""
    encoding = model.encode(texts, side)
    if isinstance(encoding, DenseVectors):
        return list(encoding.vectors)
    rows = [slice(*encoding.offsets[number : number + 2]) for number in range(len(texts))]
    if isinstance(encoding, TokenVectors):
        return [encoding.vectors[row] for row in rows]
    assert isinstance(encoding, TermWeights)
    spread = np.zeros((len(texts), model.backbone.vocabulary), dtype=np.float32)
    for number, row in enumerate(rows):
        spread[number, encoding.terms[row]] = encoding.weights[row]
    return list(spread)


def term_vectors(model: SearchModel, side: Side, texts: Sequence[str] = TEXTS) -> list[dict[int, np.ndarray]]:
    """The vector of each term that a text keeps."""
    encoding = model.encode(texts, side)
    assert isinstance(encoding, TermVectors)
    rows = [slice(*encoding.offsets[number : number + 2]) for number in range(len(texts))]
    return [dict(zip(encoding.terms[row].tolist(), encoding.vectors[row], strict=True)) for row in rows]


def theirs(model: Any, side: Side, texts: Sequence[str] = TEXTS) -> list[np.ndarray]:
    """The same from a model that sentence-transformers opened."""
    encode = model.encode_query if side == "query" else model.encode_document
    if model.model_type == "MultiVectorEncoder":
        return list(encode(texts, convert_to_numpy=True))
    if model.model_type == "SparseEncoder":
        return list(encode(texts, convert_to_sparse_tensor=False).numpy())
    return list(encode(texts))


def opened(folder: Path, family: str) -> Any:
    """The model of a folder, as sentence-transformers opens it."""
    import sentence_transformers

    kinds = {"dense": "SentenceTransformer", "splade": "SparseEncoder", "colbert": "MultiVectorEncoder"}
    return getattr(sentence_transformers, kinds[family])(str(folder), device="cpu")


def assert_close(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float = 1e-5
) -> None:
    """As many arrays, of the same shapes, with the same numbers."""
    assert [one.shape for one in found] == [one.shape for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=0)
