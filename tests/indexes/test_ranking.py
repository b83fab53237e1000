"""The best of scores that come in tiles, and results that do not depend on how a matrix product rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexes.encoded import best_first, build

from sourcier.encodings import DenseVectors, TokenVectors
from sourcier.indexes.ranking import Ranked, TopK, settle


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**31), columns=st.integers(1, 80), tile=st.integers(1, 30), part=st.floats(0.01, 1)
)
def test_tiles_give_the_best_of_the_whole(seed: int, columns: int, tile: int, part: float) -> None:
    scores = np.random.default_rng(seed).integers(-4, 5, size=(3, columns)).astype(np.float32)
    depth = max(1, int(part * columns))
    best = TopK(3, depth)
    for start in range(0, columns, tile):
        best.offer(scores[:, start : start + tile].T, start)
    ranked = best.ranked()
    assert ranked.rows.tolist() == best_first(scores)[:, :depth].tolist()
    assert ranked.scores.tolist() == (-np.sort(-scores, axis=1))[:, :depth].tolist()


def test_a_tie_across_the_edge_of_the_candidates_is_settled_by_all_rows() -> None:
    exact = np.array([1, 1, 1, 1, 0], dtype=np.float32)
    # Rounding put rows 2 and 3 before rows 0 and 1, which are no candidates.
    candidates = Ranked(np.array([[2, 3]]), np.array([[1.0001, 1.0001]], dtype=np.float32))
    settled = settle(candidates, 1, 5, np.array([0.001]), lambda rows: exact[rows], lambda query: exact)
    assert settled.rows.tolist() == [[0]]


def test_a_clear_edge_needs_the_candidates_alone() -> None:
    candidates = Ranked(np.array([[3, 2]]), np.array([[1, 0.5]], dtype=np.float32))
    settled = settle(
        candidates,
        1,
        5,
        np.array([0.001]),
        lambda rows: np.float32(rows),
        lambda query: pytest.fail("all rows"),
    )
    assert settled.rows.tolist() == [[3]]


def test_dense_hits_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    index = build("dense", tmp_path, DenseVectors(random.normal(size=(3000, 33)).astype(np.float32)))
    queries = DenseVectors(random.normal(size=(40, 33)).astype(np.float32))
    together = index.search(queries, 20)
    alone = [index.search(queries[row : row + 1], 20) for row in range(40)]
    assert together.ids.tolist() == [hits.ids[0].tolist() for hits in alone]
    assert together.scores.tolist() == [hits.scores[0].tolist() for hits in alone]


def test_multivector_hits_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    documents = TokenVectors(np.arange(0, 3001, 10), random.normal(size=(3000, 33)).astype(np.float32))
    index = build("multivector", tmp_path, documents)
    queries = TokenVectors(np.arange(0, 701, 7), random.normal(size=(700, 33)).astype(np.float32))
    together = index.search(queries, 20)
    alone = [index.search(queries[row : row + 1], 20) for row in range(len(queries))]
    assert together.ids.tolist() == [hits.ids[0].tolist() for hits in alone]
    assert together.scores.tolist() == [hits.scores[0].tolist() for hits in alone]


def test_equal_vectors_far_apart_tie_exactly(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    vectors = random.normal(size=(5001, 33)).astype(np.float32)
    vectors[[7, 2047, 2048, 5000]] = vectors[4999]
    index = build("dense", tmp_path, DenseVectors(vectors))
    hits = index.search(DenseVectors(3 * vectors[4999:5000]), 5)
    assert hits.ids.tolist() == [["d7", "d2047", "d2048", "d4999", "d5000"]]


def test_a_long_document_among_short_ones(tmp_path: Path) -> None:
    """One that fills more than a tile of products."""
    random = np.random.default_rng(3)
    offsets = np.array([0, 3, 20_003, 20_005])
    vectors = random.normal(size=(20_005, 2)).astype(np.float32)
    queries = TokenVectors(np.array([0, 40]), random.normal(size=(40, 2)).astype(np.float32))
    hits = build("multivector", tmp_path, TokenVectors(offsets, vectors)).search(queries, 3)
    products = queries.vectors @ vectors.T
    expected = [
        products[:, start:stop].max(axis=1).sum() for start, stop in ((0, 3), (3, 20_003), (20_003, 20_005))
    ]
    assert hits.ids[0].tolist() == [f"d{row}" for row in np.argsort(expected)[::-1]]
    np.testing.assert_allclose(np.sort(hits.scores[0]), np.sort(expected), rtol=1e-5)


def test_scores_of_other_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="scores of 3 queries offered, not of 2"):
        TopK(2, 1).offer(np.zeros((2, 3), dtype=np.float32), 0)
