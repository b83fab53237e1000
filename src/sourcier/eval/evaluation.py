"""Ask a retriever the queries of a collection, and measure its answers.

Nothing of the retrieval room is needed here: a retriever is whatever has `search(texts, k) -> Hits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import track

from sourcier.eval import measure
from sourcier.eval.runs import from_hits
from sourcier.types import DataError, Hits, SourcierError


class Searcher(Protocol):
    def search(self, queries: Sequence[str], k: int) -> Hits: ...


class HasText(Protocol):
    @property
    def text(self) -> str: ...


class Judged(Protocol):
    """Queries with judgments: what is needed of a collection."""

    @property
    def queries(self) -> Mapping[str, HasText]: ...

    @property
    def qrels(self) -> measure.Judgments: ...


def evaluate(
    retriever: Searcher,
    collection: Judged,
    *,
    measures: Sequence[str] = measure.MEASURES,
    k: int = 100,
    batch_size: int = 32,
    progress: bool = False,
) -> measure.Evaluation:
    """Search for every query of the collection that has a relevant document, `k` hits each, and measure the run."""
    check(collection, measures=measures, k=k)
    texts = _texts(collection)
    ids = list(texts)
    starts = range(0, len(ids), batch_size)
    run: dict[str, dict[str, float]] = {}
    for start in track(starts, "searching", console=Console(stderr=True), disable=not progress):
        batch = ids[start : start + batch_size]
        run |= from_hits(batch, retriever.search([texts[query] for query in batch], k))
    return measure.evaluate(collection.qrels, run, measures)


def check(collection: Judged, *, measures: Sequence[str], k: int) -> None:
    """Refuse measures that cannot be computed, or look deeper than the search: they would be too low without a word."""
    for name in measures:
        if measure.depth(name) > k:
            raise SourcierError(
                f"{name} looks at {measure.depth(name)} hits, but k is {k}: raise k, or leave it out"
            )
    measure.check(collection.qrels, measures)


def _texts(collection: Judged) -> dict[str, str]:
    """The texts of the queries that have a relevant document."""
    texts = {}
    for query in measure.with_relevant(collection.qrels):
        if query not in collection.queries:
            raise DataError(f"query '{query}' has judgments but no text: add it to the queries file")
        texts[query] = collection.queries[query].text
    return texts
