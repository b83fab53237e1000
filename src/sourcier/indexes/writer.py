"""Builds an index, or adds to one: ids and encodings come in chunks, and become one segment that is committed whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from sourcier.indexes.directory import NewVersion
from sourcier.indexes.ids import KnownIds
from sourcier.indexes.kind import Segment
from sourcier.indexes.manifest import Description, ModelReference, Splitting
from sourcier.indexes.marks import Marks
from sourcier.indexes.sources import KIND_FOLDER, write_segment
from sourcier.indexes.spool import Spool
from sourcier.indexes.version import Version
from sourcier.types import Document


class IndexWriter:
    """Documents on their way into an index. Nothing of them is visible before `finish`.

    Each call of `add` is a chunk, which waits on disk; memory is bounded by the largest. With `resume`, a chunk that an
    earlier writer left behind is taken as it is: see `take`.
    """

    def __init__(
        self,
        new: NewVersion,
        kind: type[Segment],
        build: Any,
        family: str | None,
        *,
        extend: bool = False,
        plan: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        self.kind = kind
        self.model: ModelReference | None = None
        #: How documents are cut into passages; None where they are whole.
        self.splitting: Splitting | None = None
        #: What is left of the chunks when the writer is given up.
        self.keep_chunks = False
        self._new, self._build, self._family = new, build, family
        self._base = new.before if extend else None
        if self._base is not None:
            self.splitting = self._base.manifest.passages
        self._spool = Spool(new.building_folder, self._plan(plan or {}), resume=resume)
        self._known = KnownIds()
        self._dimensions = self._base.manifest.dimensions if self._base else None

    @property
    def directory(self) -> NewVersion:
        return self._new

    @property
    def folder(self) -> Path:
        return self._new.folder

    def __len__(self) -> int:
        """Documents so far."""
        return len(self._known)

    def take(self, ids: Sequence[str], documents: Sequence[Document] | None = None) -> bool:
        """Take the next chunk as an earlier writer left it. False where it has to be added: it is not there, not
        whole, or made from other texts than those of `documents`.
        """
        taken = self._spool.take(len(self), ids, documents)
        if taken:
            self._known.add(ids)
        return taken

    def add(
        self,
        ids: Sequence[str],
        encoding: Any,
        content: np.ndarray | None = None,
        documents: Sequence[Document] | None = None,
    ) -> None:
        """Append documents. `content` [documents] bool is False where one has nothing to match; the encoding (for
        BM25: the list of texts) holds the rows of the others alone. `documents`: what the index is to keep of them.
        """
        content = np.ones(len(ids), dtype=bool) if content is None else np.array(content, dtype=bool)
        if len(content) != len(ids) or len(encoding) != np.count_nonzero(content):
            raise ValueError(
                f"an encoding of {len(encoding)} rows for {len(ids)} ids "
                f"of which {np.count_nonzero(content)} are of documents with content"
            )
        encoding, matching = self._matching(
            [identifier for identifier, has_content in zip(ids, content, strict=True) if has_content],
            encoding,
        )
        content[content] = matching
        self._put(ids, content, encoding if content.any() else None, documents)

    def add_passages(
        self,
        ids: Sequence[str],
        encoding: Any,
        passages: np.ndarray,
        documents: Sequence[Document] | None = None,
    ) -> None:
        """Append documents of which passages were encoded. `passages` [P, 3]: the number of the document among `ids`,
        rising, and where in its text the passage starts and stops; documents without any have no content.
        """
        if len(encoding) != len(passages):
            raise ValueError(f"an encoding of {len(encoding)} rows for {len(passages)} passages")
        encoding, matching = self._matching([ids[number] for number in passages[:, 0]], encoding)
        passages = passages[matching]
        content = np.bincount(passages[:, 0], minlength=len(ids)) > 0
        self._put(ids, content, encoding if content.any() else None, documents, passages)

    def add_empty(self, ids: Sequence[str], documents: Sequence[Document] | None = None) -> None:
        """Append documents of which none has content."""
        self._put(ids, np.zeros(len(ids), dtype=bool), None, documents)

    def finish(self) -> Version:
        """Write the segment, and make a version with it the one that readers open."""
        record = write_segment(self._new.segment_folder, self._spool, self.kind, self._build, self._largest())
        self._spool.finish(int(self._new.name))
        if self._base is None:
            version = self._new.commit(self._description(), [record], {})
        else:
            marks = Marks(self._base)
            for rows in self._spool.rows():
                marks.delete(rows.ids)
            version = self._new.commit(
                self._base.manifest.description, [*marks.records, record], marks.deleted
            )
        self._spool.remove()
        return version

    def abandon(self) -> None:
        """Remove what was written; nothing of a version that is committed, and not chunks that are to be kept."""
        if self._new.committed or not self.keep_chunks:
            self._spool.remove()
        self._new.abandon()

    def _matching(self, ids: Sequence[str], encoding: Any) -> tuple[Any, np.ndarray]:
        """What of an encoding the kind takes, and of which of its rows that is. [rows] bool"""
        matching = self.kind.accept(ids, encoding, self._dimensions)
        if not matching.all():
            encoding = encoding.take(np.flatnonzero(matching))
        if hasattr(encoding, "vectors") and len(encoding.vectors):
            self._dimensions = encoding.vectors.shape[1]
        return encoding, matching

    def _put(
        self,
        ids: Sequence[str],
        content: np.ndarray,
        encoding: Any,
        documents: Sequence[Document] | None,
        passages: np.ndarray | None = None,
    ) -> None:
        self._known.add(ids)
        self._spool.write(ids, content, encoding, documents, passages)

    def _plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """What has to be the same for chunks to be taken over; not the version that is added to, which may change."""
        own = {
            "kind": self.kind.kind,
            "build": asdict(self._build),
            "family": self._family,
            "extends": self._base is not None,
        }
        if self._base is None:
            return {**own, **plan}
        return {**own, **plan, "passages": self.splitting and asdict(self.splitting)}

    def _description(self) -> Description:
        return Description(
            kind=self.kind.kind,
            build=asdict(self._build),
            family=self._family,
            model=self.model,
            passages=self.splitting,
        )

    def _largest(self) -> Segment | None:
        """The largest segment of the index that is added to."""
        if self._base is None or not self._base.manifest.segments:
            return None
        record = max(self._base.manifest.segments, key=lambda one: one.documents)
        return self.kind(self._base.segment_folder(record) / KIND_FOLDER, record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()
