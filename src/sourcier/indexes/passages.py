"""Documents that were encoded in passages: which passage is of which document, and a document's best one.

A kind numbers passages from 0 without gaps, as it numbers documents where they are whole. Ids, texts, metadata and
deletions are of documents.

    passages.npy  [P, 3] int32: the row of the document, and where in its text the passage starts and stops (characters)

Shapes: P passages of a segment, N documents, Q queries, K columns of a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sourcier.indexes.ranking import Ranked

FILE = "passages.npy"


class Found(NamedTuple):
    """Documents of a segment, best first. `rows` and `scores` [Q, K]; `numbers` [Q, K] of their best passages.

    Where documents are whole, `numbers` are those of the documents. -1 where there is none.
    """

    rows: np.ndarray
    scores: np.ndarray
    numbers: np.ndarray


class Passages:
    """The passages of a segment: `table` is what the file holds, `count` how many documents there are."""

    def __init__(self, table: np.ndarray, count: int) -> None:
        self._table = table
        #: Which documents have a passage. [N] bool
        self.filled = np.zeros(count, dtype=bool)
        self.filled[table[:, 0]] = True

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of the documents that passages are of; of -1 something that means nothing."""
        return self._table[numbers, 0].astype(np.int64)

    def spans(self, numbers: np.ndarray) -> np.ndarray:
        """Where passages start and stop. [..., 2]"""
        return self._table[numbers, 1:]

    def with_content(self, rows: np.ndarray) -> np.ndarray:
        """Which passages are of some documents [N] bool. [P] bool"""
        return rows[self._table[:, 0]]

    def without_content(self, rows: np.ndarray | None) -> np.ndarray:
        """Of some documents [N] bool, None for all: those without a passage, rising."""
        return np.flatnonzero(~self.filled if rows is None else rows & ~self.filled)

    def kept(self, rows: np.ndarray) -> np.ndarray:
        """The table of the passages of some documents [N] bool, with rows counted among these. [P, 3]"""
        kept = self._table[self.with_content(rows)]
        kept[:, 0] = (np.cumsum(rows) - 1)[kept[:, 0]]
        return kept


def best_documents(
    search: Callable[[int], Ranked],
    of_numbers: Callable[[np.ndarray], np.ndarray],
    passages: int,
    documents: int,
    depth: int,
) -> Found:
    """The `depth` documents with the best passages, or all where there are fewer; equal scores by rising row.

    `search` finds so many passages; there are `passages` of `documents` documents. More are asked for until each query
    has its documents, or all that it finds.
    """
    depth = min(depth, documents)
    asked = min(passages, depth * -(-passages // documents))
    while True:
        ranked = search(asked)
        found = first_of_each(ranked, of_numbers(ranked.rows), depth)
        complete = np.isfinite(found.scores).sum(axis=1) == depth
        exhausted = np.isfinite(ranked.scores).sum(axis=1) < asked
        if asked == passages or (complete | exhausted).all():
            return found
        asked = min(passages, 2 * asked)


def first_of_each(ranked: Ranked, rows: np.ndarray, depth: int) -> Found:
    """Of ranked passages those that come first of their documents, `depth` of each query. `rows` [Q, K] of documents"""
    shape = (len(rows), depth)
    found = Found(
        np.full(shape, -1, dtype=np.int64),
        np.full(shape, -np.inf, dtype=np.float32),
        np.full(shape, -1, dtype=np.int64),
    )
    for query, scores in enumerate(ranked.scores):
        count = int(np.isfinite(scores).sum())
        places = np.sort(np.unique(rows[query, :count], return_index=True)[1])[:depth]
        found.rows[query, : len(places)] = rows[query, places]
        found.scores[query, : len(places)] = scores[places]
        found.numbers[query, : len(places)] = ranked.rows[query, places]
    return found
