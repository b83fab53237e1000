"""The part of dev that a run looks at, and what it finds there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_model

from sourcier.data.collections import Collection, Corpus, Query
from sourcier.data.lines import ReadReport
from sourcier.models.dense import Dense
from sourcier.train.validation import Part, Validation, take_part
from sourcier.types import Document, SourcierError


def collection(documents: int = 50, queries: int = 10) -> Collection:
    """Query `q3` asks for document `d3`, and knows that `d4` does not answer it."""
    return Collection(
        corpus=Corpus.of([Document(f"d{number}", f"text {number}") for number in range(documents)]),
        queries={f"q{number}": Query(f"q{number}", f"text {number}") for number in range(queries)},
        qrels={f"q{number}": {f"d{number}": 1, f"d{number + 1}": 0} for number in range(queries)},
        report=ReadReport(),
    )


def ids(part: Part) -> list[str]:
    return [document.id for document in part.documents]


def test_holds_every_judged_document_and_others_up_to_the_size() -> None:
    part = take_part(collection(), queries=2, documents=10, seed=0)
    judged = {document for judgments in part.qrels.values() for document in judgments}
    assert len(part.queries) == 2
    assert judged <= set(ids(part))
    assert len(set(ids(part))) == 10


def test_keeps_the_order_of_the_corpus() -> None:
    found = ids(take_part(collection(), queries=5, documents=20, seed=0))
    assert found == sorted(found, key=lambda name: int(name[1:]))


def test_judged_documents_are_kept_beyond_the_size() -> None:
    part = take_part(collection(), queries=10, documents=3, seed=0)
    assert ids(part) == [f"d{number}" for number in range(11)]


def test_the_whole_corpus_where_no_size_is_given() -> None:
    assert len(take_part(collection(), queries=1, documents=None, seed=0).documents) == 50


def test_one_seed_gives_one_part_and_another_another() -> None:
    parts = [take_part(collection(), queries=3, documents=12, seed=seed) for seed in (1, 1, 2)]
    assert parts[0] == parts[1]
    assert ids(parts[0]) != ids(parts[2])


def test_fills_up_evenly_from_the_whole_corpus() -> None:
    """Of some 40 documents that nobody judged some 20 are drawn: each about 200 times in 400 parts (sd 10)."""
    drawn = [ids(take_part(collection(), queries=9, documents=31, seed=seed)) for seed in range(400)]
    counts = [sum(f"d{number}" in part for part in drawn) for number in range(11, 50)]
    assert min(counts) > 150
    assert max(counts) < 270


def test_queries_without_a_relevant_document_are_left_out() -> None:
    dev = collection(queries=3)
    dev.qrels["q1"] = {"d1": 0}
    assert list(take_part(dev, queries=10, documents=5, seed=0).queries) == ["q0", "q2"]


def test_dev_without_judgments_is_an_error() -> None:
    dev = collection()
    dev.qrels.clear()
    with pytest.raises(SourcierError, match="no query has a relevant document"):
        take_part(dev, queries=10, documents=5, seed=0)


def test_says_how_much_it_is() -> None:
    part = take_part(collection(documents=2000), queries=4, documents=1000, seed=0)
    assert part.extent == "4 queries in 1,000 of 2,000 documents"


def test_an_unknown_measure_is_an_error_before_anything_is_encoded() -> None:
    with pytest.raises(SourcierError, match="unknown measure 'nDGC'"):
        Validation(take_part(collection(), queries=1, documents=5, seed=0), "nDGC@10")


def test_a_model_that_finds_what_it_is_asked_for_scores_one(tmp_path: Path) -> None:
    """Query and document are the same text, so that the cosine of no other document is higher."""
    model = Dense.from_base(tiny_model("bert", tmp_path / "bert"))
    assert Validation(take_part(collection(), queries=5, documents=20, seed=0), "Success@1")(model) == 1.0


def test_a_model_is_neither_hashed_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Dense.from_base(tiny_model("bert", tmp_path / "bert"))
    for name in ("fingerprint", "save_pretrained"):
        monkeypatch.setattr(model, name, lambda *ignored, name=name: pytest.fail(name))
    Validation(take_part(collection(), queries=2, documents=5, seed=0), "nDCG@10")(model)
