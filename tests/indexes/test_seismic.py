"""The kind `seismic`: it finds nearly what the exact lists find, and falls back on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourcier.encodings import TermWeights
from sourcier.indexes import create, extend, open_index
from sourcier.indexes.changes import compact, delete

pytest.importorskip("seismic", reason="pyseismic-lsr is not installed: pip install 'sourcier[sparse]'")
TERMS = 400


def weights(seed: int, count: int, terms: int) -> TermWeights:
    random = np.random.default_rng(seed)
    rows = [np.sort(random.choice(TERMS, size=terms, replace=False)) for _ in range(count)]
    return TermWeights(
        np.arange(count + 1, dtype=np.int64) * terms,
        np.concatenate(rows).astype(np.int32),
        random.lognormal(size=count * terms).astype(np.float32),
    )


CORPUS, ASKED = weights(0, 800, 40), weights(1, 15, 10)


def table(encoding: TermWeights) -> np.ndarray:
    found = np.zeros((len(encoding), TERMS))
    found[np.repeat(np.arange(len(encoding)), np.diff(encoding.offsets)), encoding.terms] = encoding.weights
    return found


SCORES = table(ASKED) @ table(CORPUS).T


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ids that are longer than Seismic's own may be, and not ASCII. (Hazard E12.)"""
    folder = tmp_path_factory.mktemp("seismic")
    with create("seismic", folder) as writer:
        writer.add([name(row) for row in range(800)], CORPUS)
        writer.finish()
    return folder


def name(row: int) -> str:
    return f"Straße {row} " + "x" * 80


def found(hits: Any) -> list[set[str]]:
    return [set(row) for row in hits.ids.tolist()]


def best(scores: np.ndarray, k: int = 10) -> list[set[str]]:
    return [{name(row) for row in rows} for rows in np.argsort(-scores, axis=1)[:, :k]]


def test_it_finds_what_the_exact_lists_find(folder: Path) -> None:
    hits = open_index(folder).search(ASKED, 10)
    shares = [len(ours & exact) / 10 for ours, exact in zip(found(hits), best(SCORES), strict=True)]
    assert np.mean(shares) >= 0.95
    np.testing.assert_allclose(hits.scores[:, 0], SCORES.max(axis=1), rtol=2e-3)


def test_the_file_is_where_it_was_saved(folder: Path) -> None:
    assert (folder / "segments" / "000001" / "kind" / "lists.seismic").stat().st_size > 10_000


def test_all_documents_can_be_asked_for(folder: Path) -> None:
    assert [len(row) for row in found(open_index(folder).search(ASKED, 800))] == [800] * 15


def test_changes_and_compaction(folder: Path, tmp_path: Path) -> None:
    with create("seismic", tmp_path) as writer:
        writer.add([name(row) for row in range(500)], CORPUS[:500])
        writer.finish()
    with extend(tmp_path) as writer:
        writer.add([name(row) for row in range(500, 800)], CORPUS[500:])
        writer.finish()
    gone = np.unique(np.argsort(-SCORES, axis=1)[:, 0])
    delete(tmp_path, [name(row) for row in gone])
    scores = SCORES.copy()
    scores[:, gone] = -1
    for change in (lambda path: None, compact):
        change(tmp_path)
        hits = open_index(tmp_path).search(ASKED, 10)
        shares = [len(ours & exact) / 10 for ours, exact in zip(found(hits), best(scores), strict=True)]
        assert np.mean(shares) >= 0.9


def test_where_few_are_left_the_search_is_exact(folder: Path) -> None:
    segment = open_index(folder).parts[0].segment
    allowed = np.zeros(800, dtype=bool)
    allowed[::100] = True
    ranked = segment.best(segment.checked(ASKED), 8, allowed, segment.Search())
    order = np.argsort(-SCORES[:, ::100], axis=1, kind="stable") * 100
    assert ranked.rows.tolist() == order.tolist()


def one_term_each(terms: list[int]) -> TermWeights:
    return TermWeights(
        np.arange(len(terms) + 1), np.array(terms, dtype=np.int32), np.ones(len(terms), dtype=np.float32)
    )


def test_terms_behind_the_last_of_the_documents_score_nothing(tmp_path: Path) -> None:
    """Seismic itself ends the search on them."""
    with create("seismic", tmp_path) as writer:
        writer.add(["a", "b"], one_term_each([3, 5]))
        writer.finish()
    asked = TermWeights(np.array([0, 2, 3]), np.array([5, 6, 6]), np.ones(3, dtype=np.float32))
    hits = open_index(tmp_path).search(asked, 2)
    assert hits.ids.tolist() == [["b", "a"], ["a", "b"]]
    assert hits.scores.tolist() == [[1, 0], [0, 0]]


def test_vocabularies_of_more_than_16_bits(tmp_path: Path) -> None:
    """As XLM-R's. 4,464 is what 70,000 becomes in 16 bits."""
    with create("seismic", tmp_path) as writer:
        writer.add(["low", "high"], one_term_each([4464, 70_000]))
        writer.finish()
    hits = open_index(tmp_path).search(one_term_each([4464, 70_000]), 1)
    assert (hits.ids.tolist(), hits.scores.tolist()) == ([["low"], ["high"]], [[1], [1]])
