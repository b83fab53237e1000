"""Asking a retriever: every judged query once, in batches, deep enough for the measures."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from sourcier.data.collections import read_beir
from sourcier.encodings import DenseVectors
from sourcier.eval.evaluation import evaluate
from sourcier.indexes import create, open_index
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


def test_judgments_that_point_nowhere_are_counted_and_the_rest_is_measured(tmp_path: Path) -> None:
    """One unknown document, one unknown query, one judgment twice, one query without hits. (Hazard H3.)"""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "one"}\n{"_id": "d2", "text": "two"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "1"}\n{"_id": "q2", "text": "2"}\n')
    judgments = ["q1\td1\t1", "q1\td1\t1", "q1\tnowhere\t1", "nobody\td1\t1", "q2\td2\t1"]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(judgments))
    judged = read_beir(tmp_path, "test", lenient=True)
    assert dict(judged.report.skipped) == {"unknown document": 1, "unknown query": 1}
    assert dict(judged.report.noted) == {"repeated judgment": 1}
    result = evaluate(Lookup({"1": [("d1", 1.0)], "2": []}), judged)
    assert (result.queries, set(result.means.values())) == (2, {0.5})


def test_memory_is_that_of_the_hits_and_not_of_the_chunks(tmp_path: Path) -> None:
    """k=1000 over 2 and over 16 tiles of documents. (Hazard H5.)"""
    few, many = (_peak_memory(tmp_path / str(count), count) for count in (4_000, 32_000))
    assert many < 1.1 * few


def _peak_memory(folder: Path, documents: int) -> int:
    """Bytes that an evaluation of 16 queries needs at most, in batches of 4."""
    random = np.random.default_rng(0)
    ids = [f"d{number:06}" for number in range(documents)]
    with create("dense", folder) as writer:
        writer.add(ids, DenseVectors(random.normal(size=(documents, 4)).astype(np.float32)))
        writer.finish()
    index, vectors = open_index(folder), random.normal(size=(16, 4)).astype(np.float32)

    class Searcher:
        def search(self, queries: Sequence[str], k: int) -> Hits:
            return index.search(DenseVectors(vectors[[int(query) for query in queries]]), k)

    queries = {f"q{number}": Text(str(number)) for number in range(16)}
    judged = Judged(queries, {query: {ids[0]: 1} for query in queries})
    index.search(DenseVectors(vectors), 1000)  # compiles what is compiled at the first call
    tracemalloc.start()
    try:
        evaluate(Searcher(), judged, k=1000, batch_size=4)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
