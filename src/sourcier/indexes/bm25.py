"""BM25 by bm25s: words of the documents, no model. The scores of each word and document lie mapped on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import bm25s
import numpy as np
from bm25s.tokenization import Tokenized

from sourcier.indexes.base import IndexBase
from sourcier.indexes.directory import Version
from sourcier.indexes.ranking import Ranked, TopK, concatenated, no_results
from sourcier.indexes.store import StoreWriter
from sourcier.types import SourcierError

_FOLDER = "bm25"
#: The words that are left out of documents and queries.
STOP_WORDS = "en"


class BM25Writer(StoreWriter):
    """Collects the words of documents, as numbers, and has bm25s compute the scores at the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._vocabulary: dict[str, int] = {}
        self._documents: list[list[int]] = []

    def add(self, ids: Sequence[str], encoding: Any) -> np.ndarray:
        words = _words(_texts(encoding, "document"))
        numbers = self._vocabulary
        self._documents.extend(
            [numbers.setdefault(word, len(numbers)) for word in document] for document in words
        )
        return np.ones(len(words), dtype=bool)

    def finish(self) -> tuple[dict[str, int], dict[str, Any]]:
        counts = {"terms": len(self._vocabulary)}
        # bm25s fails on a collection without a word; such an index scores everything 0 without its help.
        if self._vocabulary:
            index = bm25s.BM25()
            index.index(
                Tokenized(self._documents, self._vocabulary), create_empty_token=False, show_progress=False
            )
            index.save(self.folder / _FOLDER, show_progress=False)
        return counts, {"stop_words": STOP_WORDS}

    def close(self) -> None:
        """Nothing is open between two calls."""


class BM25Index(IndexBase):
    """Sums of the scores of a query's words. A document without any of them scores 0."""

    kind: ClassVar[str] = "bm25"
    writer: ClassVar[type[StoreWriter]] = BM25Writer

    def __init__(self, version: Version) -> None:
        super().__init__(version)
        self._index: bm25s.BM25 | None = None
        if version.manifest.counts["terms"]:
            self._index = bm25s.BM25.load(version.folder / _FOLDER, mmap=True, show_progress=False)

    def _checked(self, queries: Any) -> list[list[str]]:
        return _words(_texts(queries, "query"))

    def _silent(self, queries: list[list[str]]) -> np.ndarray:
        return np.array([not words for words in queries], dtype=bool)

    def _best(self, queries: list[list[str]], depth: int) -> Ranked:
        if not depth:
            return no_results(len(queries))
        return concatenated([self._best_of_query(words, depth) for words in queries], depth)

    def _best_of_query(self, words: list[str], depth: int) -> Ranked:
        best = TopK(1, depth)
        best.offer(self._scores(words)[:, None], 0)
        return best.ranked()

    def _scores(self, words: list[str]) -> np.ndarray:
        """The score of every document with content. [N] float32"""
        if self._index is None:
            return np.zeros(self._rows.filled, dtype=np.float32)
        known = self._index.get_tokens_ids(words)
        return np.asarray(self._index.get_scores_from_ids(known), dtype=np.float32)


def _words(texts: list[str]) -> list[list[str]]:
    return bm25s.tokenize(texts, stopwords=STOP_WORDS, return_ids=False, show_progress=False)


def _texts(values: Any, what: str) -> list[str]:
    """Refuse what is no list of texts: an encoding, one text alone, None among texts."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SourcierError(f"an index of kind 'bm25' takes a list of texts, not {type(values).__name__}")
    for row, text in enumerate(values):
        if not isinstance(text, str):
            raise SourcierError(f"{what} {row}: is {text!r} where a text is needed")
    return list(values)
