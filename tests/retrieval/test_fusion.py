"""Fused retrievers: depth, ties, filters, passages. The arithmetic of fusion is in `test_stages`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sourcier.retrieval.fusion import Fused, reciprocal_rank, weighted_scores
from sourcier.retrieval.retriever import Retriever
from sourcier.types import Document, Hits

CORPUS = [
    Document("a", "rain rain lake", metadata={"lang": "de"}),
    Document("b", "rain river"),
    Document("empty", "..."),
    Document("c", "x x x x rain x x lake"),
]


@pytest.fixture
def fused(tmp_path: Path) -> Fused:
    whole = Retriever.build(None, CORPUS, tmp_path / "whole", kind="bm25")
    cut = Retriever.build(None, CORPUS, tmp_path / "cut", kind="bm25", passages=3, overlap=0)
    return Fused([whole, cut])


def test_equal_sums_come_in_the_order_of_the_first_ranking() -> None:
    first, second = Hits.from_rows([[("a", 2.0), ("b", 1.0)]]), Hits.from_rows([[("b", 9.0), ("a", 8.0)]])
    assert reciprocal_rank([first, second], 2).ids.tolist() == [["a", "b"]]
    assert weighted_scores([second, first], 2).ids.tolist() == [["b", "a"]]


def test_equal_scores_of_one_ranking_are_all_the_best() -> None:
    assert weighted_scores([Hits.from_rows([[("a", 3.0), ("b", 3.0)]])], 2).scores.tolist() == [[1.0, 1.0]]


def test_a_query_without_content_has_no_hits(fused: Fused) -> None:
    assert fused.search(["", "rain"], k=2).counts.tolist() == [0, 2]


def test_documents_without_content_come_last(fused: Fused) -> None:
    assert fused.search(["rain"], k=9).ids[0, -1] == "empty"


def test_a_filter_holds_for_all(fused: Fused) -> None:
    assert fused.search(["rain"], k=9, where="lang = 'de'").ids.tolist() == [["a"]]


def test_a_passage_comes_from_the_index_that_has_some(fused: Fused) -> None:
    (hits,) = fused.search(["lake"], k=2, documents=True)
    assert {hit.id: hit.passage for hit in hits} == {"a": "rain rain lake", "c": "x lake"}


@pytest.mark.parametrize("k", [0, -1, "3", None])
def test_k_must_be_positive(fused: Fused, k: int) -> None:
    with pytest.raises(ValueError, match="k must be"):
        fused.search(["rain"], k=k)
