"""Measures against arithmetic, and the cases in which measuring tools drop or reorder in silence."""

from __future__ import annotations

import random
import shutil
from math import log2

import ir_measures
import pytest

from sourcier.eval.measure import check, depth, evaluate, parse, with_relevant
from sourcier.types import DataError, SourcierError


def test_values_are_those_of_the_definitions() -> None:
    qrels = {"q": {"a": 2, "b": 1, "c": 0}}
    run = {"q": {"x": 4.0, "b": 3.0, "a": 2.0}}
    ideal = 2 / log2(2) + 1 / log2(3)
    expected = {
        "nDCG@10": (1 / log2(3) + 2 / log2(4)) / ideal,
        "MRR@10": 1 / 2,
        "recall@100": 1.0,
        "success@1": 0.0,
    }
    assert evaluate(qrels, run).means == pytest.approx(expected)


def test_agrees_with_a_plain_ndcg_on_random_runs() -> None:
    generator = random.Random(0)
    documents = [f"d{number}" for number in range(30)]
    qrels = {f"q{n}": {d: generator.randint(0, 3) for d in generator.sample(documents, 8)} for n in range(20)}
    qrels = {query: grades for query, grades in qrels.items() if any(grades.values())}
    run = {
        query: {d: float(generator.randint(0, 5)) for d in generator.sample(documents, 15)} for query in qrels
    }
    measured = evaluate(qrels, run, ["nDCG@10"]).per_query["nDCG@10"]
    assert measured == pytest.approx({query: _ndcg(qrels[query], run[query], 10) for query in qrels})


def _ndcg(grades: dict[str, int], found: dict[str, float], cutoff: int) -> float:
    order = sorted(found, key=lambda document: -found[document])[:cutoff]
    gains = [grades.get(document, 0) for document in order]
    ideal = sorted(grades.values(), reverse=True)[:cutoff]
    return _dcg(gains) / _dcg(ideal)


def _dcg(gains: list[int]) -> float:
    return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, start=1))


@pytest.mark.parametrize("run", [{"hit": {"d": 1.0}}, {"hit": {"d": 1.0}, "none": {}}])
def test_a_query_without_hits_counts_zero(run: dict[str, dict[str, float]]) -> None:
    result = evaluate(
        {"hit": {"d": 1}, "none": {"d": 1}}, run, ["nDCG@10", "MRR@10", "recall@100", "success@1"]
    )
    assert set(result.means.values()) == {0.5}
    assert result.queries == 2


def test_a_query_without_relevant_documents_is_left_out() -> None:
    result = evaluate({"q": {"d": 1}, "empty": {"d": 0}}, {"q": {"d": 1.0}, "empty": {"d": 1.0}}, ["MRR@10"])
    assert result.per_query["MRR@10"] == {"q": 1.0}


def test_a_query_that_is_not_judged_is_left_out() -> None:
    assert (
        evaluate({"q": {"d": 1}}, {"q": {"d": 1.0}, "other": {"x": 1.0}}, ["MRR@10"]).means["MRR@10"] == 1.0
    )


def test_a_document_with_the_id_of_its_query_counts() -> None:
    assert evaluate({"7": {"7": 1}}, {"7": {"7": 1.0}}, ["success@1"]).means["success@1"] == 1.0


@pytest.mark.parametrize("measure", ["MRR@10", "nDCG@10", "success@1", "AP"])
def test_equal_scores_rank_in_the_order_of_the_run(measure: str) -> None:
    """pytrec_eval puts the greater id first, others the smaller."""
    for first, second in (("a", "z"), ("z", "a")):
        result = evaluate({"q": {first: 1}}, {"q": {first: 1.0, second: 1.0}}, [measure])
        assert result.means[measure] == 1.0


def test_scores_that_single_precision_cannot_tell_apart_rank_by_score() -> None:
    result = evaluate({"q": {"b": 1}}, {"q": {"a": 1.0, "b": 1.0 + 1e-12}}, ["success@1"])
    assert result.means["success@1"] == 1.0


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("ndcg@10", "nDCG@10"),
        ("mrr@10", "RR@10"),
        ("recall@100", "R@100"),
        ("success@1", "Success@1"),
        ("MAP", "AP"),
        ("P(rel=2)@5", "P(rel=2)@5"),
    ],
)
def test_measures_have_the_names_people_use(name: str, meaning: str) -> None:
    assert str(parse(name)) == meaning


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ndgc@10", "unknown measure 'ndgc': did you mean 'nDCG'?"),
        ("nDCG@ten", "measure 'nDCG@ten' cannot be read: write it like nDCG@10 or P(rel=2)@5"),
        ("nDCG@0", "measure 'nDCG@0' has a cut-off or grade below 1: write it like nDCG@10 or P(rel=2)@5"),
        (
            "P(rel=0)@5",
            "measure 'P(rel=0)@5' has a cut-off or grade below 1: write it like nDCG@10 or P(rel=2)@5",
        ),
        (
            "ERR",
            "measure 'ERR' is computed by no library as written: change its cut-off or parameters, or take another",
        ),
        ("RR(foo=1)@10", "measure 'RR(foo=1)@10' cannot be read: write it like nDCG@10 or P(rel=2)@5"),
    ],
)
def test_an_unknown_measure_is_one_line(name: str, message: str) -> None:
    with pytest.raises(SourcierError) as caught:
        parse(name)
    assert str(caught.value) == message


def test_a_measure_whose_library_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (library,) = (one for one in ir_measures.DefaultPipeline.providers if one.NAME == "pyndeval")
    monkeypatch.setattr(library, "_is_available", False)
    with pytest.raises(SourcierError) as caught:
        parse("alpha_nDCG@10")
    assert str(caught.value) == (
        "measure 'alpha_nDCG@10' needs pyndeval, which is not installed: pip install ir-measures[pyndeval], "
        "or choose another, such as nDCG@10"
    )


@pytest.mark.skipif(shutil.which("perl") is None, reason="ERR is computed by a program in Perl")
def test_ids_reach_no_library_that_would_cut_them() -> None:
    """Grade g makes a user stop with probability (2**g - 1) / 16; the reciprocal rank of the stop counts."""
    qrels = {"q-1": {"a b": 1, "a c": 4}, "p-1": {"a b": 2}}
    run = {"q-1": {"a b": 3.0, "b": 2.0}, "p-1": {"c": 9.0, "a b": 3.0}}
    assert evaluate(qrels, run, ["ERR@10"]).per_query["ERR@10"] == {"q-1": 1 / 16, "p-1": 3 / 16 / 2}


@pytest.mark.skipif(shutil.which("perl") is None, reason="ERR is computed by a program in Perl")
def test_judgments_that_a_measure_cannot_use_are_told_before_the_search() -> None:
    with pytest.raises(SourcierError, match="measure 'ERR@10' cannot be computed from these judgments"):
        check({"q": {"d": 7}}, ["nDCG@10", "ERR@10"])


def test_depth_is_the_cutoff() -> None:
    assert (depth("recall@100"), depth("AP")) == (100, 0)


def test_judgments_without_any_relevant_document_are_an_error() -> None:
    with pytest.raises(DataError, match="no query has a relevant document"):
        with_relevant({"q": {"d": 0}})
