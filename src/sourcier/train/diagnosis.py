"""What training did to a model's scores: figures before and after, the curves of the run, the worst queries.

    part = take_part(dev, queries=200, documents=1000, seed=42)
    diagnosis = diagnose("runs/first", part, split="dev")
    Path("page.html").write_text(diagnosis_page.render(diagnosis))

Shapes: Q queries of a part, N documents of it, P pairs of a query and a relevant document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourcier.eval import measure
from sourcier.models.checkpoints import load
from sourcier.models.encoder import SearchModel
from sourcier.models.representations import Representation
from sourcier.train.checkpoint import RunFolder
from sourcier.train.health import compare, shape, to_similarities
from sourcier.train.history import History, read_history
from sourcier.train.record import RunRecord, model_at_start
from sourcier.train.validation import Part
from sourcier.types import Side, SourcierError

#: Scores a query that the histograms of hard and of random negatives are made of.
SAMPLE = 5
#: Documents that the effective rank and the mean cosine are taken of: enough, and a small matrix.
SHAPED = 256
MEASURE = "nDCG@10"


@dataclass(frozen=True, eq=False)
class Scores:
    """The similarities of a model on a part of a collection, and the figures that sum them up.

    A similarity is a score over the query's score with itself, as in `sourcier.train.health.examine`; the figures are
    those of that function with all documents of the part in place of a batch. The positive is the best relevant one.
    """

    queries: list[str]  # ids of the queries that have a relevant document in the part
    similarities: Tensor  # [Q, N]
    relevant: Tensor  # [Q, N] bool
    figures: dict[str, float]

    @property
    def positives(self) -> np.ndarray:
        """Similarities with all relevant documents. [P]"""
        return self.similarities[self.relevant].numpy()

    @property
    def hard(self) -> np.ndarray:
        """The `SAMPLE` largest similarities of each query with a document that is not relevant. [Q * SAMPLE]"""
        others = self.similarities.masked_fill(self.relevant, -torch.inf)
        best = others.topk(min(SAMPLE, others.shape[1]), dim=1).values.flatten()
        return best[best.isfinite()].numpy()

    @property
    def random(self) -> np.ndarray:
        """Similarities with `SAMPLE` documents a query, drawn evenly; the same ones each time. [at most Q * SAMPLE]"""
        queries, documents = self.similarities.shape
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(documents, (queries, SAMPLE), generator=generator)
        kept = ~self.relevant.gather(1, drawn)
        return self.similarities.gather(1, drawn)[kept].numpy()


@dataclass(frozen=True)
class Found:
    """A document with what a query makes of it."""

    id: str
    text: str
    similarity: float
    rank: int  # from 1


@dataclass(frozen=True)
class WorstQuery:
    """A query whose relevant document is far down: what was expected, and what came first instead."""

    id: str
    text: str
    expected: Found
    found: Found


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All that is told of a run."""

    run: str
    record: RunRecord
    split: str  # that it is measured on
    extent: str  # of the part of it
    history: History
    before: Scores | None  # at step 0
    why_not_before: str | None
    after: Scores  # at the last step
    worst: list[WorstQuery]

    def verdict(self) -> list[str]:
        """What is to be said of the run, in sentences; the first one is whether its similarity is compressed."""
        return [*self.history.verdict(), *self._of_split()]

    def values(self) -> dict[str, Any]:
        """The figures as JSON can hold them."""
        return {
            "run": self.run,
            "split": self.split,
            "extent": self.extent,
            "compressed": self.history.compressed,
            "verdict": self.verdict(),
            "before": self.before.figures if self.before else None,
            "why_not_before": self.why_not_before,
            "after": self.after.figures,
            "worst": [asdict(query) for query in self.worst],
        }

    def _of_split(self) -> list[str]:
        after, before = self.after.figures, self.before.figures if self.before else None
        margin, came_from = after["margin"], f" ({before['margin']:+.2f} before)" if before else ""
        told = [
            f"On {self.split} the best relevant document is {abs(margin):.2f} spreads "
            f"{'above' if margin >= 0 else 'below'} the hardest wrong one{came_from}, "
            f"and {after['separation']:.2f} above random ones.",
            f"It comes first for {after['accuracy']:.0%} of the queries"
            + (f" ({before['accuracy']:.0%} before)" if before else "")
            + ".",
        ]
        if before and margin < before["margin"]:
            told.append("Hard negatives are nearer to the positives than before training.")
        return told


