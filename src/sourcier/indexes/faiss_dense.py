"""Approximate search over one vector a document, by faiss: a graph (HNSW) or product-quantised lists (IVF-PQ).

Faiss finds candidates; they are scored again with the vectors themselves, like those of the exact kind, so that a score
means the same in every kind. Files are mapped. Settings of a search go with the call: the index in memory is never
changed, and threads with different ones share it. Where a filter leaves few documents, or faiss finds too few, the
search is exact.

Shapes: Q queries, N documents with content, D dimensions, K candidates of a query.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import faiss
import numpy as np

from sourcier.config import setting
from sourcier.indexes.arrays import map_array
from sourcier.indexes.checks import as_float32, refuse_overflow
from sourcier.indexes.dense import DenseSegment, largest_norm, norms, pair_scores
from sourcier.indexes.disk import writing
from sourcier.indexes.forks import survive_forks, threads
from sourcier.indexes.kind import Chunks
from sourcier.indexes.manifest import DamagedIndex, Written
from sourcier.indexes.ranking import Ranked, in_order, rounding
from sourcier.ranges import check_ranges

_FILE = "index.faiss"
#: Share of documents that a filter leaves below which all of them are scored: a graph or list search would find few.
_FEW = 0.1


class FaissSegment(DenseSegment):
    """What the two kinds share."""

    #: Fewer documents are kept as the exact kind keeps them: they are searched as fast, and are few to learn from.
    least: ClassVar[int]
    #: Candidates for each document that is asked for: they are scored again with the vectors.
    candidates: ClassVar[int]

    @classmethod
    def write(cls, folder: Path, chunks: Chunks, build: Any, like: Self | None = None) -> Written:
        if len(chunks) < cls.least:
            written = DenseSegment.write(folder, chunks, DenseSegment.Build())
            return Written(
                dimensions=written.dimensions,
                counts=written.counts,
                settings={"form": "exact", **written.settings},
            )
        survive_forks()
        index, dimensions, longest = cls._fill(folder, chunks, build)
        # Through a file of ours: faiss, given a path, loses the last bytes on a full disk without a word.
        with writing(folder / _FILE), (folder / _FILE).open("wb") as file:
            faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
        return Written(dimensions=dimensions, counts={}, settings={"form": "faiss", "largest_norm": longest})

    def __init__(self, folder: Path, written: Written) -> None:
        survive_forks()
        self.index: faiss.Index | None = None
        if written.settings["form"] == "faiss":
            self.index = _mapped_index(folder / _FILE)
        super().__init__(folder, written)

    def best(self, queries: np.ndarray, depth: int, allowed: np.ndarray | None, search: Any) -> Ranked:
        few = allowed is not None and np.count_nonzero(allowed) < _FEW * len(allowed)
        if self.index is None or few or not len(queries):
            return super().best(queries, depth, allowed, search)
        refuse_overflow(rounding(queries.shape[1]) * self._largest_norm * norms(queries))
        share = 1.0 if allowed is None else np.count_nonzero(allowed) / len(allowed)
        count = min(int(max(self.candidates * depth, 32) / share), len(self))
        _, found = self.index.search(queries, count, params=self._parameters(search, count))
        # A filter is applied here: faiss, given one, finds few where the documents that pass lie far from the query.
        kept = found >= 0 if allowed is None else (found >= 0) & allowed[found]
        rows = np.where(kept, found, 0)
        scores = np.where(kept, pair_scores(queries, self.vectors, rows), np.float32(-np.inf))
        ranked = in_order(np.where(kept, rows, -1), scores)
        ranked = Ranked(ranked.rows[:, :depth].copy(), ranked.scores[:, :depth].copy())
        short = np.flatnonzero(~np.isfinite(ranked.scores).all(axis=1))
        if len(short):
            exact = super().best(queries[short], depth, allowed, search)
            ranked.rows[short], ranked.scores[short] = exact
        return ranked

    @classmethod
    @abstractmethod
    def _fill(cls, folder: Path, chunks: Chunks, build: Any) -> tuple[faiss.Index, int, float]:
        """A faiss index of all vectors; their size and the length of the longest."""

    @abstractmethod
    def _parameters(self, search: Any, count: int) -> faiss.SearchParameters:
        """The settings of one search."""


@dataclass(frozen=True, kw_only=True)
class HnswBuild:
    """The graph."""

    neighbours: int = setting(32, "edges of a document in the graph (M of the paper)", at_least=2)
    ef: int = setting(100, "candidates while it is built (efConstruction)", at_least=1)
    threads: int = setting(
        1, "that build it; several are faster, and make another graph each time", at_least=1
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class HnswSearch:
    """How long the list of candidates is: more finds more and takes longer."""

    ef: int = setting(128, "candidates of a search (efSearch)", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)


class HnswSegment(FaissSegment):
    """A graph of neighbours (Malkov and Yashunin 2016). It holds the vectors; they are kept nowhere else."""

    kind: ClassVar[str] = "dense-hnsw"
    Build: ClassVar[type] = HnswBuild
    Search: ClassVar[type] = HnswSearch
    least: ClassVar[int] = 5000
    candidates: ClassVar[int] = 4

    @classmethod
    def _fill(cls, folder: Path, chunks: Chunks, build: HnswBuild) -> tuple[faiss.Index, int, float]:
        index, longest = None, 0.0
        before = faiss.omp_get_max_threads()
        try:
            faiss.omp_set_num_threads(threads(build.threads))
            for chunk in chunks:
                vectors = as_float32(chunk.comparable)
                if index is None:
                    index = faiss.IndexHNSWFlat(
                        vectors.shape[1], build.neighbours, faiss.METRIC_INNER_PRODUCT
                    )
                    index.hnsw.efConstruction = build.ef
                index.add(vectors)
                longest = max(longest, largest_norm(vectors))
        finally:
            faiss.omp_set_num_threads(before)
        assert index is not None
        return index, index.d, longest

    def _mapped(self, folder: Path) -> np.ndarray:
        if self.index is None:
            return super()._mapped(folder)
        storage = faiss.downcast_index(self.index.storage)
        flat: np.ndarray = faiss.rev_swig_ptr(storage.get_xb(), storage.ntotal * storage.d)
        return flat.reshape(storage.ntotal, storage.d)

    def _parameters(self, search: HnswSearch, count: int) -> faiss.SearchParametersHNSW:
        return faiss.SearchParametersHNSW(efSearch=max(search.ef, count))


@dataclass(frozen=True, kw_only=True)
class IvfPqBuild:
    """The lists and the codes."""

    lists: int | None = setting(
        None, "how many, at most one a document; by default 4 * sqrt(documents)", at_least=1
    )
    bytes: int | None = setting(None, "of a code; by default one for 8 dimensions", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class IvfPqSearch:
    """How many lists are looked through: more finds more and takes longer."""

    probes: int = setting(128, "lists that are looked through", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)


class IvfPqSegment(FaissSegment):
    """Lists of product-quantised codes (Jégou et al. 2011); the vectors lie beside them, read for candidates alone."""

    kind: ClassVar[str] = "dense-ivfpq"
    Build: ClassVar[type] = IvfPqBuild
    Search: ClassVar[type] = IvfPqSearch
    least: ClassVar[int] = 10_000
    # Codes of one byte for 8 dimensions put some of the best ten behind the fortieth.
    candidates: ClassVar[int] = 10

    @classmethod
    def _fill(cls, folder: Path, chunks: Chunks, build: IvfPqBuild) -> tuple[faiss.Index, int, float]:
        written = DenseSegment.write(folder, chunks, DenseSegment.Build())
        vectors = map_array(folder / "vectors.npy")
        # The vectors are kept, so that nothing would be gained by the codebooks of another segment.
        index = cls._trained(vectors, build)
        for start in range(0, len(vectors), 2**16):
            index.add(vectors[start : start + 2**16])
        return index, vectors.shape[1], float(written.settings["largest_norm"])

    @classmethod
    def _trained(cls, vectors: np.ndarray, build: IvfPqBuild) -> faiss.Index:
        """Lists and codebooks, learned from a sample that is spread over all vectors."""
        dimensions = vectors.shape[1]
        lists = min(len(vectors), build.lists or int(4 * len(vectors) ** 0.5))
        parts = _divisor(dimensions, build.bytes or max(1, dimensions // 8))
        index = faiss.IndexIVFPQ(
            faiss.IndexFlatIP(dimensions), dimensions, lists, parts, 8, faiss.METRIC_INNER_PRODUCT
        )
        wanted = min(len(vectors), max(64 * lists, 2**15))
        index.cp.niter, index.cp.min_points_per_centroid = 10, 1
        index.train(np.ascontiguousarray(vectors[np.linspace(0, len(vectors) - 1, wanted).astype(np.int64)]))
        return index

    def _parameters(self, search: IvfPqSearch, count: int) -> faiss.SearchParametersIVF:
        assert self.index is not None
        return faiss.SearchParametersIVF(nprobe=min(search.probes, self.index.nlist))


def _mapped_index(path: Path) -> faiss.Index:
    """The index in a file, mapped."""
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        if not path.exists():  # its version was collected, and there is one after it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        raise DamagedIndex(
            f"{path}: cannot be read by faiss: restore the file, or build the index again"
        ) from error


def _divisor(number: int, wanted: int) -> int:
    """The largest divisor of a number that is at most the one wanted."""
    return next(one for one in range(min(wanted, number), 0, -1) if number % one == 0)
