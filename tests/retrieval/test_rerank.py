"""A second stage: documents without content, passages, many queries; and its scores are those of the family's index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sourcier.encodings import DenseVectors
from sourcier.retrieval.rerank import Reranked
from sourcier.retrieval.retriever import Retriever
from sourcier.types import EMPTY_SCORE, Document

CORPUS = [
    Document("one", "rain"),
    Document("empty", "..."),
    Document("two", "rain rain"),
    Document("title", "sun", title="rain", metadata={"lang": "de"}),
]


class Length:
    """Puts the longest text first, and keeps the texts that it is asked for."""

    def __init__(self, sign: int = 1) -> None:
        self.sign = sign
        self.pairs: list[tuple[str, str]] = []

    def scores(self, pairs: Sequence[tuple[str, str]], *, progress: bool = False) -> np.ndarray:
        self.pairs += pairs
        return np.array([self.sign * len(document) for _, document in pairs], dtype=np.float32)


class Constant:
    """An encoder to which all texts are the same."""

    family = "dense"

    def encode(
        self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False
    ) -> DenseVectors:
        return DenseVectors(np.ones((len(texts), 2), dtype=np.float32))


@pytest.fixture
def bm25(tmp_path: Path) -> Retriever:
    return Retriever.build(None, CORPUS, tmp_path / "bm25", kind="bm25")


@pytest.mark.parametrize("scorer", [Length(-1), Constant()])
def test_documents_without_content_stay_last(bm25: Retriever, scorer: Length | Constant) -> None:
    (hits,) = Reranked(bm25, scorer).search(["rain"], k=4)
    assert (hits[-1].id, hits[-1].score) == ("empty", EMPTY_SCORE)


def test_equal_scores_keep_the_order_of_the_first_stage(bm25: Retriever) -> None:
    first = bm25.search(["rain"], k=3).ids.tolist()
    assert Reranked(bm25, Constant(), candidates=3).search(["rain"], k=3).ids.tolist() == first


def test_title_and_text_are_scored(bm25: Retriever) -> None:
    scorer = Length()
    Reranked(bm25, scorer).search(["rain"], k=4)
    assert {text for _, text in scorer.pairs} == {"rain", "rain rain", "rain sun"}


def test_more_queries_than_are_scored_together(bm25: Retriever) -> None:
    hits = Reranked(bm25, Length(), candidates=3).search(["rain", "", "sun"] * 30, k=1)
    assert hits.ids[:, 0].tolist() == ["two", None, "two"] * 30


def test_a_filter_is_for_the_first_stage(bm25: Retriever) -> None:
    assert Reranked(bm25, Length()).search(["rain"], k=3, where="lang = 'de'").ids.tolist() == [["title"]]


@pytest.mark.parametrize("k", [0, -1, "3", None])
def test_k_must_be_positive(bm25: Retriever, k: int) -> None:
    with pytest.raises(ValueError, match="k must be"):
        Reranked(bm25, Length()).search(["rain"], k=k)


def test_the_best_passage_is_what_is_scored_again(tmp_path: Path) -> None:
    corpus = [Document("long", "x x x x rain rain x x x", title="T"), Document("short", "rain")]
    first = Retriever.build(None, corpus, tmp_path, kind="bm25", passages=3, overlap=0)
    scorer = Length()
    (hits,) = Reranked(first, scorer).search(["rain"], k=2, documents=True)
    assert sorted(scorer.pairs) == [("rain", "T rain rain"), ("rain", "rain")]
    assert [(hit.id, hit.passage, hit.document) for hit in hits] == [
        ("long", "rain rain", corpus[0]),
        ("short", "rain", corpus[1]),
    ]


@pytest.mark.parametrize("family", ["Dense", "Splade", "SparseEmbed", "ColBERT"])
def test_a_second_stage_over_all_documents_is_an_exact_search(family: str, tmp_path: Path) -> None:
    from tiny import tiny_model

    import sourcier

    model = getattr(sourcier, family).from_base(tiny_model("bert", tmp_path / "base"))
    words = ["water", "ground", "search", "index", "rain on the lake", "find and read"]
    corpus = [Document(f"d{number}", f"{word} in the text") for number, word in enumerate(words)]
    first = Retriever.build(None, corpus, tmp_path / "bm25", kind="bm25")
    exact = Retriever.build(model, corpus, tmp_path / "exact", save_model=False)
    queries = ["water", "find the index"]
    found = Reranked(first, model).search(queries, k=6)
    expected = exact.search(queries, k=6)
    assert found.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-6)
