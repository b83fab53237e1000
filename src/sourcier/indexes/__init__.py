"""Indexes: built in chunks by `create`, opened by `open_index`, searched with encodings (BM25: with texts).

    with create("dense", path) as writer:
        writer.add(["a", "b"], DenseVectors(vectors))
        writer.finish()
    hits = open_index(path).search(DenseVectors(queries), k=10)

The modules of the kinds are imported when a kind is used: each brings libraries of its own.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, cast

from sourcier.config import unknown
from sourcier.indexes.directory import DamagedIndex, IndexBusy, NewVersion, Version, open_version
from sourcier.indexes.writer import IndexWriter
from sourcier.types import SourcierError

if TYPE_CHECKING:
    from sourcier.indexes.base import IndexBase

__all__ = [
    "KINDS",
    "DamagedIndex",
    "IndexBusy",
    "IndexWriter",
    "Version",
    "create",
    "open_index",
    "open_version",
]

_CLASSES = {
    "bm25": ("sourcier.indexes.bm25", "BM25Index"),
    "dense": ("sourcier.indexes.dense", "DenseIndex"),
    "multivector": ("sourcier.indexes.multivector", "MultiVectorIndex"),
    "sparse": ("sourcier.indexes.sparse", "SparseIndex"),
    "term_vectors": ("sourcier.indexes.term_vectors", "TermVectorsIndex"),
}
KINDS = tuple(_CLASSES)


def create(kind: str, path: str | os.PathLike[str], *, family: str | None = None) -> IndexWriter:
    """Begin an index of a kind in a folder: a first version, or the next one of an index that is there."""
    index = _class(kind)
    new = NewVersion(path)
    try:
        return IndexWriter(kind, index.writer, new, family)
    except BaseException:
        new.abandon()
        raise


def open_index(path: str | os.PathLike[str] | Version) -> IndexBase:
    """The index in a folder, at the version that counts now; or at a version that was opened before."""
    version = path if isinstance(path, Version) else open_version(path)
    return _class(version.manifest.kind)(version)


def _class(kind: str) -> type[IndexBase]:
    if kind not in _CLASSES:
        raise SourcierError(unknown("kind of index", kind, KINDS))
    module, name = _CLASSES[kind]
    return cast("type[IndexBase]", getattr(import_module(module), name))
