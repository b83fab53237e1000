"""BM25 by bm25s: words of the documents, no model. The scores of each word and document lie mapped on disk.

How rare a word is, is counted over all segments of an index, deleted documents included, until it is compacted; how
long a document is on average, over the segment it came with. An index of one segment scores as bm25s does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import bm25s
import numpy as np
from bm25s.tokenization import Tokenized

from sourcier.indexes.arrays import ArrayWriter, map_array
from sourcier.indexes.disk import writing
from sourcier.indexes.kind import Chunks, Segment
from sourcier.indexes.manifest import Written
from sourcier.indexes.ranking import Ranked, TopK, concatenated, exclude
from sourcier.types import SourcierError

_FOLDER, _WORDS, _OFFSETS, _VOCABULARY = "bm25", "words.npy", "offsets.npy", "vocabulary.txt"
#: The words that are left out of documents and queries.
STOP_WORDS = "en"
#: Documents that compaction moves at a time.
_CHUNK = 2**14


@dataclass(frozen=True)
class Words:
    """The words of documents: what compaction moves. Document i has those of `offsets[i]:offsets[i + 1]`."""

    offsets: np.ndarray
    words: list[str]

    def __iter__(self) -> Iterator[list[str]]:
        return (self.words[start:stop] for start, stop in pairwise(self.offsets.tolist()))


class BM25Segment(Segment):
    """Sums of the scores of a query's words. A document without any of them scores 0."""

    kind: ClassVar[str] = "bm25"

    @classmethod
    def accept(cls, ids: Sequence[str], encoding: Any, dimensions: int | None) -> np.ndarray:
        return np.ones(len(_texts(encoding, "document")), dtype=bool)

    @classmethod
    def write(cls, folder: Path, chunks: Chunks, build: Any, like: Self | None = None) -> Written:
        vocabulary: dict[str, int] = {}
        end = 0
        with (
            closing(ArrayWriter(folder / _WORDS, np.int32)) as numbers,
            closing(ArrayWriter(folder / _OFFSETS, np.int64)) as offsets,
        ):
            offsets.append(np.zeros(1, dtype=np.int64))
            for chunk in chunks:
                words = list(chunk) if isinstance(chunk, Words) else _words(chunk)
                ends = end + np.cumsum([len(document) for document in words], dtype=np.int64)
                offsets.append(ends)
                numbers.append(
                    np.array(
                        [vocabulary.setdefault(word, len(vocabulary)) for one in words for word in one],
                        dtype=np.int32,
                    )
                )
                end = int(ends[-1])
        with writing(folder / _VOCABULARY):
            (folder / _VOCABULARY).write_text("\n".join(vocabulary), encoding="utf-8")
        # bm25s fails on a collection without a word; such a segment scores everything 0 without its help.
        if vocabulary:
            index = bm25s.BM25()
            own = map_array(folder / _OFFSETS), map_array(folder / _WORDS)
            documents = [own[1][start:stop] for start, stop in pairwise(own[0].tolist())]
            index.index(Tokenized(documents, vocabulary), create_empty_token=False, show_progress=False)
            with writing(folder / _FOLDER):
                index.save(folder / _FOLDER, show_progress=False)
        return Written(
            dimensions=None, counts={"terms": len(vocabulary)}, settings={"stop_words": STOP_WORDS}
        )

    def __init__(self, folder: Path, written: Written) -> None:
        self._folder = folder
        self._offsets = map_array(folder / _OFFSETS)
        self._index: bm25s.BM25 | None = None
        if written.counts["terms"]:
            self._index = bm25s.BM25.load(folder / _FOLDER, mmap=True, show_progress=False)

        #: What makes the scores of words [vocabulary] those of the whole index; None where this segment is all of it.
        self._rarity: np.ndarray | None = None

    @classmethod
    def join(cls, segments: Sequence[Self]) -> None:
        if len(segments) < 2:
            return
        total = sum(len(segment) for segment in segments)
        frequency: Counter[str] = Counter()
        for segment in segments:
            frequency.update(segment._frequencies())
        for segment in segments:
            segment._make_part_of(total, frequency)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def checked(self, queries: Any) -> list[list[str]]:
        return _words(_texts(queries, "query"))

    def silent(self, queries: list[list[str]]) -> np.ndarray:
        return np.array([not words for words in queries], dtype=bool)

    def best(self, queries: list[list[str]], depth: int, allowed: np.ndarray | None, search: Any) -> Ranked:
        return concatenated([self._best_of_query(words, depth, allowed) for words in queries], depth)

    def chunks(self, keep: np.ndarray) -> Iterator[Words]:
        vocabulary = (self._folder / _VOCABULARY).read_text(encoding="utf-8").split("\n")
        numbers = map_array(self._folder / _WORDS)
        for start in range(0, len(keep), _CHUNK):
            kept = start + np.flatnonzero(keep[start : start + _CHUNK])
            documents = [numbers[self._offsets[row] : self._offsets[row + 1]] for row in kept]
            yield Words(
                np.concatenate([[0], np.cumsum([len(one) for one in documents])]).astype(np.int64),
                [vocabulary[number] for one in documents for number in one.tolist()],
            )

    def _best_of_query(self, words: list[str], depth: int, allowed: np.ndarray | None) -> Ranked:
        best = TopK(1, depth)
        best.offer(exclude(self._scores(words), allowed)[:, None], 0)
        return best.ranked()

    def _scores(self, words: list[str]) -> np.ndarray:
        """The score of every document with content. [N] float32"""
        if self._index is None:
            return np.zeros(len(self), dtype=np.float32)
        known = self._index.get_tokens_ids(words)
        if self._rarity is None:
            return np.array(self._index.get_scores_from_ids(known), dtype=np.float32)
        scores = np.zeros(len(self), dtype=np.float32)
        columns = self._index.scores
        for word in known:
            own = slice(*columns["indptr"][word : word + 2])
            scores[columns["indices"][own]] += self._rarity[word] * columns["data"][own]
        return scores

    def _frequencies(self) -> dict[str, int]:
        """In how many documents of this segment each of its words stands."""
        if self._index is None:
            return {}
        counts = np.diff(self._index.scores["indptr"])
        return {word: int(counts[number]) for word, number in self._index.vocab_dict.items()}

    def _make_part_of(self, total: int, frequency: Mapping[str, int]) -> None:
        """Have words weigh what they weigh among `total` documents, in `frequency` of which they stand."""
        own = self._frequencies()
        self._rarity = np.ones(len(own), dtype=np.float32)
        for word, count in own.items():
            assert self._index is not None
            number = self._index.vocab_dict[word]
            self._rarity[number] = _idf(total, frequency[word]) / _idf(len(self), count)


def _idf(documents: int, frequency: int) -> float:
    """The inverse document frequency of bm25s' default, which is that of Lucene."""
    return math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


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
