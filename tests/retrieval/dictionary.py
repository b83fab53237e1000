"""What an index should be: a dictionary of documents, in the order in which they came, all scored by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from retrieval.words import SCORES, WordEncoder, bm25, words_of

from sourcier.indexes.manifest import Splitting
from sourcier.retrieval.passages import Splitter
from sourcier.types import EMPTY_SCORE, Document, has_content

Span = tuple[int, int]
NO_SPAN: Span = (-1, -1)


class Unit(NamedTuple):
    """What of a document is scored: a passage, or all of it."""

    span: Span
    text: str


class Scored(NamedTuple):
    """A document as an answer to a query, with the scores of its passages."""

    id: str
    score: float
    spans: dict[Span, float]

    @property
    def span(self) -> Span:
        """Of the best passage; the first of equal ones."""
        return max(self.spans, key=lambda span: self.spans[span], default=NO_SPAN)


@dataclass
class Dictionary:
    """Documents by id, in passages where `splitting` says how. Which passages are cut is that module's own matter.

    `segments` are those of the index, with what was deleted: BM25 counts it until the index is compacted.
    """

    encoder: WordEncoder | None
    splitting: Splitting | None
    documents: dict[str, Document] = field(default_factory=dict)
    segments: list[list[str]] = field(default_factory=list)
    _segment_of: dict[str, int] = field(default_factory=dict)

    def add(self, documents: Sequence[Document]) -> None:
        self.segments.append([unit.text for document in documents for unit in self.units(document)])
        for document in documents:
            self.documents.pop(document.id, None)
            self.documents[document.id] = document
            self._segment_of[document.id] = len(self.segments) - 1

    def delete(self, ids: Sequence[str]) -> tuple[int, list[str]]:
        """How many were there, and which were not."""
        wanted = list(dict.fromkeys(ids))
        unknown = [one for one in wanted if one not in self.documents]
        for one in wanted:
            self.documents.pop(one, None)
        return len(wanted) - len(unknown), unknown

    def compact(self) -> None:
        documents = list(self.documents.values())
        self.segments, self.documents = [], {}
        self.add(documents)

    def units(self, document: Document) -> list[Unit]:
        """What of a document has anything to match."""
        if self.splitting is None:
            found = [Unit((0, 0), document.content)] if has_content(document.content) else []
        else:
            table, texts = Splitter(self.splitting, None).split([document])
            found = [
                Unit((start, stop), text)
                for (_, start, stop), text in zip(table.tolist(), texts, strict=True)
            ]
        if self.encoder is None or self.encoder.family != "colbert":
            return found
        # There is no best token of none; term weights and sums of none are 0.
        return [unit for unit in found if _entries(self.encoder, unit.text)]

    def answer(self, query: str, passes: Callable[[Document], bool]) -> list[Scored]:
        """All documents that pass, best first; nothing for a query that has nothing to match with."""
        if self._is_silent(query):
            return []
        found = [self._scored(query, document) for document in self.documents.values() if passes(document)]
        return sorted(found, key=lambda one: -one.score)

    def _is_silent(self, query: str) -> bool:
        if not has_content(query):
            return True
        if self.encoder is None:
            return not words_of(query)
        return self.encoder.family != "dense" and not _entries(self.encoder, query)

    def _scored(self, query: str, document: Document) -> Scored:
        units = self.units(document)
        if not units:
            return Scored(document.id, float(np.float32(EMPTY_SCORE)), {})
        texts = [unit.text for unit in units]
        if self.encoder is None:
            segment = self.segments[self._segment_of[document.id]]
            scores = bm25(query, texts, segment, [text for one in self.segments for text in one])
        else:
            asked = self.encoder.encode([query], "query")
            scores = SCORES[self.encoder.family](asked, self.encoder.encode(texts, "document"))[0]
        spans = {unit.span: float(score) for unit, score in zip(units, scores, strict=True)}
        return Scored(document.id, max(spans.values()), spans)


def _entries(encoder: WordEncoder, text: str) -> int:
    """How many terms or tokens a text has."""
    return int(encoder.encode([text], "document").offsets[-1])
