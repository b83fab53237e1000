"""BM25 on the collections that lie beside the repository reaches the figures that bm25s itself does."""

from __future__ import annotations

from pathlib import Path

import pytest

from sourcier.data.collections import read_beir
from sourcier.eval.measure import evaluate
from sourcier.retrieval.retriever import Retriever


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("cranfield", "test", 0.369),
        ("xquad-en", "test", 0.959),
        pytest.param("medquad", "dev", 0.527, marks=pytest.mark.slow),
    ],
)
def test_bm25_reaches_the_known_figure(
    shared_data: Path, tmp_path: Path, name: str, split: str, expected: float
) -> None:
    collection = read_beir(shared_data / name, split)
    retriever = Retriever.build(None, collection.corpus, tmp_path, kind="bm25")
    texts = [query.text for query in collection.queries.values()]
    hits = retriever.search(texts, k=100)
    run = {
        identifier: {hit.id: hit.score for hit in row}
        for identifier, row in zip(collection.queries, hits, strict=True)
    }
    result = evaluate(collection.qrels, run, ["nDCG@10"])
    assert result.means["nDCG@10"] == pytest.approx(expected, abs=0.001)
