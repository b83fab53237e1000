"""An index, opened: the segments of one version, searched together.

A document without content (see `sourcier.types.has_content`) is in no kind's part of a segment. It is ranked after all
others, with `EMPTY_SCORE`, when more hits are asked for than there are documents with content.

Shapes: Q queries, N documents with content of a segment, K columns of a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sourcier.indexes.arrays import map_array
from sourcier.indexes.documents import FILE, DocumentStore
from sourcier.indexes.ids import IdTable
from sourcier.indexes.kind import Segment
from sourcier.indexes.manifest import SegmentRecord
from sourcier.indexes.metadata import FILE as METADATA_FILE
from sourcier.indexes.metadata import Metadata, Types, joined
from sourcier.indexes.passages import FILE as PASSAGES_FILE
from sourcier.indexes.passages import Found, Passages, best_documents
from sourcier.indexes.ranking import checked_depth, no_results
from sourcier.indexes.sources import EMPTY_FILE, KIND_FOLDER
from sourcier.indexes.version import Version
from sourcier.indexes.where import Where, parse, refuse_unknown
from sourcier.types import EMPTY_SCORE, Document, Hits, SourcierError


class Index:
    """The documents of one version. Searches may run in several threads."""

    def __init__(self, version: Version, kind: type[Segment]) -> None:
        self._version = version
        self._kind = kind
        self.parts = [Part(version, record, kind) for record in version.manifest.segments]
        kind.join([part.segment for part in self.parts])
        self._count = version.manifest.documents
        #: The texts, where the index keeps them.
        self.documents = Documents(self.parts) if all(part.documents for part in self.parts) else None

    @property
    def kind(self) -> str:
        return self._kind.kind

    @property
    def version(self) -> str:
        """The name of the version that this reader opened and keeps."""
        return self._version.name

    @property
    def root(self) -> Path:
        """The folder of the index."""
        return self._version.root

    def check_model(self) -> None:
        """Raise `DamagedIndex` where the model that is kept in the index is not as it was written."""
        model = self._version.manifest.model
        if model is not None and model.folder is not None:
            self._version.check_contents(f"{model.folder}/")

    def __len__(self) -> int:
        """How many documents a search can find."""
        return self._count

    def search(self, queries: Any, k: int, *, where: Where | str | None = None, search: Any = None) -> Hits:
        """The `k` best documents of each query, or all where there are fewer; no hits for a query without content.

        `where`: a filter on metadata, see `sourcier.indexes.where`; documents that do not pass are no hits. `search`:
        what the kind takes as `Segment.Search`; its defaults otherwise. An approximate kind may find fewer documents
        than there are: `Hits.short` says for which queries.
        """
        search = self._kind.Search() if search is None else search
        allowed = self._allowed(where)
        depth = self._depth(k, allowed)
        asked = self.parts[0].segment.checked(queries)
        found = [
            part.best(asked, depth, rows, search) for part, rows in zip(self.parts, allowed, strict=True)
        ]
        hits = self._merged(found, depth)
        silent = self.parts[0].segment.silent(asked)
        hits.ids[silent], hits.scores[silent] = None, -np.inf
        hits.short = (hits.counts < depth) & ~silent
        return hits

    def depth(self, k: int, where: Where | str | None = None) -> int:
        """How many hits a query with content gets: `k`, or all documents that pass a filter where they are fewer."""
        return self._depth(k, self._allowed(where))

    def _depth(self, k: int, allowed: Sequence[np.ndarray | None]) -> int:
        return min(
            checked_depth(k), sum(part.count(rows) for part, rows in zip(self.parts, allowed, strict=True))
        )

    def _allowed(self, where: Where | str | None) -> list[np.ndarray | None]:
        """The rows [documents] bool of each part that may be hits, None for all."""
        where = parse(where) if isinstance(where, str) else where
        if where is None:
            return [part.alive for part in self.parts]
        types = joined(part.metadata.types for part in self.parts)
        refuse_unknown(where, set(types))
        return [part.passing(where, types) for part in self.parts]

    def _merged(self, found: Sequence[Found], depth: int) -> Hits:
        """The best of all parts; equal scores in the order of parts, then of rows."""
        together, part = found[0], np.zeros(found[0].rows.shape, dtype=np.int64)
        if len(found) > 1:
            together, part = _best_of_parts(found, depth)
        rows, scores, numbers = together
        hits = Hits(np.full(rows.shape, None, dtype=object), scores, self.version)
        if any(one.passages is not None for one in self.parts):
            hits.passages = np.full((*rows.shape, 2), -1, dtype=np.int64)
        for number, one in enumerate(self.parts):
            here = (part == number) & np.isfinite(hits.scores)
            hits.ids[here] = one.ids.names(rows[here])
            if hits.passages is not None and one.passages is not None:
                here &= numbers >= 0
                hits.passages[here] = one.passages.spans(numbers[here])
        return hits


def _best_of_parts(found: Sequence[Found], depth: int) -> tuple[Found, np.ndarray]:
    """The best of what several parts found, best first, and the number of the part of each. [Q, K] each"""
    scores = np.concatenate([one.scores for one in found], axis=1)
    part = np.repeat(np.arange(len(found)), [one.rows.shape[1] for one in found])
    best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    rows, numbers = (
        np.take_along_axis(np.concatenate(ones, axis=1), best, axis=1)
        for ones in ([one.rows for one in found], [one.numbers for one in found])
    )
    return Found(rows, np.take_along_axis(scores, best, axis=1), numbers), part[best]


class Part:
    """A segment of a version, with the ids of its rows, and those of them that are deleted."""

    def __init__(self, version: Version, record: SegmentRecord, kind: type[Segment]) -> None:
        folder = version.segment_folder(record)
        self.record = record
        self.segment = kind(folder / KIND_FOLDER, record)
        self.ids = IdTable(folder)
        self.documents = DocumentStore(folder) if version.file(record, FILE) else None
        self.metadata = Metadata(version.file(record, METADATA_FILE), self.documents)
        passages = version.file(record, PASSAGES_FILE)
        #: What of the documents was encoded; None where they are whole.
        self.passages = None if passages is None else Passages(map_array(passages), record.documents)
        self._rows = self.passages or _Rows(record.documents, map_array(folder / EMPTY_FILE))
        deleted = version.deleted(record)
        self.alive = None if deleted is None else ~deleted

    def count(self, rows: np.ndarray | None) -> int:
        """How many rows [documents] bool there are, None for all."""
        return self.record.documents if rows is None else int(np.count_nonzero(rows))

    def passing(self, where: Where, types: Types) -> np.ndarray:
        """Which documents pass a filter and are not deleted. [documents] bool

        `types`: what the fields of metadata hold in the whole index.
        """
        rows = self.metadata.passing(where, self.record.documents, types)
        return rows if self.alive is None else rows & self.alive

    def best(self, queries: Any, depth: int, rows: np.ndarray | None, search: Any) -> Found:
        """The best of some rows [documents] bool, None for all; fewer than `depth` where there are no more."""
        found = self._best_with_content(queries, depth, rows, search)
        empty = self._rows.without_content(rows)[: depth - found.rows.shape[1]]
        if not len(empty):
            return found
        room = ((0, 0), (0, len(empty)))
        return Found(
            np.concatenate([found.rows, np.broadcast_to(empty, (len(queries), len(empty)))], axis=1),
            np.pad(found.scores, room, constant_values=np.float32(EMPTY_SCORE)),
            np.pad(found.numbers, room, constant_values=-1),
        )

    def _best_with_content(self, queries: Any, depth: int, rows: np.ndarray | None, search: Any) -> Found:
        allowed = None if rows is None else self._rows.with_content(rows)
        count = len(self.segment) if allowed is None else int(np.count_nonzero(allowed))
        if not (depth and count):
            nothing = no_results(len(queries))
            return Found(nothing.rows, nothing.scores, nothing.rows)
        if self.passages is None:
            ranked = self.segment.best(queries, min(depth, count), allowed, search)
            return Found(self._rows.of_numbers(ranked.rows), ranked.scores, ranked.rows)
        filled = self.passages.filled if rows is None else rows & self.passages.filled
        return best_documents(
            lambda asked: self.segment.best(queries, asked, allowed, search),
            self.passages.of_numbers,
            passages=count,
            documents=int(np.count_nonzero(filled)),
            depth=depth,
        )

    def row(self, identifier: str) -> int | None:
        """The row of a document that is not deleted."""
        row = int(self.ids.rows([identifier])[0])
        return row if row >= 0 and (self.alive is None or self.alive[row]) else None

    def live_rows(self) -> np.ndarray:
        """Which rows are not deleted. [documents] bool"""
        return np.ones(self.record.documents, dtype=bool) if self.alive is None else self.alive

    def has_content(self) -> np.ndarray:
        """Which rows have content. [documents] bool"""
        return self._rows.filled

    def live_numbers(self) -> np.ndarray:
        """Which of the documents with content are not deleted. [N] bool"""
        return self._rows.with_content(self.live_rows())


class Documents:
    """The documents of an index that are not deleted, by id and one after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._stores = [(part, part.documents) for part in parts if part.documents is not None]
        self._ends = np.cumsum([int(np.count_nonzero(part.live_rows())) for part, _ in self._stores])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[Document]:
        for part, store in self._stores:
            for row in np.flatnonzero(part.live_rows()):
                yield store[int(row)]

    def __getitem__(self, place: int) -> Document:
        """The document in a place of the order in which they are gone through."""
        if not 0 <= place < len(self):
            raise IndexError(f"no document in place {place} of {len(self)}")
        number = int(np.searchsorted(self._ends, place, side="right"))
        part, store = self._stores[number]
        before = int(self._ends[number - 1]) if number else 0
        row = place - before
        return store[row if part.alive is None else int(np.flatnonzero(part.alive)[row])]

    def get(self, ids: Sequence[str]) -> list[Document]:
        """The documents of ids, in the order of the ids."""
        return [self._one(identifier) for identifier in ids]

    def _one(self, identifier: str) -> Document:
        for part, store in self._stores:
            row = part.row(identifier)
            if row is not None:
                return store[row]
        raise SourcierError(f"no document with the id '{identifier}' in the index")


class _Rows:
    """Rows of documents with content, which kinds number without gaps, and of those without."""

    def __init__(self, count: int, empty: np.ndarray) -> None:
        self._empty = empty
        self.filled = np.ones(count, dtype=bool)
        self.filled[empty] = False
        # How many documents with content stand before each empty one.
        self._before = empty - np.arange(len(empty))

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of documents with content, by their numbers; of -1 something that means nothing."""
        return numbers + np.searchsorted(self._before, numbers, side="right")

    def with_content(self, rows: np.ndarray) -> np.ndarray:
        """Of some rows [documents] bool: which of the documents with content they are. [N] bool"""
        return rows[self.filled]

    def without_content(self, rows: np.ndarray | None) -> np.ndarray:
        """Of some rows [documents] bool, None for all: those without content, rising."""
        return self._empty if rows is None else self._empty[rows[self._empty]]
