"""Indexes: built in chunks by `create`, opened by `open_index`, searched with encodings (BM25: with texts).

    with create("dense", path) as writer:
        writer.add(["a", "b"], DenseVectors(vectors))
        writer.finish()
    hits = open_index(path).search(DenseVectors(queries), k=10)

    with extend(path) as writer:                 # a known id is replaced
        writer.add(["b", "c"], DenseVectors(vectors))
        writer.finish()

`changes` deletes documents and puts segments together; `directory.collect_garbage` removes what no longer counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sourcier.config import from_dict
from sourcier.indexes.directory import NewVersion, collect_garbage
from sourcier.indexes.disk import IndexBusy
from sourcier.indexes.kinds import KINDS, kind_class, kind_on
from sourcier.indexes.manifest import DamagedIndex
from sourcier.indexes.version import Version, open_version, reading
from sourcier.types import NotWritten

if TYPE_CHECKING:
    from sourcier.indexes.index import Index
    from sourcier.indexes.writer import IndexWriter

__all__ = [
    "KINDS",
    "DamagedIndex",
    "IndexBusy",
    "NotWritten",
    "Version",
    "collect_garbage",
    "create",
    "extend",
    "open_index",
    "open_version",
]


def create(
    kind: str,
    path: str | os.PathLike[str],
    *,
    family: str | None = None,
    build: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> IndexWriter:
    """Begin an index of a kind in a folder, or one that takes the place of an index that is there.

    `build`: settings of the kind. `resume`: go on with the chunks that an unfinished build of the same `plan` left.
    """
    from sourcier.indexes.writer import IndexWriter

    cls = kind_class(kind)
    settings: Any = from_dict(cls.Build, build or {}, where=f"settings of an index of kind '{kind}'")
    new = NewVersion(path, anew=True)
    try:
        return IndexWriter(new, cls, settings, family, plan=plan, resume=resume)
    except BaseException:
        new.abandon()
        raise


def extend(
    path: str | os.PathLike[str], *, plan: Mapping[str, Any] | None = None, resume: bool = False
) -> IndexWriter:
    """Begin to add documents to the index in a folder. One whose id is known takes the place of the one before."""
    from sourcier.indexes.writer import IndexWriter

    new = NewVersion(path)
    try:
        known = new.existing.manifest
        cls = kind_class(known.kind)
        settings: Any = from_dict(cls.Build, known.build, where=str(new.existing.folder))
        return IndexWriter(new, cls, settings, known.family, extend=True, plan=plan, resume=resume)
    except BaseException:
        new.abandon()
        raise


def open_index(path: str | os.PathLike[str] | Version, *, device: str | None = None) -> Index:
    """The index in a folder, at the version that counts now; or at a version that was opened before.

    `device`: where PyTorch is to keep and search the vectors of a kind "dense", like "cuda". Their file is mapped
    otherwise, and searched without PyTorch.
    """
    from sourcier.indexes.index import Index

    def opened(version: Version) -> Index:
        kind = version.manifest.kind
        return Index(version, kind_class(kind) if device is None else kind_on(kind, device))

    return opened(path) if isinstance(path, Version) else reading(path, opened)
