"""What changes an index without new documents: deleting some, and putting its segments together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sourcier.config import from_dict
from sourcier.indexes.directory import NewVersion
from sourcier.indexes.index import Index
from sourcier.indexes.kind import Segment
from sourcier.indexes.kinds import kind_class
from sourcier.indexes.marks import Marks
from sourcier.indexes.sources import Rows, write_segment
from sourcier.indexes.version import Version


@dataclass(frozen=True)
class Deletion:
    """What deleting did. Where no id was known there is no new version."""

    version: str
    deleted: int
    unknown: list[str]


def delete(root: str | os.PathLike[str], ids: Sequence[str]) -> Deletion:
    """Delete documents by id. The others keep their ids; ids that the index does not hold are reported."""
    wanted = list(dict.fromkeys(ids))
    with NewVersion(root) as new:
        before = new.existing
        marks = Marks(before)
        known = marks.delete(wanted)
        unknown = [identifier for identifier, one in zip(wanted, known, strict=True) if not one]
        if known.any():
            before = new.commit(before.manifest.description, marks.records, marks.deleted)
        return Deletion(before.name, int(np.count_nonzero(known)), unknown)


def compact(root: str | os.PathLike[str]) -> Version:
    """Write the documents that are not deleted as one segment; nothing where they are that already."""
    with NewVersion(root) as new:
        before = new.existing
        manifest = before.manifest
        if len(manifest.segments) == 1 and not manifest.segments[0].deleted:
            return before
        kind = kind_class(manifest.kind)
        index = Index(before, kind)
        build: Any = from_dict(kind.Build, manifest.build, where=str(before.folder))
        largest = max(index.parts, key=lambda part: part.record.documents).segment
        record = write_segment(new.segment_folder, _Alive(index), kind, build, largest)
        return new.commit(manifest.description, [record], {})


class _Alive:
    """The documents of an index that are not deleted, as the source of a segment."""

    def __init__(self, index: Index) -> None:
        self._parts = index.parts

    def rows(self) -> Iterator[Rows]:
        for part in self._parts:
            alive = part.live_rows()
            kept = np.flatnonzero(alive)
            content = part.has_content()[kept]
            documents = None if part.documents is None else part.documents.batches(alive)
            passages = None if part.passages is None else part.passages.kept(alive)
            yield Rows(part.ids.names(kept).tolist(), content, documents, passages)

    @property
    def chunks(self) -> _AliveChunks:
        return _AliveChunks([(part.segment, part.live_numbers()) for part in self._parts])


class _AliveChunks:
    """The encodings of documents that are not deleted, segment by segment."""

    def __init__(self, segments: Sequence[tuple[Segment, np.ndarray]]) -> None:
        self._segments = segments

    def __iter__(self) -> Iterator[Any]:
        for segment, keep in self._segments:
            if keep.any():
                yield from segment.chunks(keep)

    def __len__(self) -> int:
        return sum(int(np.count_nonzero(keep)) for _, keep in self._segments)
