"""Fusion and a second stage, by arithmetic; scores from encodings against exact indexes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes.encoded import KINDS, Kind

from sourcier.encodings import DenseVectors
from sourcier.retrieval.fusion import Fused, reciprocal_rank, weighted_scores
from sourcier.retrieval.rerank import Reranked
from sourcier.retrieval.retriever import Retriever
from sourcier.retrieval.scoring import scores
from sourcier.types import EMPTY_SCORE, Document, Hits, SourcierError

FIRST = Hits.from_rows([[("a", 9.0), ("b", 5.0), ("c", 1.0)], [("x", 2.0)]])
SECOND = Hits.from_rows([[("c", 0.5), ("a", 0.25)], []])


def pairs(hits: Hits) -> list[list[tuple[str, float]]]:
    return [[(hit.id, round(hit.score, 6)) for hit in row] for row in hits]


def test_reciprocal_ranks() -> None:
    fused = reciprocal_rank([FIRST, SECOND], 10)
    assert pairs(fused) == [
        [("a", round(1 / 61 + 1 / 62, 6)), ("c", round(1 / 63 + 1 / 61, 6)), ("b", round(1 / 62, 6))],
        [("x", round(1 / 61, 6))],
    ]


def test_weights_of_rankings() -> None:
    fused = reciprocal_rank([FIRST, SECOND], 1, weights=[1, 3])
    assert pairs(fused)[0] == [("c", round(1 / 63 + 3 / 61, 6))]


def test_weighted_scores_are_spread_from_0_to_1() -> None:
    assert pairs(weighted_scores([FIRST, SECOND], 10, weights=[1, 0.5])) == [
        [("a", 1.0), ("b", 0.5), ("c", 0.5)],
        [("x", 1.0)],
    ]


def test_a_document_without_content_spreads_nothing() -> None:
    hits = Hits.from_rows([[("a", 3.0), ("b", 1.0), ("empty", EMPTY_SCORE)]])
    assert pairs(weighted_scores([hits], 3)) == [[("a", 1.0), ("b", 0.0), ("empty", 0.0)]]


def test_rankings_of_other_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="different numbers of queries"):
        reciprocal_rank([FIRST, FIRST.from_rows([[]])], 3)


CORPUS = [
    Document("one", "rain"),
    Document("two", "rain rain"),
    Document("three", "rain rain rain"),
    Document("other", "sun"),
]


class Words:
    """The number of times a text says rain, as a vector."""

    family = "dense"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(
        self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False
    ) -> DenseVectors:
        self.texts += texts
        return DenseVectors(np.array([[text.split().count("rain")] for text in texts], dtype=np.float32))


@pytest.fixture
def bm25(tmp_path: Path) -> Retriever:
    return Retriever.build(None, CORPUS, tmp_path / "bm25", kind="bm25")


def test_candidates_come_in_the_order_of_the_second_stage(bm25: Retriever) -> None:
    hits = Reranked(bm25, Words(), candidates=3).search(["rain"], k=2, documents=True)
    assert pairs(hits) == [[("three", 3.0), ("two", 2.0)]]
    assert [document.id for document in hits.documents[0]] == ["three", "two"]  # type: ignore[index]


def test_a_document_is_encoded_once_for_all_queries(bm25: Retriever) -> None:
    encoder = Words()
    Reranked(bm25, encoder, candidates=4).search(["rain", "sun"], k=4)
    assert sorted(encoder.texts) == sorted([*(document.text for document in CORPUS), "rain", "sun"])


def test_pairs_of_texts_as_a_second_stage(bm25: Retriever) -> None:
    class Shortest:
        def scores(self, pairs: Sequence[tuple[str, str]], *, progress: bool = False) -> np.ndarray:
            return np.array([-len(document) for _, document in pairs], dtype=np.float32)

    hits = Reranked(bm25, Shortest(), candidates=3).search(["rain", "?"], k=3)
    assert [[hit.id for hit in row] for row in hits] == [["one", "two", "three"], []]


def test_fused_retrievers(bm25: Retriever, tmp_path: Path) -> None:
    dense = Retriever.build(Words(), CORPUS, tmp_path / "dense")
    with Fused([bm25, dense], weights=[0, 1]) as fused:
        hits = fused.search(["rain"], k=2, documents=True)
        assert [hit.id for hit in hits[0]] == ["three", "two"]
        assert fused.submit(["rain"], k=2).result().ids.tolist() == hits.ids.tolist()
    with pytest.raises(SourcierError, match="closed"):
        dense.search(["rain"])


def test_what_was_submitted_is_done_before_the_end(bm25: Retriever) -> None:
    fused = Fused([bm25])
    waiting = [fused.submit(["rain"], k=1) for _ in range(20)]
    fused.close()
    assert [len(one.result()) for one in waiting] == [1] * 20


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_scores_are_those_of_an_index(kind: Kind) -> None:
    random = np.random.default_rng(0)
    corpus, asked = kind.encode(random, 30), kind.encode(random, 4)
    expected = kind.scores(asked, corpus)
    for row in range(4):
        query: Any = asked[row : row + 1]
        np.testing.assert_allclose(scores(query, corpus), expected[row], rtol=1e-5, atol=1e-6)
