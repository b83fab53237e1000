"""The approximate dense kinds: they find what exact search finds, with its scores, filtered, from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourcier.encodings import DenseVectors
from sourcier.indexes import create, extend, open_index
from sourcier.indexes.changes import compact, delete
from sourcier.indexes.faiss_dense import HnswSearch, HnswSegment, IvfPqSearch, IvfPqSegment
from sourcier.types import SourcierError

COUNT = 3000
every_kind = pytest.mark.parametrize("kind", ["dense-hnsw", "dense-ivfpq"])


def vectors(seed: int, count: int) -> DenseVectors:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(30, 32))
    found = centres[random.integers(0, 30, size=count)] + 0.5 * random.normal(size=(count, 32))
    return DenseVectors((found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32))


CORPUS, ASKED = vectors(0, COUNT), vectors(1, 25)
SCORES = ASKED.vectors.astype(np.float64) @ CORPUS.vectors.T.astype(np.float64)
BUILD: dict[str, dict[str, Any]] = {"dense-hnsw": {"threads": 1}, "dense-ivfpq": {"lists": 40, "bytes": 8}}
WIDE: dict[str, Any] = {"dense-hnsw": HnswSearch(ef=1000), "dense-ivfpq": IvfPqSearch(probes=40)}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and lists for few documents, which real collections do not make."""
    for segment in (HnswSegment, IvfPqSegment):
        monkeypatch.setattr(segment, "least", 500)


def write(kind: str, folder: Path, corpus: DenseVectors = CORPUS) -> Any:
    with create(kind, folder, build=BUILD[kind]) as writer:
        for start in range(0, len(corpus), 700):
            part = corpus[start : start + 700]
            writer.add([f"d{start + row}" for row in range(len(part))], part)
        writer.finish()
    return open_index(folder)


def recall(hits: Any, scores: np.ndarray, k: int = 10) -> float:
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return float(
        np.mean(
            [
                len({f"d{row}" for row in rows} & set(ids)) / k
                for rows, ids in zip(best, hits.ids, strict=True)
            ]
        )
    )


@every_kind
def test_it_finds_what_exact_search_finds(kind: str, tmp_path: Path) -> None:
    hits = write(kind, tmp_path).search(ASKED, 10, search=WIDE[kind])
    assert recall(hits, SCORES) >= 0.95
    rows = np.array([[int(name[1:]) for name in row] for row in hits.ids])
    np.testing.assert_allclose(hits.scores, np.take_along_axis(SCORES, rows, axis=1), rtol=1e-6)


@every_kind
def test_deleted_documents_are_not_found(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path)
    gone = np.argsort(-SCORES, axis=1)[:, :5]
    delete(tmp_path, [f"d{row}" for row in np.unique(gone)])
    kept = SCORES.copy()
    kept[:, np.unique(gone)] = -np.inf
    hits = open_index(tmp_path).search(ASKED, 10, search=WIDE[kind])
    assert recall(hits, kept) >= 0.95
    assert not {f"d{row}" for row in np.unique(gone)} & set(hits.ids.ravel())


@every_kind
def test_where_few_are_left_the_search_is_exact(kind: str, tmp_path: Path) -> None:
    segment = write(kind, tmp_path).parts[0].segment
    allowed = np.zeros(COUNT, dtype=bool)
    allowed[::50] = True
    ranked = segment.best(segment.checked(ASKED), 60, allowed, segment.Search())
    best = np.argsort(-SCORES[:, ::50], axis=1, kind="stable") * 50
    assert ranked.rows.tolist() == best.tolist()


@every_kind
def test_all_documents_can_be_asked_for(kind: str, tmp_path: Path) -> None:
    hits = write(kind, tmp_path).search(ASKED[:2], COUNT)
    assert [len(set(row)) for row in hits.ids.tolist()] == [COUNT, COUNT]


@every_kind
def test_few_documents_are_kept_as_they_are(kind: str, tmp_path: Path) -> None:
    index = write(kind, tmp_path, CORPUS[:100])
    assert index.parts[0].segment.index is None
    assert recall(index.search(ASKED, 10), SCORES[:, :100]) == 1


@every_kind
def test_compaction_keeps_the_vectors(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path, CORPUS[:2000])
    with extend(tmp_path) as writer:
        writer.add([f"d{row}" for row in range(2000, COUNT)], CORPUS[2000:])
        writer.finish()
    compact(tmp_path)
    (part,) = open_index(tmp_path).parts
    np.testing.assert_array_equal(part.segment.vectors, CORPUS.vectors)


@every_kind
def test_threads_with_other_settings_each_get_their_own(kind: str, tmp_path: Path) -> None:
    """Hazard F8: what a search looks at is no field of the index that threads share."""
    index = write(kind, tmp_path)
    narrow = HnswSearch(ef=1) if kind == "dense-hnsw" else IvfPqSearch(probes=1)
    expected = [index.search(ASKED, 10, search=one).ids.tolist() for one in (narrow, WIDE[kind])]

    def rounds(which: int) -> bool:
        return all(
            index.search(ASKED, 10, search=(narrow, WIDE[kind])[which]).ids.tolist() == expected[which]
            for _ in range(50)
        )

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(rounds, (0, 1))) == [True, True]


def test_vectors_of_a_graph_are_kept_once(tmp_path: Path) -> None:
    write("dense-hnsw", tmp_path)
    names = {path.name for path in (tmp_path / "segments" / "000001" / "kind").iterdir()}
    assert names == {"index.faiss"}


def test_one_thread_builds_the_same_graph(tmp_path: Path) -> None:
    for name in "ab":
        write("dense-hnsw", tmp_path / name)
    ours, again = (tmp_path / name / "segments" / "000001" / "kind" / "index.faiss" for name in "ab")
    assert ours.read_bytes() == again.read_bytes()


@every_kind
def test_a_filter_that_leaves_documents_far_from_the_query(kind: str, tmp_path: Path) -> None:
    """None of the nearest passes: what a search among neighbours would look at first."""
    segment = write(kind, tmp_path).parts[0].segment
    query = ASKED[:1]
    allowed = np.ones(COUNT, dtype=bool)
    allowed[np.argsort(-SCORES[0])[: COUNT * 8 // 10]] = False
    ranked = segment.best(segment.checked(query), 10, allowed, segment.Search())
    kept = np.where(allowed, SCORES[0], -np.inf)
    assert ranked.rows[0].tolist() == np.argsort(-kept, kind="stable")[:10].tolist()


def test_there_are_never_more_lists_than_documents(tmp_path: Path) -> None:
    with create("dense-ivfpq", tmp_path, build={"lists": 10**6, "bytes": 8}) as writer:
        writer.add([f"d{row}" for row in range(600)], CORPUS[:600])
        writer.finish()
    assert recall(open_index(tmp_path).search(ASKED, k=10), SCORES[:, :600]) > 0.5


def test_a_graph_has_two_edges_a_document(tmp_path: Path) -> None:
    """faiss ends the process on a graph of one edge each."""
    with pytest.raises(SourcierError, match="neighbours=1 must be at least 2"):
        create("dense-hnsw", tmp_path, build={"neighbours": 1})
    with create("dense-hnsw", tmp_path, build={"neighbours": 2}) as writer:
        writer.add([f"d{row}" for row in range(600)], CORPUS[:600])
        writer.finish()
    assert len(open_index(tmp_path)) == 600
