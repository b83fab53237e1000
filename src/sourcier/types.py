"""What passes between the rooms of the house: documents, hits, and what an encoder, an index and a retriever are.

numpy alone is needed here, so that a client of a retriever runs where PyTorch is not installed.

Shapes: Q queries, K columns of a result.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sourcier.encodings import Encoding

Side = Literal["query", "document"]

#: The score of a document without content: finite, and below whatever a document with content can reach.
EMPTY_SCORE = float(np.finfo(np.float32).min)


class SourcierError(Exception):
    """An error that a user can mend: its text is one line that names the place and what to do."""


class DataError(SourcierError):
    """A file that cannot be read as what it should be; the text starts with `path:line:` where there is a line."""


class NotWritten(SourcierError):
    """A file that cannot be written, as on a full disk; the text starts with its path."""


@dataclass(frozen=True, slots=True)
class Document:
    """One entry of a corpus: an id of the user's, a text, and whatever else the user keeps with it."""

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What is encoded: title and text, parted by a space; whichever is there where one is missing."""
        return f"{self.title} {self.text}" if self.title and self.text else self.title or self.text


class Hit(NamedTuple):
    """One document that answers one query."""

    id: str
    score: float
    document: Document | None = None
    #: The text of the document's best passage, where it was encoded in passages.
    passage: str | None = None


@dataclass(slots=True)
class Hits:
    """Ranked answers to a batch of queries, best first, as two matrices and a list-like view of them.

    `ids` [Q, K] object array of strings, None where a query has fewer than K hits (always at the end of a row);
    `scores` [Q, K] float32, -inf in the same places;
    `version` of the index that answered, where it has one;
    `documents`, a row of documents a query where they were asked for;
    `passages` [Q, K, 2], where the best passage of each document starts and stops in its text, -1 where there is none;
    None where documents are encoded whole;
    `short` [Q] bool, where an approximate index found fewer documents than there are and were asked for.
    `hits[i]` is the list of the i-th query's hits without the empty places.
    """

    ids: np.ndarray
    scores: np.ndarray
    version: str | None = None
    documents: list[list[Document]] | None = None
    short: np.ndarray | None = None
    passages: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> list[Hit]:
        found = int(self.counts[row])
        documents: Sequence[Document | None] = self.documents[row] if self.documents else [None] * found
        return [
            Hit(
                self.ids[row, rank],
                float(self.scores[row, rank]),
                documents[rank],
                self._passage(row, rank, documents[rank]),
            )
            for rank in range(found)
        ]

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[row] for row in range(len(self)))

    def _passage(self, row: int, rank: int, document: Document | None) -> str | None:
        if document is None or self.passages is None or self.passages[row, rank, 0] < 0:
            return None
        start, stop = self.passages[row, rank].tolist()
        return document.text[start:stop]

    @property
    def counts(self) -> np.ndarray:
        """How many hits each query has. [Q]"""
        return np.asarray(np.isfinite(self.scores).sum(axis=1))

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[tuple[str, float]]], version: str | None = None) -> Hits:
        """Hits from one list of (id, score) a query, best first, of any lengths."""
        width = max((len(row) for row in rows), default=0)
        ids = np.full((len(rows), width), None, dtype=object)
        scores = np.full((len(rows), width), -np.inf, dtype=np.float32)
        for number, row in enumerate(rows):
            for rank, (identifier, score) in enumerate(row):
                ids[number, rank], scores[number, rank] = identifier, score
        return cls(ids, scores, version)


@runtime_checkable
class Encoder(Protocol):
    """Turns texts into an encoding of its family."""

    @property
    def family(self) -> str: ...

    def encode(
        self, texts: Sequence[str], side: Side, *, batch_size: int = 32, progress: bool = False
    ) -> Encoding: ...


@runtime_checkable
class Index(Protocol):
    """Finds the best rows of a collection for encoded queries (for BM25: for their texts)."""

    @property
    def kind(self) -> str: ...

    def __len__(self) -> int: ...

    def search(self, queries: Any, k: int) -> Hits: ...


@runtime_checkable
class Retriever(Protocol):
    """Answers texts with ranked documents, now or later."""

    def search(self, queries: Sequence[str], k: int = 10) -> Hits: ...

    def submit(self, queries: Sequence[str], k: int = 10) -> Future[Hits]: ...

    def close(self) -> None: ...


def has_content(text: str) -> bool:
    """Whether a text holds anything to match: a letter, mark, number or symbol, not only spaces and punctuation."""
    return any(unicodedata.category(character)[0] in "LMNS" for character in text)
