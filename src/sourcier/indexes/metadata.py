"""The metadata of a segment's documents as typed columns, for filters: an Arrow file that is mapped.

A field holds texts, true or false, whole numbers (of 64 bits), numbers, or lists of texts; whole numbers among others
become numbers. Of any other mixture, and of what is none of these, texts are kept as they are and the rest as its JSON,
all as texts. What a document does not say is null. A filter can also ask for `id` and `title`, which are the document's
own, whatever its metadata call so.

An index has several segments, and a field may have another type in each: a filter sees the type that holds both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sourcier.indexes.arrays import map_file
from sourcier.indexes.columns import passing
from sourcier.indexes.disk import writing
from sourcier.indexes.documents import DocumentStore
from sourcier.indexes.where import Where, fields

FILE = "metadata.arrow"
Types = dict[str, pa.DataType]

_LIST = pa.list_(pa.string())
#: Columns of the documents themselves.
_OWN: Types = {"id": pa.string(), "title": pa.large_string()}


def write_metadata(folder: Path, batches: Iterable[pa.RecordBatch], again: Iterable[pa.RecordBatch]) -> None:
    """Write the columns of documents; nothing where none has metadata.

    The same batches come twice: the types are found first.
    """
    types = joined(_types(values) for batch in batches for values in _values(batch))
    if not types:
        return
    schema = pa.schema(types.items())
    path = folder / FILE
    with writing(path), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in again:
            rows = _values(batch)
            columns = [_column([values.get(name) for values in rows], kind) for name, kind in types.items()]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def joined(types: Iterable[Types]) -> Types:
    """The types of fields that hold what all these hold."""
    found: Types = {}
    for name, kind in chain.from_iterable(one.items() for one in types):
        found[name] = _joined(found[name], kind) if name in found else kind
    return found


class Metadata:
    """The columns of a segment: those in a file, where there is one, and those of its documents."""

    def __init__(self, path: Path | None, documents: DocumentStore | None) -> None:
        self._table = None if path is None else pa.ipc.open_file(map_file(path)).read_all()
        self._documents = documents

    @property
    def types(self) -> Types:
        """The fields that a filter can ask for."""
        own = _OWN if self._documents else {}
        table = (
            {}
            if self._table is None
            else dict(zip(self._table.column_names, self._table.schema.types, strict=True))
        )
        return {**table, **own}

    def passing(self, where: Where, count: int, types: Mapping[str, pa.DataType]) -> np.ndarray:
        """Which of the segment's `count` documents pass a filter. [count] bool

        `types`: what the fields hold in the whole index.
        """
        there = self.types
        columns = {name: _as(self._column(name), types[name]) for name in fields(where) if name in there}
        return passing(where, columns, count)

    def _column(self, name: str) -> pa.ChunkedArray:
        if name in _OWN and self._documents:
            return self._documents.column(name)
        assert self._table is not None
        return self._table.column(name)


def _values(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The metadata of each document of a batch."""
    return [json.loads(text) if text else {} for text in batch.column("metadata").to_pylist()]


def _types(values: Mapping[str, Any]) -> Types:
    return {name: _type_of(value) for name, value in values.items() if value is not None}


def _type_of(value: Any) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -(2**63) <= value < 2**63 else pa.string()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return _LIST
    return pa.string()


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A type that holds the values of both."""
    if one == other:
        return one
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else pa.string()


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values of any types as a column of the type that holds them all."""
    if pa.types.is_string(kind):
        values = [None if value is None else _as_text(value) for value in values]
    elif pa.types.is_floating(kind):
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, type=kind)


def _as_text(value: Any) -> str:
    """A value in a column of texts; a whole number is written the same whether it stood among others or not."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return json.dumps(int(value) if whole else value, ensure_ascii=False)


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column as the type of the whole index."""
    return column if column.type == kind else pa.chunked_array([_column(column.to_pylist(), kind)])