def diagnose(run: str | Path, part: Part, *, split: str, worst: int = 10) -> Diagnosis:
    """Measures the model of a run at its first and at its last step on a part of a collection; `split` names it."""
    folder = RunFolder(run)
    if not folder.metrics.is_file():
        raise SourcierError(f"{folder.metrics} is missing: give the folder of a run of `sourcier train`")
    history = read_history(folder.metrics)  # before models are loaded
    before, why_not = None, None
    try:
        before = measure_scores(model_at_start(folder.path), part)
    except SourcierError as error:
        why_not = str(error)
    after = measure_scores(load(folder.last), part)
    return Diagnosis(
        run=str(run),
        record=RunRecord.read(folder.config),
        split=split,
        extent=part.extent,
        history=history,
        before=before,
        why_not_before=why_not,
        after=after,
        worst=worst_queries(after, part, worst),
    )


@torch.no_grad()
def measure_scores(model: SearchModel, part: Part, *, batch_size: int = 32) -> Scores:
    """Scores every query of the part with every document of it. The model is left in evaluation mode."""
    model.eval()
    columns = {document.id: column for column, document in enumerate(part.documents)}
    relevant_to = {
        query: [
            columns[document]
            for document, grade in part.qrels[query].items()
            if grade > 0 and document in columns
        ]
        for query in part.queries
    }
    ids = [query for query, documents in relevant_to.items() if documents]
    relevant = torch.zeros(len(ids), len(columns), dtype=torch.bool)
    for row, query in enumerate(ids):
        relevant[row, relevant_to[query]] = True

    queries = _encoded(model, [part.queries[query].text for query in ids], "query", batch_size)
    scores = torch.zeros(relevant.shape)
    shaped: list[Representation] = []
    every = max(1, len(columns) // SHAPED)
    for places, documents in _batches(model, [doc.content for doc in part.documents], "document", batch_size):
        scores[:, places] = queries.scores(documents).float().cpu()
        shaped.append(documents[(places % every == 0).to(model.device)].scorable())
    own = queries.pair_scores(queries).float().cpu()

    best = scores.masked_fill(~relevant, -torch.inf).argmax(dim=1)
    found = compare(scores, own, best, other=~relevant, random=~relevant)
    found |= shape(type(shaped[0]).concatenate(shaped))
    figures = {name: value.item() for name, value in found.items()}
    return Scores(ids, to_similarities(scores, own), relevant, _quality(ids, scores, part) | figures)


def worst_queries(scores: Scores, part: Part, count: int) -> list[WorstQuery]:
    """The queries whose best relevant document has the lowest rank; of equal ranks, those with the widest gap first."""
    order = scores.similarities.argsort(dim=1, descending=True, stable=True)
    rank = scores.relevant.gather(1, order).int().argmax(dim=1) + 1  # [Q], of the best relevant document
    rows = torch.arange(len(rank))
    expected, first = order[rows, rank - 1], order[:, 0]
    gap = scores.similarities[rows, first] - scores.similarities[rows, expected]
    worst = sorted(rows.tolist(), key=lambda row: (-int(rank[row]), -float(gap[row])))

    def found(row: int, column: int, place: int) -> Found:
        document = part.documents[column]
        return Found(document.id, document.content, float(scores.similarities[row, column]), place)

    return [
        WorstQuery(
            scores.queries[row],
            part.queries[scores.queries[row]].text,
            found(row, int(expected[row]), int(rank[row])),
            found(row, int(first[row]), 1),
        )
        for row in worst[:count]
        if rank[row] > 1
    ]


def _quality(queries: Sequence[str], scores: Tensor, part: Part) -> dict[str, float]:
    """The measure of a search in the part."""
    best = scores.topk(min(10, scores.shape[1]), dim=1)
    run = {
        query: {part.documents[column].id: value for column, value in zip(columns, values, strict=True)}
        for query, columns, values in zip(queries, best.indices.tolist(), best.values.tolist(), strict=True)
    }
    return measure.evaluate({query: part.qrels[query] for query in queries}, run, (MEASURE,)).means


def _encoded(model: SearchModel, texts: Sequence[str], side: Side, batch_size: int) -> Any:
    """All texts as one representation, in their order."""
    parts = list(_batches(model, texts, side, batch_size))
    together = type(parts[0][1]).concatenate([representation for _, representation in parts])
    return together[torch.cat([places for places, _ in parts]).argsort().to(model.device)]


def _batches(
    model: SearchModel, texts: Sequence[str], side: Side, batch_size: int
) -> Iterator[tuple[Tensor, Any]]:
    """Batches of texts of similar length: their places among the texts, and what the model makes of them."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        features = model.tokenize([texts[place] for place in places], side)
        features = {name: value.to(model.device) for name, value in features.items()}
        yield torch.tensor(places), model(features, side)
