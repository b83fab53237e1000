"""How good a model is on dev while it trains: exact search in a part of the corpus, small enough to wait for.

The part holds every document that is judged for the chosen queries, and others drawn at random. A figure on
it is higher than one on the whole corpus; it serves to tell which of two models is the better one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sourcier.data.collections import Collection, Query
from sourcier.eval.evaluation import evaluate
from sourcier.eval.measure import check, depth, with_relevant
from sourcier.models.encoder import SearchModel
from sourcier.retrieval.retriever import Retriever
from sourcier.types import DataError, Document

#: How many hits a query are looked at where the measure itself sets no limit.
DEPTH = 1000


@dataclass(frozen=True)
class Part:
    """Judged queries, and the documents they are searched in."""

    documents: list[Document]
    queries: Mapping[str, Query]
    qrels: Mapping[str, Mapping[str, int]]
    corpus_size: int  # of the whole that `documents` were taken from

    @property
    def extent(self) -> str:
        """How much it is, in words."""
        return f"{len(self.queries):,} queries in {len(self.documents):,} of {self.corpus_size:,} documents"


class OnlyEncoding:
    """A model as an encoder that an index does not keep: nothing of it is written or hashed."""

    def __init__(self, model: SearchModel) -> None:
        self.family = model.family
        self.encode = model.encode


class SamePart:
    """The part of a run's state that knows whether dev is what it was, so that its figures can be compared."""

    def __init__(self, part: Part | None) -> None:
        summed = hashlib.blake2b(digest_size=16)
        if part is not None:
            for document in part.documents:
                summed.update(repr(document).encode("utf-8", "surrogatepass"))
            for query in sorted(part.queries):
                told = repr((query, part.queries[query].text, sorted(part.qrels[query].items())))
                summed.update(told.encode("utf-8", "surrogatepass"))
        self._digest = summed.hexdigest()

    def state_dict(self) -> dict[str, str]:
        return {"digest": self._digest}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        if state["digest"] != self._digest:
            raise DataError("dev is not what the run was measured on before: restore it, or start a new run")


class Validation:
    """Measures a model on the same part of dev every time."""

    def __init__(self, part: Part, metric: str) -> None:
        self.part = part
        self.metric = metric
        self._depth = depth(metric) or DEPTH
        check(part.qrels, (metric,))

    def __call__(self, model: SearchModel) -> float:
        """The measure of `model`, mean over the queries."""
        with TemporaryDirectory(prefix="sourcier-dev-") as folder:
            retriever = Retriever.build(OnlyEncoding(model), self.part.documents, Path(folder) / "index")
            try:
                evaluation = evaluate(retriever, self.part, measures=(self.metric,), k=self._depth)
            finally:
                retriever.close()
        return evaluation.means[self.metric]


def take_part(dev: Collection, *, queries: int, documents: int | None, seed: int) -> Part:
    """At most `queries` judged queries of `dev` and `documents` documents (None: all); one seed, one part.

    Documents that are judged for these queries are all kept, even where they are more than `documents`.
    """
    answerable = sorted(query for query in with_relevant(dev.qrels) if query in dev.queries)
    chosen = sorted(random.Random(seed).sample(answerable, min(queries, len(answerable))))
    qrels = {query: dev.qrels[query] for query in chosen}
    judged = {document for judgments in qrels.values() for document in judgments}
    room = None if documents is None else max(0, documents - len(judged))
    kept, size = _sample(dev.corpus, judged, room, seed)
    return Part(kept, {query: dev.queries[query] for query in chosen}, qrels, size)


def _sample(
    corpus: Iterable[Document], judged: set[str], room: int | None, seed: int
) -> tuple[list[Document], int]:
    """The judged documents and `room` others drawn evenly, in the order of the corpus, and the corpus' size.

    One pass, and no more documents in memory than are kept: reservoir sampling (Vitter 1985, algorithm R).
    """
    generator = random.Random(seed)
    kept: list[tuple[int, Document]] = []
    sample: list[tuple[int, Document]] = []
    others = size = 0
    for place, document in enumerate(corpus):
        size = place + 1
        if document.id in judged:
            kept.append((place, document))
            continue
        others += 1
        if room is None or len(sample) < room:
            sample.append((place, document))
        elif (slot := generator.randrange(others)) < room:
            sample[slot] = (place, document)
    return [document for _, document in sorted(kept + sample, key=lambda entry: entry[0])], size
