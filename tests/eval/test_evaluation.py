"""Asking a retriever: every judged query once, in batches, deep enough for the measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sourcier.eval.evaluation import evaluate
from sourcier.types import DataError, Hits, SourcierError


@dataclass
class Text:
    text: str


@dataclass
class Judged:
    queries: dict[str, Text]
    qrels: dict[str, dict[str, int]]


@dataclass
class Lookup:
    """Finds what it was told to, and notes how it was asked."""

    answers: dict[str, list[tuple[str, float]]]
    batches: list[int] = field(default_factory=list)

    def search(self, queries: Sequence[str], k: int) -> Hits:
        self.batches.append(len(queries))
        return Hits.from_rows([self.answers[query][:k] for query in queries])


def collection() -> Judged:
    queries = {f"q{number}": Text(f"text {number}") for number in range(5)}
    return Judged(queries, {query: {f"d{query[1]}": 1} for query in queries if query != "q4"})


def test_only_judged_queries_are_asked_in_batches() -> None:
    retriever = Lookup({f"text {number}": [(f"d{number}", 1.0)] for number in range(4)})
    result = evaluate(retriever, collection(), batch_size=3)
    assert retriever.batches == [3, 1]
    assert result.means["nDCG@10"] == 1.0
    assert list(result.run) == ["q0", "q1", "q2", "q3"]


def test_queries_without_hits_stay_in_the_mean() -> None:
    retriever = Lookup({"text 0": [("d0", 1.0)], "text 1": [], "text 2": [], "text 3": []})
    assert evaluate(retriever, collection(), measures=["success@1"]).means["success@1"] == 0.25


def test_a_measure_deeper_than_the_search_is_refused() -> None:
    with pytest.raises(SourcierError, match="recall@100 looks at 100 hits, but k is 10: raise k"):
        evaluate(Lookup({}), collection(), k=10)


def test_a_judged_query_without_text_is_named() -> None:
    with pytest.raises(DataError, match="query 'q9' has judgments but no text"):
        evaluate(Lookup({}), Judged({}, {"q9": {"d": 1}}))
