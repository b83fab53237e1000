"""Builds an index of any kind: ids and encodings come in chunks, and become one version that is committed whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from sourcier.indexes.arrays import ArrayWriter
from sourcier.indexes.directory import Description, ModelReference, NewVersion, Version
from sourcier.indexes.ids import IdWriter
from sourcier.indexes.store import EMPTY_FILE, StoreWriter


class IndexWriter:
    """An index in the making. Nothing of it is visible before `finish`; without it, nothing of it remains.

    `folder` is that of the new version: other files that are written there, like the texts, become part of it.
    """

    def __init__(self, kind: str, store: type[StoreWriter], new: NewVersion, family: str | None) -> None:
        self.kind, self.family = kind, family
        self.model: ModelReference | None = None
        self._new = new
        self._ids = IdWriter(new.folder)
        self._empty = ArrayWriter(new.folder / EMPTY_FILE, np.int64)
        self._empty_count = 0
        self._store = store(new.folder)

    @property
    def folder(self) -> Path:
        return self._new.folder

    @property
    def directory(self) -> NewVersion:
        return self._new

    def add(self, ids: Sequence[str], encoding: Any, content: np.ndarray | None = None) -> None:
        """Append documents. `content` [documents] bool is False where one has nothing to match; the encoding (for
        BM25: the list of texts) holds the rows of the others alone.
        """
        content = np.ones(len(ids), dtype=bool) if content is None else np.array(content, dtype=bool)
        if len(content) != len(ids) or len(encoding) != np.count_nonzero(content):
            raise ValueError(
                f"an encoding of {len(encoding)} rows for {len(ids)} ids "
                f"of which {np.count_nonzero(content)} are of documents with content"
            )
        first_row = len(self._ids)
        self._ids.add(ids)
        encoded = [identifier for identifier, has_content in zip(ids, content, strict=True) if has_content]
        content[content] = self._store.add(encoded, encoding)
        self._append_empty(np.flatnonzero(~content) + first_row)

    def add_empty(self, ids: Sequence[str]) -> None:
        """Append documents of which none has content."""
        first_row = len(self._ids)
        self._ids.add(ids)
        self._append_empty(np.arange(first_row, len(self._ids)))

    def __len__(self) -> int:
        return len(self._ids)

    def finish(self) -> Version:
        """Complete the files and make the version the one that readers open."""
        counts, settings = self._store.finish()
        self._ids.finish()
        self._empty.close()
        return self._new.commit(
            Description(
                kind=self.kind,
                family=self.family,
                model=self.model,
                dimensions=self._store.dimensions,
                counts={"documents": len(self._ids), "empty": self._empty_count, **counts},
                settings=settings,
            )
        )

    def abandon(self) -> None:
        """Remove what was written; nothing after `finish`."""
        self._store.close()
        self._ids.close()
        self._empty.close()
        self._new.abandon()

    def _append_empty(self, rows: np.ndarray) -> None:
        self._empty.append(rows)
        self._empty_count += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()
