"""Long documents in passages: how they are cut, and that a document scores by its best passage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourcier.encodings import DenseVectors
from sourcier.indexes import changes, open_version
from sourcier.indexes.manifest import Splitting
from sourcier.retrieval.passages import Splitter, windows
from sourcier.retrieval.retriever import Retriever
from sourcier.types import EMPTY_SCORE, Document, SourcierError

WORDS = ("rain", "river", "lake")


class Counter:
    """How often each of three words stands in a text."""

    family = "dense"

    def encode(
        self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False
    ) -> DenseVectors:
        return DenseVectors(
            np.array([[text.split().count(word) for word in WORDS] for text in texts], dtype=np.float32)
        )


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[bool], int, int]:
    size = draw(st.integers(1, 12))
    opens = draw(st.lists(st.booleans(), min_size=size + 1, max_size=60))
    return opens, size, draw(st.integers(0, size // 2))


@given(cuts())
def test_passages_hold_all_and_none_is_too_long(cut: tuple[list[bool], int, int]) -> None:
    opens, size, overlap = cut
    found = windows(*cut)
    assert found[0][0] == 0
    assert found[-1][1] == len(opens)
    assert all(start < stop <= start + size for start, stop in found)
    assert all(start < after <= stop - overlap for (start, stop), (after, _) in pairwise(found))


def test_passages_are_of_about_the_same_size() -> None:
    assert windows([True] * 21, 20, 0) == [(0, 11), (11, 21)]
    assert windows([True] * 50, 20, 4) == [(0, 20), (16, 36), (32, 50)]


def test_a_cut_falls_between_words() -> None:
    opens = [True, False, False, True, False, False, True, False, False]
    assert windows(opens, 5, 0) == [(0, 3), (3, 6), (6, 9)]
    assert windows([True] + [False] * 8, 5, 0) == [(0, 5), (5, 9)]


def texts_of(text: str, title: str = "", size: int = 3, overlap: int = 0) -> list[str]:
    splitter = Splitter(Splitting(size=size, overlap=overlap), None)
    table, texts = splitter.split([Document("d", text, title)])
    assert [Document("d", text[start:stop], title).content for _, start, stop in table.tolist()] == texts
    return texts


def test_words_are_counted_where_no_model_counts_tokens() -> None:
    assert texts_of("one two  three\nfour five six") == ["one two  three", "four five six"]


def test_passages_overlap() -> None:
    assert texts_of("a b c d e f", size=4, overlap=2) == ["a b c d", "c d e f"]


def test_the_title_stands_before_each_passage_and_counts() -> None:
    assert texts_of("a b c d", "Title", size=3) == ["Title a b", "Title c d"]
    assert texts_of("a b c d", "One Two Three", size=4) == ["One Two Three a b", "One Two Three c d"]


def test_a_short_document_is_one_passage_as_it_is() -> None:
    assert texts_of("a  b ", "Title") == ["Title a  b "]


def test_passages_without_content_are_left_out() -> None:
    assert texts_of("a b c . . . d e f") == ["a b c", "d e f"]
    assert texts_of(". . . . . .", "Title") == ["Title . ."]
    assert texts_of("... ...") == []


def test_tokens_of_the_model_are_counted(tmp_path: Path) -> None:
    from tiny import tiny_model

    import sourcier

    model = sourcier.Dense.from_base(tiny_model("bert", tmp_path), document_length=8)
    text = "water ground spring well xyz river lake"  # xyz is three tokens
    table, texts = Splitter(Splitting(size=5, overlap=0), model).split([Document("d", text)])
    assert texts == ["water ground spring well", "xyz river lake"]
    assert [text[start:stop] for _, start, stop in table.tolist()] == texts
    with pytest.raises(SourcierError, match=r"passages of 7 tokens are longer .* at most 6"):
        Splitter(Splitting(size=7, overlap=0), model)


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (4, 3), (4, -1)])
def test_sizes_that_make_no_sense_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(SourcierError, match="overlap of at most half"):
        Splitter(Splitting(size=size, overlap=overlap), None)


CORPUS = [
    Document("rains", "x x x rain rain x rain x x rain x x"),
    Document("empty", "..."),
    Document("lakes", "lake lake x lake x x rain x x", metadata={"lang": "de"}),
    Document("short", "river"),
]


def built(path: Path, corpus: Sequence[Document] = CORPUS) -> Retriever:
    return Retriever.build(Counter(), corpus, path, passages=3, overlap=0, chunk=2)


def test_a_document_scores_by_its_best_passage(tmp_path: Path) -> None:
    hits = built(tmp_path).search(["rain", "", "lake"], k=10, documents=True)
    assert [[(hit.id, hit.score) for hit in row] for row in hits] == [
        [("rains", 2.0), ("lakes", 1.0), ("short", 0.0), ("empty", np.float32(EMPTY_SCORE))],
        [],
        [("lakes", 2.0), ("rains", 0.0), ("short", 0.0), ("empty", np.float32(EMPTY_SCORE))],
    ]
    assert [hit.passage for hit in hits[0]] == ["rain rain x", "rain x x", "river", None]
    assert hits[0][0].document == CORPUS[0]


def test_enough_passages_are_looked_at_for_all_documents(tmp_path: Path) -> None:
    """One document holds the best hundred passages."""
    corpus = [Document("long", "rain rain rain " * 100), *(Document(f"d{n}", "rain") for n in range(20))]
    hits = built(tmp_path, corpus).search(["rain"], k=5)
    assert hits.ids.tolist() == [["long", "d0", "d1", "d2", "d3"]]
    assert hits.scores.tolist() == [[3.0, 1.0, 1.0, 1.0, 1.0]]


def test_a_filter_is_on_documents(tmp_path: Path) -> None:
    assert built(tmp_path).search(["rain"], k=3, where="lang = 'de'").ids.tolist() == [["lakes"]]


def test_documents_that_are_added_are_cut_in_the_same_way(tmp_path: Path) -> None:
    after = built(tmp_path).add([Document("more", "x x x rain rain rain"), CORPUS[3]])
    assert after.search(["rain"], k=2).ids.tolist() == [["more", "rains"]]
    assert len(after.index) == 5


def test_deleting_and_compacting_keep_passages_with_their_documents(tmp_path: Path) -> None:
    built(tmp_path).add([Document("rains", "rain"), Document("more", "x x x river rain rain")])
    changes.delete(tmp_path, ["lakes"])
    before = Retriever.open(tmp_path, model=Counter()).search(["rain", "river"], k=9, documents=True)
    changes.compact(tmp_path)
    after = Retriever.open(tmp_path, model=Counter()).search(["rain", "river"], k=9, documents=True)
    assert [(hit.id, hit.score, hit.passage) for hit in before[0]][:2] == [
        ("more", 2.0, "river rain rain"),
        ("rains", 1.0, "rain"),
    ]
    assert sorted(map(repr, after[0])) == sorted(map(repr, before[0]))
    assert sorted(map(repr, after[1])) == sorted(map(repr, before[1]))
    assert open_version(tmp_path).manifest.counts["passages"] == 4


def test_an_index_tells_how_many_passages_it_has(tmp_path: Path) -> None:
    built(tmp_path)
    manifest = open_version(tmp_path).manifest
    assert manifest.passages == Splitting(size=3, overlap=0)
    assert manifest.counts["passages"] == 8


def test_bm25_takes_passages(tmp_path: Path) -> None:
    retriever = Retriever.build(None, CORPUS, tmp_path, kind="bm25", passages=3)
    (hits,) = retriever.search(["lake"], k=1, documents=True)
    assert [hit.id for hit in hits] == ["lakes"]


@pytest.mark.parametrize("family", ["Splade", "SparseEmbed", "ColBERT"])
def test_every_family_takes_passages(family: str, tmp_path: Path) -> None:
    from tiny import tiny_model

    import sourcier

    model = getattr(sourcier, family).from_base(tiny_model("bert", tmp_path / "base"))
    corpus = [
        Document(f"d{n}", "water ground spring well river lake rain search " * (n + 1)) for n in range(4)
    ]
    split = Retriever.build(model, corpus, tmp_path / "split", passages=8, save_model=False)
    whole = Retriever.build(
        model, [Document("d0", corpus[0].text.strip())], tmp_path / "whole", save_model=False
    )
    best = split.search(["rain on the lake"], k=4)
    assert sorted(best.ids[0].tolist()) == ["d0", "d1", "d2", "d3"]
    np.testing.assert_allclose(
        best.scores[0][best.ids[0] == "d0"], whole.search(["rain on the lake"], k=1).scores[0], rtol=1e-5
    )


def test_an_overlap_needs_passages(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give passages="):
        Retriever.build(Counter(), CORPUS, tmp_path, overlap=3)


def test_a_build_goes_on_with_its_passages(tmp_path: Path) -> None:
    class Failing(Counter):
        def encode(self, texts: Sequence[str], side: str, **options: Any) -> DenseVectors:
            if "river" in texts:
                raise RuntimeError("stopped")
            return super().encode(texts, side)

    class Marked(Counter):
        """Counts what it encodes."""

        seen = 0

        def encode(self, texts: Sequence[str], side: str, **options: Any) -> DenseVectors:
            self.seen += len(texts)
            return super().encode(texts, side)

    Failing.__name__ = Marked.__name__
    encoder = Marked()
    with pytest.raises(RuntimeError, match="stopped"):
        Retriever.build(Failing(), CORPUS, tmp_path, passages=3, overlap=0, chunk=2)
    with pytest.raises(SourcierError, match="unfinished build has passages"):
        Retriever.build(encoder, CORPUS, tmp_path, passages=4, overlap=0, chunk=2, resume=True)
    resumed = Retriever.build(encoder, CORPUS, tmp_path, passages=3, overlap=0, chunk=2, resume=True)
    assert encoder.seen == 4
    assert resumed.search(["rain"], k=2).ids.tolist() == [["rains", "lakes"]]
