"""BM25 against bm25s itself and on the collections; the faults of bm25s at its edges kept out."""

from __future__ import annotations

from pathlib import Path

import bm25s
import numpy as np
import pytest
from indexes.encoded import build, names

from sourcier.indexes import create, open_index
from sourcier.types import SourcierError

TEXTS = [
    "water under the ground",
    "a spring of water, cold water",
    "rain on the river",
    "ground",
    "the of and",
]


def test_scores_are_those_of_bm25s(tmp_path: Path) -> None:
    plain = bm25s.BM25()
    plain.index(bm25s.tokenize(TEXTS, stopwords="en", show_progress=False), show_progress=False)
    expected = plain.get_scores(["cold", "water", "water"])
    hits = build("bm25", tmp_path, TEXTS).search(["cold water WATER unknown"], 5)
    found = dict(zip(hits.ids[0], hits.scores[0].tolist(), strict=True))
    assert [found[name] for name in names(5)] == pytest.approx(expected.tolist())


def test_documents_without_a_match_follow_in_the_order_of_insertion(tmp_path: Path) -> None:
    hits = build("bm25", tmp_path, TEXTS).search(["rain"], 10)
    assert hits.ids.tolist() == [["d2", "d0", "d1", "d3", "d4"]]
    assert hits.scores[0, 1:].tolist() == [0, 0, 0, 0]


def test_equal_documents_come_in_the_order_of_insertion(tmp_path: Path) -> None:
    hits = build("bm25", tmp_path, ["other words", *["cold water"] * 50]).search(["water"], 20)
    assert hits.ids.tolist() == [names(20, first=1)]


@pytest.mark.parametrize("query", ["", " ", "...", "\u200b", "the of and"])
def test_a_query_without_words_has_no_hits(tmp_path: Path, query: str) -> None:
    assert build("bm25", tmp_path, TEXTS).search([query, "water"], 2).counts.tolist() == [0, 2]


def test_a_collection_without_a_word(tmp_path: Path) -> None:
    hits = build("bm25", tmp_path, ["the of", "and the"]).search(["water"], 5)
    assert hits.ids.tolist() == [["d0", "d1"]]
    assert hits.scores.tolist() == [[0, 0]]


def test_a_collection_of_empty_documents(tmp_path: Path) -> None:
    with create("bm25", tmp_path) as writer:
        writer.add_empty(["a", "b"])
        writer.finish()
    assert open_index(tmp_path).search(["water"], 5).ids.tolist() == [["a", "b"]]


def test_five_hundred_of_eight_hundred(tmp_path: Path) -> None:
    texts = [f"water {'rain ' * (number % 9)}" for number in range(800)]
    hits = build("bm25", tmp_path, texts).search(["rain", "water"], 500)
    assert [len(set(row) - {None}) for row in hits.ids.tolist()] == [500, 500]


def test_empty_documents_come_last(tmp_path: Path) -> None:
    content = np.array([False, True, True])
    index = build("bm25", tmp_path, ["rain", "water"], ids=["empty", "rain", "water"], content=content)
    assert index.search(["water"], 3).ids.tolist() == [["water", "rain", "empty"]]


@pytest.mark.parametrize("k", [0, -3, 1.5])
def test_k_must_be_positive(tmp_path: Path, k: float) -> None:
    with pytest.raises(ValueError, match="k must be"):
        build("bm25", tmp_path, TEXTS).search(["water"], k)


def test_one_text_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="list of texts"):
        build("bm25", tmp_path, TEXTS).search("water", 3)


def test_none_among_queries_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="query 1"):
        build("bm25", tmp_path, TEXTS).search(["water", None], 3)


def test_scores_are_mapped(tmp_path: Path) -> None:
    index = build("bm25", tmp_path, TEXTS)
    assert isinstance(index.parts[0].segment._index.scores["data"], np.memmap)
