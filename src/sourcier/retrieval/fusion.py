"""Several rankings as one: by reciprocal ranks, or by weighted scores.

    with Fused([Retriever.open("index-bm25"), Retriever.open("index")]) as retriever:
        hits = retriever.search(["sort an array along an axis"], k=10)

A document that one ranking does not hold gets nothing from it. Equal sums come in the order in which the documents
first stand in the rankings, the first ranking before the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sourcier.indexes.ranking import checked_depth
from sourcier.indexes.where import Where
from sourcier.retrieval.service import Stage, passages_of
from sourcier.types import EMPTY_SCORE, Document, Hits

Method = Literal["reciprocal", "weighted"]
#: What is added to a rank, so that the first few do not decide alone (Cormack et al. 2009, section 2).
RANK_OFFSET = 60


def reciprocal_rank(rankings: Sequence[Hits], k: int, *, weights: Sequence[float] | None = None) -> Hits:
    """The sum over rankings of weight / (60 + rank). (Cormack, Clarke and Büttcher, SIGIR 2009.)"""
    return _fused(rankings, k, weights, lambda scores: 1 / (RANK_OFFSET + 1 + np.arange(len(scores))))


def weighted_scores(rankings: Sequence[Hits], k: int, *, weights: Sequence[float] | None = None) -> Hits:
    """The weighted sum of scores that are spread from 0 for the last to 1 for the first hit of each ranking.

    Documents without content, which have the lowest score there is, get 0 and spread nothing.
    """
    return _fused(rankings, k, weights, _spread)


class Fused(Stage):
    """A retriever over others. Closing it closes them. `depth`: hits that each is asked for, at least `k`."""

    def __init__(
        self,
        retrievers: Sequence[Any],
        *,
        method: Method = "reciprocal",
        weights: Sequence[float] | None = None,
        depth: int = 100,
    ) -> None:
        super().__init__(retrievers)
        if not retrievers:
            raise ValueError("there is nothing to fuse: give retrievers")
        if method not in ("reciprocal", "weighted"):
            raise ValueError(f"method={method!r} is unknown: give 'reciprocal' or 'weighted'")
        if weights is not None and len(weights) != len(retrievers):
            raise ValueError(f"{len(weights)} weights for {len(retrievers)} retrievers: give one for each")
        self.retrievers = list(retrievers)
        self._fuse = reciprocal_rank if method == "reciprocal" else weighted_scores
        self._weights, self._depth = weights, depth

    def _answer(self, queries: Sequence[str], k: int, documents: bool, where: Where | str | None) -> Hits:
        """The `k` best documents of each query by what all retrievers say of them."""
        k = checked_depth(k)
        found = [
            one.search(queries, k=max(k, self._depth), documents=documents, where=where)
            for one in self.retrievers
        ]
        hits = self._fuse(found, k, weights=self._weights)
        hits.passages = passages_of(hits, found)
        if documents:
            known: dict[str, Document] = {
                document.id: document
                for one in reversed(found)
                for row in one.documents or []
                for document in row
            }
            hits.documents = [[known[hit.id] for hit in row] for row in hits]
        return hits


def _fused(rankings: Sequence[Hits], k: int, weights: Sequence[float] | None, value: Any) -> Hits:
    """For each query the `k` documents with the largest weighted sums of `value` (of the scores of a ranking)."""
    if len({len(one) for one in rankings}) != 1:
        raise ValueError("rankings of different numbers of queries cannot be fused")
    weights = [1.0] * len(rankings) if weights is None else weights
    rows = []
    for query in range(len(rankings[0])):
        sums: dict[str, float] = {}
        for ranking, weight in zip(rankings, weights, strict=True):
            count = int(ranking.counts[query])
            for identifier, one in zip(
                ranking.ids[query, :count], value(ranking.scores[query, :count]), strict=True
            ):
                sums[identifier] = sums.get(identifier, 0.0) + weight * float(one)
        rows.append(sorted(sums.items(), key=lambda item: -item[1])[:k])
    return Hits.from_rows(rows)


def _spread(scores: np.ndarray) -> np.ndarray:
    """Scores from 0 for the lowest to 1 for the highest; 1 for all where they are equal."""
    filled = scores > EMPTY_SCORE
    if not filled.any():
        return np.zeros(len(scores))
    lowest, highest = scores[filled].min(), scores[filled].max()
    wide = (
        np.ones(len(scores))
        if lowest == highest
        else (scores.astype(np.float64) - lowest) / (highest - lowest)
    )
    return np.where(filled, wide, 0)
