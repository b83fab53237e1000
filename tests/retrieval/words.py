"""Encoders of each family that know eight words, and BM25 by its formula: what a dictionary model scores with.

All numbers are multiples of 1/8 of small size: their products and sums are exact in float32, and tie often.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from indexes import encoded

from sourcier.encodings import DenseVectors, TermVectors, TermWeights, TokenVectors

WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple")
_VECTORS = (np.random.default_rng(3).integers(-8, 9, size=(len(WORDS), 8)) / 8).astype(np.float32)
_WEIGHTS = (np.arange(1, len(WORDS) + 1) / 8).astype(np.float32)


class WordEncoder:
    """An encoder of a user's own. Words that it does not know are nothing to it."""

    def __init__(self, family: str) -> None:
        self.family = family

    def encode(self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False) -> Any:
        known = [[WORDS.index(word) for word in words_of(text) if word in WORDS] for text in texts]
        if self.family == "dense":
            sums = [_VECTORS[one].sum(axis=0) for one in known]
            return DenseVectors(np.array(sums, dtype=np.float32).reshape(-1, _VECTORS.shape[1]))
        if self.family == "colbert":
            return TokenVectors(_offsets(known), _VECTORS[_flat(known)])
        terms = [sorted(set(one)) for one in known]
        counts = [one.count(term) for one, own in zip(known, terms, strict=True) for term in own]
        times = np.array(counts, dtype=np.float32)
        flat = _flat(terms)
        if self.family == "splade":
            return TermWeights(_offsets(terms), flat, times * _WEIGHTS[flat])
        return TermVectors(_offsets(terms), flat, times[:, None] * _VECTORS[flat, :4])


SCORES: dict[str, Any] = {
    "colbert": encoded.token_scores,
    "dense": encoded.dense_scores,
    "sparse_embed": encoded.term_vector_scores,
    "splade": encoded.weight_scores,
}


def words_of(text: str) -> list[str]:
    return re.findall(r"\w\w+", text.lower())


def bm25(query: str, own: Sequence[str], segment: Sequence[str], everything: Sequence[str]) -> np.ndarray:
    """The scores of some texts by Lucene's BM25 (k1 = 1.5, b = 0.75).

    How long texts are on average is that of their segment; how rare a word is, that of everything.
    """
    average = float(np.mean([len(words_of(text)) for text in segment]))
    frequency = Counter(word for text in everything for word in set(words_of(text)))
    scores = []
    for words in map(words_of, own):
        score = 0.0
        for word in words_of(query):
            count = words.count(word)
            idf = math.log(1 + (len(everything) - frequency[word] + 0.5) / (frequency[word] + 0.5))
            if count:
                score += idf * count / (count + 1.5 * (0.25 + 0.75 * len(words) / average))
        scores.append(score)
    return np.array(scores)


def _flat(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([number for row in rows for number in row], dtype=np.int32)


def _offsets(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
