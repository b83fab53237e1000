"""Where the documents of a new segment come from, and how one is written from them.

A build takes them from the chunks that it spooled, a compaction from the segments that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sourcier.indexes.arrays import ArrayWriter
from sourcier.indexes.disk import make_folder
from sourcier.indexes.documents import DocumentWriter
from sourcier.indexes.ids import IdWriter
from sourcier.indexes.kind import Chunks, Segment
from sourcier.indexes.manifest import SegmentRecord
from sourcier.indexes.metadata import write_metadata
from sourcier.indexes.passages import FILE as PASSAGES_FILE

#: Rows of documents without content: [E] int64, rising.
EMPTY_FILE = "empty.npy"
#: The folder of what the kind writes.
KIND_FOLDER = "kind"


@dataclass(frozen=True)
class Rows:
    """Some documents in order, apart from their encodings."""

    ids: Sequence[str]
    #: Which have anything to match, and so an encoding. [documents] bool
    content: np.ndarray
    #: Their texts; None where the index keeps none.
    documents: Iterable[pa.RecordBatch] | None
    #: What was encoded of those with content, as `passages` keeps it; None where they are whole. [P, 3]
    passages: np.ndarray | None = None


class Source(Protocol):
    """Documents for a segment."""

    def rows(self) -> Iterator[Rows]:
        """All documents, some at a time."""

    @property
    def chunks(self) -> Chunks:
        """The encodings of those with content, in the same order."""


def write_segment(
    folder: Path, source: Source, kind: type[Segment], build: Any, like: Segment | None
) -> SegmentRecord:
    """Write a segment into an empty folder; memory is bounded by what the source gives at a time, and by the kind."""
    documents, empty = _write_rows(folder, source)
    passages = _write_passages(folder, source)
    write_metadata(folder, _texts(source), _texts(source))
    make_folder(folder / KIND_FOLDER)
    written = kind.write(folder / KIND_FOLDER, source.chunks, build, like)
    return SegmentRecord(
        **vars(written), name=folder.name, documents=documents, empty=empty, passages=passages
    )


def _texts(source: Source) -> Iterator[pa.RecordBatch]:
    return (batch for rows in source.rows() for batch in rows.documents or ())


def _write_rows(folder: Path, source: Source) -> tuple[int, int]:
    """Ids, texts and rows without content; gives how many documents there are, and how many without content."""
    ids, empty, texts = IdWriter(folder), ArrayWriter(folder / EMPTY_FILE, np.int64), None
    count = 0
    try:
        for rows in source.rows():
            missing = np.flatnonzero(~rows.content)
            empty.append(missing + len(ids))
            count += len(missing)
            ids.add(rows.ids)
            if rows.documents is not None:
                texts = texts or DocumentWriter(folder)
                for batch in rows.documents:
                    texts.add(batch)
        ids.finish()
        if texts is not None:
            texts.finish()
        return len(ids), count
    finally:
        ids.close()
        empty.close()
        if texts is not None:
            texts.close()


def _write_passages(folder: Path, source: Source) -> int:
    """Which passages are of which document; gives how many there are, 0 and no file where documents are whole."""
    table, before, count = None, 0, 0
    try:
        for rows in source.rows():
            if rows.passages is not None:
                table = table or ArrayWriter(folder / PASSAGES_FILE, np.int32, (3,))
                table.append(rows.passages + np.array([before, 0, 0]))
                count += len(rows.passages)
            before += len(rows.ids)
        return count
    finally:
        if table is not None:
            table.close()
