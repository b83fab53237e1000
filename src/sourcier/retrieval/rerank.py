"""A second stage: the best candidates of a first one, scored again by a model that is too slow for all documents.

    with Reranked(Retriever.open("index-bm25"), sourcier.load("run")) as retriever:
        hits = retriever.search(["sort an array along an axis"], k=10)

The model is one of ours of any family, or a cross-encoder (`sourcier.models.cross_encoder`), which reads query and
document together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol, Union, runtime_checkable

import numpy as np

from sourcier.indexes.ranking import checked_depth
from sourcier.indexes.where import Where
from sourcier.retrieval.scoring import scores
from sourcier.retrieval.service import Stage, passages_of, ranked
from sourcier.types import EMPTY_SCORE, Document, Encoder, Hit, Hits, has_content

#: Queries whose candidates are encoded together, which bounds the memory.
_GROUP = 32


@runtime_checkable
class PairScorer(Protocol):
    """Gives pairs of texts a score each."""

    def scores(self, pairs: Sequence[tuple[str, str]], *, progress: bool = False) -> np.ndarray: ...


class Reranked(Stage):
    """A retriever that asks another one for `candidates` documents and puts them in the order of `scorer`.

    Documents that the first stage did not find stay out. Closing it closes the first stage.
    """

    def __init__(
        self, first: Any, scorer: Union[Encoder, PairScorer], *, candidates: int = 100, batch_size: int = 32
    ) -> None:
        super().__init__([first])
        if candidates < 1 or batch_size < 1:
            raise ValueError(f"candidates={candidates}, batch_size={batch_size}: give at least 1")
        self.first = first
        self.scorer = scorer
        self.candidates = candidates
        self.batch_size = batch_size
        self._scoring = threading.Lock()

    def _answer(self, queries: Sequence[str], k: int, documents: bool, where: Where | str | None) -> Hits:
        """The `k` best of the candidates of each query; equal scores in the order of the first stage.

        Of a document that was indexed in passages the best one is scored again. Documents without content stay last.
        """
        k = checked_depth(k)
        found = self.first.search(queries, k=max(k, self.candidates), documents=True, where=where)
        rows = list(found)
        hits = ranked(
            [
                ([hit.id for hit in row], again)
                for row, again in zip(rows, self._scores(queries, rows), strict=True)
            ],
            k,
        )
        hits.version = found.version
        hits.passages = passages_of(hits, [found])
        if documents:
            known = {hit.id: hit.document for row in rows for hit in row if hit.document is not None}
            hits.documents = [[known[hit.id] for hit in row] for row in hits]
        return hits

    def _scores(self, queries: Sequence[str], rows: Sequence[Sequence[Hit]]) -> list[np.ndarray]:
        """The scores of each query's candidates. A few queries at a time: their candidates are many texts."""
        again: list[np.ndarray] = []
        # Neither an encoder nor a cross-encoder need be safe to call from several threads.
        with self._scoring:
            for start in range(0, len(rows), _GROUP):
                texts = [[_content(hit) for hit in row] for row in rows[start : start + _GROUP]]
                filled = [[text for text in row if has_content(text)] for row in texts]
                found = self._scores_of(queries[start : start + _GROUP], filled)
                again += [_with_empty(row, one) for row, one in zip(texts, found, strict=True)]
        return again

    def _scores_of(self, queries: Sequence[str], texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
        if isinstance(self.scorer, PairScorer):
            return _pair_scores(self.scorer, queries, texts)
        return _encoded_scores(self.scorer, queries, texts, self.batch_size)


def _pair_scores(
    scorer: PairScorer, queries: Sequence[str], texts: Sequence[Sequence[str]]
) -> list[np.ndarray]:
    """The scores of each query with its texts."""
    pairs = [(query, text) for query, row in zip(queries, texts, strict=True) for text in row]
    ends = np.cumsum([len(row) for row in texts])
    return np.split(scorer.scores(pairs) if pairs else np.empty(0), ends[:-1])


def _encoded_scores(
    encoder: Encoder, queries: Sequence[str], texts: Sequence[Sequence[str]], batch_size: int
) -> list[np.ndarray]:
    """The scores of each query with its texts. A text that several queries found is encoded once."""
    places = {text: number for number, text in enumerate(dict.fromkeys(chain.from_iterable(texts)))}
    if not places:
        return [np.empty(0)] * len(texts)
    encoded: Any = encoder.encode(list(places), "document", batch_size=batch_size)
    asked: Any = encoder.encode(list(queries), "query", batch_size=batch_size)
    return [
        scores(
            asked[number : number + 1], encoded.take(np.array([places[text] for text in row], dtype=np.int64))
        )
        for number, row in enumerate(texts)
    ]


def _content(hit: Hit) -> str:
    """What is scored of a hit."""
    assert hit.document is not None
    passage = hit.document.text if hit.passage is None else hit.passage
    return Document(hit.id, passage, hit.document.title).content


def _with_empty(texts: Sequence[str], scores: np.ndarray) -> np.ndarray:
    """Scores of texts from those of the ones with content."""
    every = np.full(len(texts), EMPTY_SCORE, dtype=np.float32)
    every[[has_content(text) for text in texts]] = scores
    return every
