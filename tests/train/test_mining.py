"""Negatives from an index: what is chosen, what never is, and what is done where hits are too few."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourcier.data.examples import Example, Examples
from sourcier.encodings import DenseVectors
from sourcier.indexes import create, open_index
from sourcier.retrieval.retriever import Retriever
from sourcier.train.mining import mine, with_negatives
from sourcier.train.negatives import Rules
from sourcier.types import Document, SourcierError


class Numbers:
    """An encoder to which a document is the number that it begins with, and every query is 1: that is the score."""

    family = "dense"

    def encode(
        self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False
    ) -> DenseVectors:
        values = [1.0 if side == "query" else float(text.split()[0]) for text in texts]
        return DenseVectors(np.array(values, dtype=np.float32)[:, None])


def retriever(folder: Path, *texts: str) -> Retriever:
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    return Retriever.build(Numbers(), documents, folder / "index")


def rules(**settings: Any) -> Rules:
    return Rules(**{"ranks": "1-3", "negatives": 2} | settings)


def negatives(found: Retriever, *examples: Example, **settings: Any) -> list[tuple[str, ...]]:
    return [row.negatives for row in mine(found, Examples(examples), rules(**settings)).examples]


def test_the_best_hits_but_the_positive(tmp_path: Path) -> None:
    found = retriever(tmp_path, "1 a", "4 b", "3 c", "2 d")
    assert negatives(found, Example("q", "3 c")) == [("4 b", "2 d")]


def test_no_text_that_is_relevant_to_the_query_in_another_row(tmp_path: Path) -> None:
    found = retriever(tmp_path, "4 a", "3 b", "2 c", "1 d")
    mined = negatives(found, Example("q", "4 a"), Example("q", "3 b"), Example("r", "1 d"), ranks="1-4")
    assert mined == [("2 c", "1 d"), ("2 c", "1 d"), ("4 a", "3 b")]


def test_no_copy_of_the_positive_under_another_id(tmp_path: Path) -> None:
    found = retriever(tmp_path, "4 a", "4 a", "3 b", "2 c")
    assert negatives(found, Example("q", "4 a"), ranks="1-4") == [("3 b", "2 c")]


def test_not_the_query_itself(tmp_path: Path) -> None:
    found = retriever(tmp_path, "4 a", "3 b", "2 c", "1 d")
    assert negatives(found, Example("4 a", "3 b"), ranks="1-4") == [("2 c", "1 d")]


def test_no_text_twice(tmp_path: Path) -> None:
    found = retriever(tmp_path, "9 a", "3 b", "3 b", "2 c")
    assert negatives(found, Example("q", "9 a"), ranks="1-4") == [("3 b", "2 c")]


def test_none_too_close_to_the_score_that_the_positive_has_as_a_hit(tmp_path: Path) -> None:
    """10 - 20% = 8: 9 is too close, 8 and 7 are not."""
    found = retriever(tmp_path, "9 a", "10 b", "8 c", "7 d")
    mined = mine(found, Examples([Example("q", "10 b")]), rules(ranks="1-4", relative_margin=0.2))
    assert mined.examples[0].negatives == ("8 c", "7 d")
    assert mined.report.too_close == 1


def test_a_title_is_part_of_the_text(tmp_path: Path) -> None:
    documents = [Document("a", "well", title="3"), Document("b", "well", title="2")]
    found = Retriever.build(Numbers(), documents, tmp_path / "index")
    assert negatives(found, Example("q", "3 well"), ranks="1-2", negatives=1) == [("2 well",)]


def test_a_document_without_its_title_is_that_document(tmp_path: Path) -> None:
    """Pairs from elsewhere: the positive is no negative, has its score as a hit, and is told of."""
    documents = [
        Document("a", "of a well", title="9"),
        Document("b", "of a lake", title="8"),
        Document("c", "of rain", title="3"),
    ]
    found = Retriever.build(Numbers(), documents, tmp_path / "index")
    row = Example("q", "of a well")
    mined = mine(found, Examples([row]), rules(negatives=1, absolute_margin=2.0))
    assert mined.examples[0].negatives == ("3 of rain",)
    assert (mined.report.untitled, mined.report.not_in_index, mined.report.too_close) == (1, 0, 1)
    assert "1 positives are documents of the index without their titles" in str(mined.report)


def test_a_row_with_too_few_hits_gets_documents_that_are_none(tmp_path: Path) -> None:
    """Ranks 1 to 3 leave one hit beside the positive and its copy; what is below is 2, 1 and one without content."""
    found = retriever(tmp_path, "9 a", "9 a", "8 b", "2 c", "1 d")
    mined = mine(found, Examples([Example("q", "9 a")]), rules(negatives=3))
    first, *others = mined.examples[0].negatives
    assert (first, sorted(others)) == ("8 b", ["1 d", "2 c"])
    assert (mined.report.filled, mined.report.drawn, mined.report.short) == (1, 2, 0)


def test_what_the_margin_took_out_is_not_drawn_either(tmp_path: Path) -> None:
    found = retriever(tmp_path, "9 a", "8 b", "7 c", "1 d")
    assert negatives(found, Example("q", "9 a"), negatives=1, absolute_margin=5.0) == [("1 d",)]


def test_where_the_index_is_too_small_a_row_stays_short(tmp_path: Path) -> None:
    found = retriever(tmp_path, "9 a", "8 b")
    mined = mine(found, Examples([Example("q", "9 a")]), rules())
    assert mined.examples[0].negatives == ("8 b",)
    assert (mined.report.short, mined.report.negatives) == (1, 1)


def test_positives_that_the_index_does_not_show_are_counted(tmp_path: Path) -> None:
    """One lies at rank 4 of 3; the other is no document."""
    found = retriever(tmp_path, "9 a", "8 b", "7 c", "6 d")
    report = mine(found, Examples([Example("q", "6 d"), Example("r", "nowhere")]), rules()).report
    assert (report.not_found, report.not_in_index) == (1, 1)


def test_random_negatives_do_not_depend_on_the_other_rows(tmp_path: Path) -> None:
    found = retriever(tmp_path, *(f"{number} x" for number in range(1, 60)))
    settings = {"ranks": "1-50", "sampling": "random", "negatives": 5}
    first, second = Example("q", "9 x"), Example("r", "9 x")
    assert negatives(found, first, second, **settings)[0] == negatives(found, first, **settings)[0]


def test_examples_keep_rows_and_lose_scores(tmp_path: Path) -> None:
    examples = Examples([Example("q", "9 a", ("old",), (1.0, 0.0)), Example("r", "8 b")])
    changed = with_negatives(examples, [("new",), ("other",)])
    assert list(changed) == [Example("q", "9 a", ("new",)), Example("r", "8 b", ("other",))]
    assert examples[0].negatives == ("old",)


def test_a_mixture_is_drawn_as_before() -> None:
    parts = [Examples([Example(f"{name}{n}", "p") for n in range(4)]) for name in "ab"]
    mixture = Examples.mix([(parts[0], 3.0), (parts[1], 1.0)], seed=1)
    changed = with_negatives(mixture, [("n",)] * 8)
    assert changed.draw(2).tolist() == mixture.draw(2).tolist()


def test_an_index_without_documents_is_refused(tmp_path: Path) -> None:
    with create("dense", tmp_path / "index", family="dense") as writer:
        writer.add(["a"], DenseVectors(np.ones((1, 1), dtype=np.float32)))
        writer.finish()
    bare = Retriever(open_index(tmp_path / "index"), Numbers())
    with pytest.raises(SourcierError, match="the index holds no documents"):
        mine(bare, Examples([Example("q", "1 a")]), rules())
