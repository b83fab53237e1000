"""The texts of an index: an Arrow file that is written in batches and read through a memory map.

Columns: `id`, `title`, `text`, and `metadata` as JSON. Every batch but the last has the same number of rows, so the
place of a row follows from its number.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa

from sourcier.indexes.ids import IdTable
from sourcier.types import DataError, Document, SourcierError

FILE = "documents.arrow"
_BATCH_ROWS = 1024
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("title", pa.large_string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("metadata", pa.large_string()),
    ]
)


class DocumentWriter:
    """Writes documents in the order of the index's rows, a batch of them in memory at a time."""

    def __init__(self, folder: Path) -> None:
        self._file = pa.OSFile(str(folder / FILE), "wb")
        self._writer = pa.ipc.new_file(self._file, _SCHEMA)
        self._waiting: list[Document] = []

    def add(self, documents: Sequence[Document]) -> None:
        self._waiting.extend(documents)
        while len(self._waiting) >= _BATCH_ROWS:
            self._write(self._waiting[:_BATCH_ROWS])
            del self._waiting[:_BATCH_ROWS]

    def finish(self) -> None:
        if self._waiting:
            self._write(self._waiting)
        self.close()

    def close(self) -> None:
        """Close the file as it is; a build that is given up leaves its last documents out."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, documents: Sequence[Document]) -> None:
        rows = [_columns(document) for document in documents]
        columns = [
            pa.array(column, type=field.type)
            for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))


class DocumentStore:
    """The documents of a committed version, by row and by id."""

    def __init__(self, folder: Path) -> None:
        self._ids = IdTable(folder)
        self._reader = pa.ipc.open_file(pa.memory_map(str(folder / FILE)))
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: int) -> Document:
        if not 0 <= row < len(self):
            raise IndexError(f"no document in row {row} of {len(self)}")
        batch = self._batch(row // _BATCH_ROWS)
        identifier, title, text, metadata = (column[row % _BATCH_ROWS].as_py() for column in batch.columns)
        return Document(identifier, text, title, json.loads(metadata) if metadata else {})

    def __iter__(self) -> Iterator[Document]:
        return (self[row] for row in range(len(self)))

    def get(self, ids: Sequence[str]) -> list[Document]:
        """The documents of ids, in the order of the ids."""
        found = self._ids.rows(ids)
        for identifier, row in zip(ids, found, strict=True):
            if row < 0:
                raise SourcierError(f"no document with the id '{identifier}' in the index")
        return [self[int(row)] for row in found]

    def _batch(self, number: int) -> pa.RecordBatch:
        # Only the places of the columns are read here; the lock is there because a reader has one file position.
        with self._lock:
            return self._reader.get_batch(number)


def _columns(document: Document) -> tuple[str, str, str, str | None]:
    """A document as the values of the columns, refused where a column cannot hold it."""
    try:
        metadata = (
            json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
            if document.metadata
            else None
        )
    except (TypeError, ValueError) as error:
        raise DataError(
            f"document '{document.id}': its metadata cannot be written as JSON: {error}"
        ) from error
    columns = (document.id, document.title, document.text, metadata)
    for name, value in zip(_SCHEMA.names, columns, strict=True):
        if value is not None and not _is_unicode(value):
            raise DataError(
                f"document '{document.id}': its {name} is not valid Unicode (half a surrogate pair)"
            )
    return columns


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
