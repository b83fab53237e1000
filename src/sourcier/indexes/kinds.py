"""The kinds of index by name. Their modules are imported when a kind is used: each brings libraries of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from sourcier.config import unknown
from sourcier.types import SourcierError

if TYPE_CHECKING:
    from sourcier.indexes.kind import Segment

_CLASSES = {
    "bm25": ("sourcier.indexes.bm25", "BM25Segment"),
    "dense": ("sourcier.indexes.dense", "DenseSegment"),
    "dense-hnsw": ("sourcier.indexes.faiss_dense", "HnswSegment"),
    "dense-ivfpq": ("sourcier.indexes.faiss_dense", "IvfPqSegment"),
    "multivector": ("sourcier.indexes.multivector", "MultiVectorSegment"),
    "seismic": ("sourcier.indexes.seismic", "SeismicSegment"),
    "sparse": ("sourcier.indexes.sparse", "SparseSegment"),
    "warp": ("sourcier.indexes.warp.segment", "WarpSegment"),
    "term_vectors": ("sourcier.indexes.term_vectors", "TermVectorsSegment"),
}
KINDS = tuple(_CLASSES)


def kind_class(kind: str) -> type[Segment]:
    """The class of a kind."""
    if kind not in _CLASSES:
        raise SourcierError(unknown("kind of index", kind, KINDS))
    module, name = _CLASSES[kind]
    return cast("type[Segment]", getattr(import_module(module), name))


def kind_on(kind: str, device: str) -> type[Segment]:
    """The class of a kind, searching on a device of PyTorch."""
    if kind != "dense":
        raise SourcierError(
            f"device='{device}': an index of kind '{kind}' is searched on the CPU: leave device out"
        )
    # Here, because it brings PyTorch.
    from sourcier.indexes.dense_torch import on_device

    return on_device(device)
