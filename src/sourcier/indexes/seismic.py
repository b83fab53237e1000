"""Approximate search over term weights by Seismic (Bruch et al. 2024): fast, in memory that is the process's own.

Seismic maps nothing: the first search reads its whole file (some 0.8 s and 250 MB for 50,000 documents). The exact,
mapped lists of the kind `sparse` lie beside it. They answer where a filter leaves few documents, or where Seismic finds
fewer than asked for, and they are what compaction reads.

Shapes: Q queries, N documents with content.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from seismic import SeismicIndexRaw, SeismicIndexRawLV

from sourcier.config import setting
from sourcier.encodings import TermVectors
from sourcier.indexes.disk import not_written, writing
from sourcier.indexes.kind import Chunks
from sourcier.indexes.manifest import DamagedIndex, Written
from sourcier.indexes.postings import Postings
from sourcier.indexes.ranking import Ranked, in_order, no_results
from sourcier.indexes.sparse import SparseSegment
from sourcier.ranges import check_ranges

_FILE, _INPUT = "lists.seismic", "documents.bin"
#: Share of documents that a filter leaves below which the exact lists are searched.
_FEW = 0.1
#: Terms below this number fit into the 16 bits that Seismic has for one; the form for larger vocabularies has 32.
_NARROW = 2**16


@dataclass(frozen=True, kw_only=True)
class SeismicBuild:
    """The lists and their clusters; names as in Seismic."""

    n_postings: int = setting(
        3500, "postings of a term, on average, that are kept for finding candidates", at_least=1
    )
    centroid_fraction: float = setting(
        0.1, "clusters of a list, as a share of its postings", above=0, at_most=1
    )
    summary_energy: float = setting(
        0.4, "share of a cluster's weight that its summary keeps", above=0, at_most=1
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class SeismicSearch:
    """More of either finds more and takes longer; names as in Seismic."""

    query_cut: int = setting(15, "heaviest terms of a query that find candidates", at_least=1)
    heap_factor: float = setting(0.7, "clusters count whose summary promises this share", above=0, at_most=1)

    def __post_init__(self) -> None:
        check_ranges(self)


class SeismicSegment(SparseSegment):
    """Candidates by the heaviest terms of a query; scores are dot products of half-precision weights."""

    kind: ClassVar[str] = "seismic"
    Build: ClassVar[type] = SeismicBuild
    Search: ClassVar[type] = SeismicSearch

    @classmethod
    def write(cls, folder: Path, chunks: Chunks, build: SeismicBuild, like: Self | None = None) -> Written:
        written = super().write(folder, chunks, SparseSegment.Build())
        if written.counts["postings"]:
            with writing(folder / _INPUT):
                _write_documents(folder / _INPUT, chunks)
            form = _form(Postings(folder))
            index = form.build(
                str(folder / _INPUT),
                n_postings=build.n_postings,
                centroid_fraction=build.centroid_fraction,
                summary_energy=build.summary_energy,
            )
            with writing(folder / _FILE):
                index.save(str(folder / _FILE))
            del index
            _refuse_short(folder / _FILE, form)
            (folder / _INPUT).unlink()
        return written

    def __init__(self, folder: Path, written: Written) -> None:
        super().__init__(folder, written)
        self._path = folder / _FILE
        self._form = _form(self.postings)
        # Opened now, read at the first search: the version may have been removed by then.
        self._file = self._path.open("rb") if written.counts["postings"] else None
        if self._file is not None:
            weakref.finalize(self, self._file.close)
        self._loading = threading.Lock()
        self._loaded: Any = None

    def best(
        self, queries: TermVectors, depth: int, allowed: np.ndarray | None, search: SeismicSearch
    ) -> Ranked:
        share = 1.0 if allowed is None else np.count_nonzero(allowed) / len(allowed)
        if share < _FEW or self._file is None:
            return super().best(queries, depth, allowed, search)
        rows = np.full((len(queries), depth), -1, dtype=np.int64)
        scores = np.full((len(queries), depth), -np.inf, dtype=np.float32)
        for place in range(len(queries)):
            query = queries[place : place + 1]
            count = depth if allowed is None else min(int(np.ceil(1.2 * depth / share)), len(self))
            found = self._candidates(query, count, search)
            if allowed is not None:
                found = Ranked(found.rows[:, allowed[found.rows[0]]], found.scores[:, allowed[found.rows[0]]])
            if found.rows.shape[1] < depth:
                found = super().best(query, depth, allowed, search)
            rows[place], scores[place] = found.rows[0, :depth], found.scores[0, :depth]
        return Ranked(rows, scores)

    @property
    def index(self) -> Any:
        """What Seismic searches, read at the first search."""
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Any:
        assert self._file is not None
        opened = Path(f"/dev/fd/{self._file.fileno()}")
        try:
            return self._form.load(str(opened if opened.exists() else self._path))
        except OSError as error:
            raise DamagedIndex(
                f"{self._path}: cannot be read by Seismic ({error}): open the index again, or restore the file"
            ) from error

    def _candidates(self, query: TermVectors, count: int, search: SeismicSearch) -> Ranked:
        # Seismic ends the search, or the process, on a term behind the last that a document holds.
        known = query.terms < self.postings.terms
        if not known.any():
            return no_results(1)
        found = self.index.search(
            query.terms[known].astype(np.int32),
            query.vectors[known, 0],
            count,
            search.query_cut,
            search.heap_factor,
            0,
            True,
        )
        scores, rows = zip(*found, strict=True) if found else ((), ())
        return in_order(np.array([rows], dtype=np.int64), np.array([scores], dtype=np.float32))


def _form(postings: Postings) -> Any:
    """What of Seismic holds the terms of these lists."""
    return SeismicIndexRaw if postings.terms <= _NARROW else SeismicIndexRawLV


def _refuse_short(path: Path, form: Any) -> None:
    """Refuse a file of Seismic that lacks its end: on a full disk Seismic loses that without a word."""
    try:
        form.load(str(path))
    except OSError as error:
        raise not_written(path, f"no space left: {error}") from error


def _write_documents(path: Path, chunks: Chunks) -> None:
    """Seismic's own format: the number of documents; for each its number of terms, the terms, and their weights."""
    with path.open("wb") as file:
        file.write(np.uint32(len(chunks)).tobytes())
        for chunk in chunks:
            terms, weights = chunk.terms.astype(np.uint32), chunk.weights.astype(np.float32)
            for start, stop in zip(chunk.offsets[:-1].tolist(), chunk.offsets[1:].tolist(), strict=True):
                file.write(np.uint32(stop - start).tobytes())
                file.write(terms[start:stop].tobytes())
                file.write(weights[start:stop].tobytes())
