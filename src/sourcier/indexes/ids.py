"""The ids of an index's documents, as the user gave them: row to id and id to row, memory-mapped.

    ids.utf8         the ids, one after the other
    ids.offsets.npy  [N + 1] int64: id i is the bytes `offsets[i]:offsets[i + 1]`
    ids.hashes.npy   [N] 16 bytes: a hash of each id, in rising order
    ids.rows.npy     [N] int64: the row that each of those hashes belongs to

Of 128 bits no two ids share a hash: with a thousand million ids the chance is one in 10^21. So equal hashes are
taken for equal ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa

from sourcier.indexes.arrays import ArrayWriter, map_array, map_file, save_array
from sourcier.indexes.disk import writing
from sourcier.indexes.version import Version
from sourcier.types import DataError

_BYTES, _OFFSETS, _HASHES, _ROWS = "ids.utf8", "ids.offsets.npy", "ids.hashes.npy", "ids.rows.npy"
_HASH = np.dtype("S16")
#: Ids that are decoded one by one: Arrow costs more to call than that.
_FEW = 128
#: Ids that are decoded together where all are gone through, which bounds the memory.
_TOGETHER = 65_536


class KnownIds:
    """Refuses an id that came before.

    It holds 24 bytes a document in memory: sorted runs of hashes with their rows. A run is longer than the next one,
    so there are few of them to look a new id up in.
    """

    def __init__(self) -> None:
        self._count = 0
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []

    def __len__(self) -> int:
        return self._count

    def add(self, ids: Sequence[str]) -> list[bytes]:
        """Take the ids of the next rows; gives them in UTF-8."""
        encoded = [_encode(identifier, row) for row, identifier in enumerate(ids, start=self._count)]
        hashes = _hashes(encoded)
        self._refuse_known(ids, hashes)
        self._push(hashes)
        self._count += len(ids)
        return encoded

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of all ids in rising order, and the row of each."""
        return _merge(self._runs)

    def _refuse_known(self, ids: Sequence[str], hashes: np.ndarray) -> None:
        here: set[str] = set()
        earlier = np.zeros(len(ids), dtype=bool)
        for known, _ in self._runs:
            earlier |= known[np.searchsorted(known, hashes).clip(max=len(known) - 1)] == hashes
        for number, identifier in enumerate(ids):
            if earlier[number] or identifier in here:
                raise DataError(
                    f"document in row {self._count + number}: its id '{identifier}' came before: ids must differ"
                )
            here.add(identifier)

    def _push(self, hashes: np.ndarray) -> None:
        if not len(hashes):
            return
        rows = np.arange(self._count, self._count + len(hashes), dtype=np.int64)
        self._runs.append(_merge([(hashes, rows)]))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= len(self._runs[-1][0]):
            self._runs[-2:] = [_merge(self._runs[-2:])]


class IdWriter:
    """Writes ids in chunks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with writing(folder / _BYTES):
            self._bytes = (folder / _BYTES).open("wb")
        self._offsets = ArrayWriter(folder / _OFFSETS, np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._end = 0
        self._known = KnownIds()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, ids: Sequence[str]) -> None:
        """Append the ids of the next rows."""
        encoded = self._known.add(ids)
        ends = self._end + np.cumsum([len(one) for one in encoded], dtype=np.int64)
        with writing(self._folder / _BYTES):
            self._bytes.write(b"".join(encoded))
        self._offsets.append(ends)
        self._end = int(ends[-1]) if len(ends) else self._end

    def finish(self) -> None:
        self.close()
        hashes, rows = self._known.table()
        save_array(self._folder / _HASHES, hashes)
        save_array(self._folder / _ROWS, rows)

    def close(self) -> None:
        """Close the files as they are."""
        with closing(self._offsets), writing(self._folder / _BYTES):
            self._bytes.close()


class IdTable:
    """The ids of a committed version."""

    def __init__(self, folder: Path) -> None:
        offsets = map_array(folder / _OFFSETS)
        self._count = len(offsets) - 1
        # A file without a byte (an index without documents) cannot be mapped.
        size = int(offsets[-1])
        texts = map_file(folder / _BYTES).read_buffer(size) if size else pa.py_buffer(b"")
        self._ids = pa.LargeStringArray.from_buffers(self._count, pa.py_buffer(offsets), texts)
        self._offsets, self._texts = offsets, memoryview(texts)
        self._hashes = map_array(folder / _HASHES)
        self._rows = map_array(folder / _ROWS)

    def __len__(self) -> int:
        return self._count

    def names(self, rows: np.ndarray) -> np.ndarray:
        """The ids of rows, in an object array of the same shape."""
        if rows.size <= _FEW:
            return self._few_names(rows)
        flat = self._ids.take(pa.array(rows.reshape(-1), type=pa.int64()))
        return flat.to_numpy(zero_copy_only=False).reshape(rows.shape)

    def _few_names(self, rows: np.ndarray) -> np.ndarray:
        names = np.empty(rows.size, dtype=object)
        flat = rows.reshape(-1)
        starts, stops = self._offsets[flat].tolist(), self._offsets[flat + 1].tolist()
        for place, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            names[place] = str(self._texts[start:stop], "utf-8")
        return names.reshape(rows.shape)

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """The rows of ids; -1 where an id is not in the index. [number of ids] int64"""
        if not self._count:
            return np.full(len(ids), -1, dtype=np.int64)
        hashes = _hashes([identifier.encode("utf-8", "surrogatepass") for identifier in ids])
        places = np.searchsorted(self._hashes, hashes).clip(max=self._count - 1)
        return np.where(self._hashes[places] == hashes, self._rows[places], -1)


def document_ids(version: Version) -> Iterator[str]:
    """The ids of the documents of a version that are not deleted; nothing else of it is read."""
    for record in version.manifest.segments:
        table, deleted = IdTable(version.segment_folder(record)), version.deleted(record)
        for start in range(0, len(table), _TOGETHER):
            rows = np.arange(start, min(start + _TOGETHER, len(table)))
            yield from table.names(rows if deleted is None else rows[~deleted[rows]])


def _encode(identifier: object, row: int) -> bytes:
    if not isinstance(identifier, str):
        raise DataError(f"document in row {row}: its id must be a text, not {identifier!r}")
    if not identifier.strip():
        raise DataError(f"document in row {row}: its id {identifier!r} is empty: give each document one")
    try:
        return identifier.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"document in row {row}: its id {identifier!r} is not valid Unicode") from error


def _hashes(encoded: Sequence[bytes]) -> np.ndarray:
    digests = b"".join(blake2b(one, digest_size=_HASH.itemsize).digest() for one in encoded)
    return np.frombuffer(digests, dtype=_HASH)


def _merge(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Runs of hashes and rows as one, sorted by hash."""
    hashes = np.concatenate([np.empty(0, dtype=_HASH), *(run[0] for run in runs)])
    rows = np.concatenate([np.empty(0, dtype=np.int64), *(run[1] for run in runs)])
    order = np.argsort(hashes, kind="stable")
    return hashes[order], rows[order]
