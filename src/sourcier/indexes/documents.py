"""The texts of an index: an Arrow file that is written in batches and read through a memory map.

documents.arrow       columns `id`, `title`, `text`, and `metadata` as JSON
documents.starts.npy  [batches + 1] int64: the first row of each batch, and the number of rows
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from sourcier.indexes.arrays import map_array, map_file, save_array
from sourcier.indexes.disk import writing
from sourcier.types import DataError, Document

FILE, _STARTS = "documents.arrow", "documents.starts.npy"
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("title", pa.large_string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("metadata", pa.large_string()),
    ]
)


class DocumentWriter:
    """Writes documents in the order of the index's rows, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with writing(folder / FILE):
            self._file = pa.OSFile(str(folder / FILE), "wb")
            self._writer = pa.ipc.new_file(self._file, _SCHEMA)
        self._starts = [0]

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch that `as_batch` or `batches` gave."""
        if batch.num_rows:
            with writing(self._folder / FILE):
                self._writer.write_batch(batch)
            self._starts.append(self._starts[-1] + batch.num_rows)

    def finish(self) -> None:
        self.close()
        save_array(self._folder / _STARTS, np.array(self._starts, dtype=np.int64))

    def close(self) -> None:
        """Close the file as it is."""
        if not self._file.closed:
            with writing(self._folder / FILE), closing(self._file):
                self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def as_batch(documents: Sequence[Document]) -> pa.RecordBatch:
    """Documents as a batch of the file, refused where a column cannot hold one."""
    rows = [_columns(document) for document in documents]
    columns = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
    return pa.record_batch(
        [pa.array(column, type=field.type) for column, field in zip(columns, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )


def digest(documents: Sequence[Document]) -> str:
    """A checksum of all that documents say."""
    columns = json.dumps([_columns(document) for document in documents])
    return blake2b(columns.encode("utf-8"), digest_size=16).hexdigest()


class DocumentStore:
    """The documents of a segment by row, mapped."""

    def __init__(self, folder: Path) -> None:
        self._starts = map_array(folder / _STARTS)
        self._reader = pa.ipc.open_file(map_file(folder / FILE))
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: int) -> Document:
        if not 0 <= row < len(self):
            raise IndexError(f"no document in row {row} of {len(self)}")
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return _document(self._batch(number), row - int(self._starts[number]))

    def batches(self, keep: np.ndarray | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `keep` [documents] bool, or all, batch by batch."""
        for number, (start, stop) in enumerate(pairwise(self._starts.tolist())):
            batch = self._batch(number)
            yield batch if keep is None else batch.filter(pa.array(keep[start:stop]))

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the columns of all rows, mapped."""
        with self._lock:
            return self._reader.read_all().column(name)

    def _batch(self, number: int) -> pa.RecordBatch:
        # Only the places of the columns are read here; the lock is there because a reader has one file position.
        with self._lock:
            return self._reader.get_batch(number)


def _document(batch: pa.RecordBatch, place: int) -> Document:
    identifier, title, text, metadata = (column[place].as_py() for column in batch.columns)
    return Document(identifier, text, title, json.loads(metadata) if metadata else {})


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
