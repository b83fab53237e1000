"""A small index of each registered kind that has every file which one can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import encoded

from sourcier.indexes import KINDS, create, extend
from sourcier.indexes.changes import delete
from sourcier.indexes.kinds import kind_class
from sourcier.indexes.manifest import ModelReference, Splitting
from sourcier.indexes.version import Version
from sourcier.types import Document

#: Enough for faiss to learn codebooks of a byte from.
COUNT = 300

_ENCODE: dict[str, Any] = {
    "bm25": lambda random, count: [f"water {number % 7} rain {number}" for number in range(count)],
    "dense": encoded.dense,
    "dense-hnsw": encoded.dense,
    "dense-ivfpq": encoded.dense,
    "multivector": encoded.tokens,
    "seismic": encoded.weights,
    "sparse": encoded.weights,
    "term_vectors": encoded.term_vectors,
    "warp": encoded.tokens,
}
BUILD: dict[str, dict[str, Any]] = {"dense-ivfpq": {"lists": 4, "bytes": 1}, "warp": {"centroids": 16}}

#: Searches that look at all there is.
_WIDE: dict[str, dict[str, Any]] = {
    "dense-hnsw": {"ef": 10_000},
    "dense-ivfpq": {"probes": 10_000},
    "seismic": {"query_cut": 10_000, "heap_factor": 1.0},
    "warp": {"probes": 10_000, "candidates": 10_000},
}

every_kind = pytest.mark.parametrize("kind", KINDS)


def make_small(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few documents make a graph, lists or codes, which real collections do not."""
    if kind == "seismic":
        pytest.importorskip("seismic", reason="pyseismic-lsr is not installed")
    if kind.startswith("dense-"):
        monkeypatch.setattr(kind_class(kind), "least", 1)
    if kind == "warp":
        monkeypatch.setattr("sourcier.indexes.warp.segment._LEAST", 1)


def encode(kind: str, count: int, seed: int = 0) -> Any:
    return _ENCODE[kind](np.random.default_rng(seed), count)


def search_for_all(kind: str) -> Any:
    """What a search takes that is to overlook nothing, as far as the kind can."""
    return kind_class(kind).Search(**_WIDE.get(kind, {}))


def documents(names: list[str]) -> list[Document]:
    return [Document(name, "water", metadata={"n": number}) for number, name in enumerate(names)]


def build(kind: str, folder: Path) -> Version:
    """Documents of one passage each, their texts and metadata, a model."""
    ids = encoded.names(COUNT)
    with create(kind, folder, build=BUILD.get(kind)) as writer:
        writer.splitting = Splitting(size=1, overlap=0)
        writer.add_passages(ids, encode(kind, COUNT), _passages(COUNT), documents(ids))
        model = writer.directory.keep_model("f" * 64, lambda place: (place / "weights").write_text("model"))
        writer.model = ModelReference(name="Own", fingerprint="f" * 64, folder=model)
        return writer.finish()


def add(kind: str, folder: Path) -> Version:
    ids = encoded.names(COUNT, first=COUNT)
    with extend(folder) as writer:
        writer.add_passages(ids, encode(kind, COUNT, seed=1), _passages(COUNT), documents(ids))
        return writer.finish()


def build_with_every_file(kind: str, folder: Path) -> Version:
    """Two segments, and deleted documents."""
    build(kind, folder)
    delete(folder, ["d7"])
    return add(kind, folder)


def _passages(count: int) -> np.ndarray:
    return np.stack([np.arange(count), np.zeros(count), np.full(count, 5)], axis=1).astype(np.int64)
