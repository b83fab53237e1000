"""Which rows of an index's segments are deleted, while a new version is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sourcier.indexes.ids import IdTable
from sourcier.indexes.manifest import SegmentRecord
from sourcier.indexes.version import Version


class Marks:
    """The deleted rows of each segment of a version, and more."""

    def __init__(self, version: Version) -> None:
        self._records = version.manifest.segments
        self._ids = [IdTable(version.segment_folder(record)) for record in self._records]
        self._gone = [np.zeros(record.documents, dtype=bool) for record in self._records]
        for gone, record in zip(self._gone, self._records, strict=True):
            before = version.deleted(record)
            if before is not None:
                gone |= before

    def delete(self, ids: Sequence[str]) -> np.ndarray:
        """Mark documents as deleted; says which of the ids were those of a document. [ids] bool"""
        known = np.zeros(len(ids), dtype=bool)
        for table, gone in zip(self._ids, self._gone, strict=True):
            rows = table.rows(ids)
            alive = rows >= 0
            alive[alive] = ~gone[rows[alive]]
            gone[rows[alive]] = True
            known |= alive
        return known

    @property
    def records(self) -> list[SegmentRecord]:
        """The segments with the number of their deleted rows."""
        return [
            replace(record, deleted=int(np.count_nonzero(gone)))
            for record, gone in zip(self._records, self._gone, strict=True)
        ]

    @property
    def deleted(self) -> dict[str, np.ndarray]:
        """The deleted rows [documents] bool of the segments that have some, by name."""
        return {
            record.name: gone for record, gone in zip(self._records, self._gone, strict=True) if gone.any()
        }
