"""Long documents as passages, which are encoded one by one; a document scores by its best.

A passage has so many tokens of the model, or words where there is no model of ours to ask; the title goes before each
passage and counts. A cut falls between words where one ends in the second half of the passage.

Shapes: P passages of all documents.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from sourcier.indexes.manifest import Splitting
from sourcier.types import Document, Encoder, Side, SourcierError, has_content


@runtime_checkable
class Tokenizing(Protocol):
    """An encoder that tells what its tokens are."""

    def token_starts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The characters at which the tokens of each text start."""

    def room(self, side: Side) -> int:
        """How many tokens of a text are read."""


class Splitter:
    """Cuts documents into passages."""

    def __init__(self, splitting: Splitting, encoder: Encoder | None) -> None:
        if splitting.size < 1 or not 0 <= 2 * splitting.overlap <= splitting.size:
            raise SourcierError(
                f"passages of {splitting.size} that overlap by {splitting.overlap}: "
                "give a size of at least 1, and an overlap of at most half of it"
            )
        self._splitting = splitting
        self._tokenizing = encoder if isinstance(encoder, Tokenizing) else None
        if self._tokenizing and splitting.size > self._tokenizing.room("document"):
            raise SourcierError(
                f"passages of {splitting.size} tokens are longer than what the model reads: "
                f"ask for at most {self._tokenizing.room('document')}"
            )

    def split(self, documents: Sequence[Document]) -> tuple[np.ndarray, list[str]]:
        """The passages that have content: number of the document, start and stop in its text [P, 3]; and their texts,
        with titles.
        """
        table: list[tuple[int, int, int]] = []
        texts: list[str] = []
        titles = [len(starts) for starts in self._units([document.title for document in documents])]
        units = self._units([document.text for document in documents])
        for number, document in enumerate(documents):
            for start, stop in self._spans(document.text, units[number], titles[number]):
                content = Document(document.id, document.text[start:stop], document.title).content
                if has_content(content):
                    table.append((number, start, stop))
                    texts.append(content)
        return np.array(table, dtype=np.int32).reshape(-1, 3), texts

    def _units(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Where the units start that a passage has so many of."""
        if self._tokenizing:
            return self._tokenizing.token_starts(texts)
        return [
            np.array([word.start() for word in re.finditer(r"\S+", text)], dtype=np.int64) for text in texts
        ]

    def _spans(self, text: str, starts: np.ndarray, title: int) -> list[tuple[int, int]]:
        """Where the passages of a text start and stop. `title`: how many units that has."""
        size, overlap = self._splitting.size, self._splitting.overlap
        size = max(size - title, (size + 1) // 2)
        if len(starts) <= size:
            return [(0, len(text))]
        opens = [
            start == 0 or text[start - 1].isspace() or text[start].isspace() for start in starts.tolist()
        ]
        places = [*starts.tolist(), len(text)]
        spans = [(places[first], places[end]) for first, end in windows(opens, size, min(overlap, size // 2))]
        trimmed = [_trimmed(text, start, stop) for start, stop in spans]
        # A passage that says nothing adds nothing to a title that stands before the others.
        return [span for span in trimmed if has_content(text[slice(*span)])] or trimmed[:1]


def windows(opens: Sequence[bool], size: int, overlap: int) -> list[tuple[int, int]]:
    """First unit and end of each passage of at most `size` units; together they hold all.

    `opens`: whether a unit begins a word. Each passage begins `overlap` units before the end of the one before, or
    up to twice as many, so that it begins with a word; all are of about the same size.
    """
    count = -(-(len(opens) - overlap) // (size - overlap))
    size = -(-(len(opens) - overlap) // count) + overlap
    found: list[tuple[int, int]] = []
    start = 0
    while len(opens) - start > size:
        stop = _word_start(opens, start + size, least=start + max(size // 2, overlap) + 1)
        found.append((start, stop))
        start = _word_start(opens, stop - overlap, least=max(start + 1, stop - 2 * overlap))
    return [*found, (start, len(opens))]


def _word_start(opens: Sequence[bool], place: int, least: int) -> int:
    """The last unit up to `place` that begins a word, where there is one from `least` on."""
    return next((one for one in range(place, least - 1, -1) if opens[one]), place)


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    """A span without the spaces at its ends."""
    passage = text[start:stop]
    left = len(passage) - len(passage.lstrip())
    return start + left, max(start + left, start + len(passage.rstrip()))
