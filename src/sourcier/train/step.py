"""The one forward of a training step: encode queries and documents, score, and return the loss of the global batch.

What DistributedDataParallel wraps is `TrainingStep`, so no call bypasses the wrapper:

    step = TrainingStep.Config().build(model)
    for batch in loader:                    # collate_fn=Collator(model)
        step(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

Order of documents: row after row, each row's positive first and its negatives behind it, rank after rank. The positive
of row g of the global batch therefore stands in column g * (1 + M), however many ranks there are.

Shapes: B rows of this rank, G rows of the global batch, M negatives a row, V terms of the vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from sourcier.data.examples import Example
from sourcier.losses.ranking import contrastive, copies_of_positives, pairwise_cross_entropy
from sourcier.losses.sparsity import flops, quadratic_warmup
from sourcier.models.encoder import SearchModel
from sourcier.models.representations import Representation
from sourcier.train.gather import gather, gather_rows, rank, row_counts, sum_over_ranks, sum_under_ddp
from sourcier.types import SourcierError

Features = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """This rank's rows of a global batch, as the model reads them."""

    queries: Features  # B texts
    documents: Features  # B * (1 + M) texts, row after row, the positive first
    document_keys: Tensor  # [B * (1 + M)] int64, equal for equal texts
    negatives: int  # M

    def __len__(self) -> int:
        return len(self.document_keys) // (1 + self.negatives)

    def to(self, device: torch.device | str) -> Batch:
        def move(features: Features) -> Features:
            return {name: tensor.to(device, non_blocking=True) for name, tensor in features.items()}

        return replace(
            self,
            queries=move(self.queries),
            documents=move(self.documents),
            document_keys=self.document_keys.to(device, non_blocking=True),
        )


class Collator:
    """Makes a batch of examples: what a `DataLoader` takes as `collate_fn`."""

    def __init__(self, model: SearchModel, negatives: int = 0) -> None:
        """`negatives` is the number M of hard negatives a row, the first ones of each example."""
        self.model = model
        self.negatives = negatives

    def __call__(self, examples: Sequence[Example]) -> Batch:
        documents = [text for example in examples for text in self._documents(example)]
        return Batch(
            queries=self.model.tokenize([example.query for example in examples], "query"),
            documents=self.model.tokenize(documents, "document"),
            document_keys=torch.tensor([text_key(text) for text in documents], dtype=torch.int64),
            negatives=self.negatives,
        )

    def _documents(self, example: Example) -> tuple[str, ...]:
        if len(example.negatives) < self.negatives:
            raise SourcierError(
                f"query {example.query!r} has {len(example.negatives)} negatives, {self.negatives} are asked for: "
                f"set negatives={len(example.negatives)} or mine more"
            )
        return (example.positive, *example.negatives[: self.negatives])


@dataclass(frozen=True)
class StepOutput:
    """The loss to call `backward` on, and figures of the global batch that carry no gradient."""

    loss: Tensor
    metrics: dict[str, Tensor]


class TrainingStep(nn.Module):
    """Encodes, scores and sums up: a model and its loss as one module."""

    @dataclass(kw_only=True)
    class Config:
        loss: Literal["contrastive", "pairwise"] = field(
            default="contrastive",
            metadata={"help": "contrastive: all documents of the batch; pairwise: each row's own negatives"},
        )
        temperature: float | None = field(
            default=None, metadata={"help": "divides the scores; by default what suits the family"}
        )
        flops_query: float = field(default=0.0, metadata={"help": "FLOPS weight of the queries' terms"})
        flops_document: float = field(default=0.0, metadata={"help": "FLOPS weight of the documents' terms"})
        flops_warmup: int = field(
            default=0, metadata={"help": "steps over which the FLOPS weights grow, as a square"}
        )

        def build(self, model: SearchModel) -> TrainingStep:
            return TrainingStep(self, model)

    def __init__(self, config: Config, model: SearchModel) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.temperature = model.default_temperature if config.temperature is None else config.temperature

    def forward(self, batch: Batch, step: int = 0) -> StepOutput:
        """The loss of the global batch of which `batch` is this rank's part; `step` counts optimizer steps from 0."""
        queries: Representation = self.model(batch.queries, "query")
        documents: Representation = self.model(batch.documents, "document")
        counts = row_counts(len(batch), batch.document_keys.device)
        score = self._contrastive if self.config.loss == "contrastive" else self._pairwise
        losses, correct = score(batch, queries, documents, counts)

        rows = sum(counts)
        ranking = losses.sum() / rows
        share = quadratic_warmup(step, self.config.flops_warmup)
        query_flops, query_terms = self._sparsity(queries, rows)
        document_flops, document_terms = self._sparsity(documents, rows * (1 + batch.negatives))
        penalty = share * (
            self.config.flops_query * query_flops + self.config.flops_document * document_flops
        )

        metrics = {
            "ranking": sum_over_ranks(ranking.detach()),
            "accuracy": sum_over_ranks(correct.sum() / rows),
        }
        if queries.activations is not None:
            metrics |= {
                "flops_query": query_flops.detach(),
                "flops_document": document_flops.detach(),
                "terms_query": query_terms,
                "terms_document": document_terms,
            }
        metrics["loss"] = metrics["ranking"] + penalty.detach()
        # The ranking loss is this rank's part of a sum. The penalty is the same number on every rank, and the gradient
        # that `sum_over_ranks` brings back to it is already that of all ranks together: each rank counts for its share.
        return StepOutput(sum_under_ddp(ranking + penalty / len(counts)), metrics)

    def _contrastive(
        self, batch: Batch, queries: Representation, documents: Representation, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Losses and hits of this rank's queries against the documents of all ranks. [B], [B]"""
        width = 1 + batch.negatives
        document_counts = [count * width for count in counts]
        everywhere = gather(documents.scorable(), document_counts)
        keys = gather_rows(batch.document_keys, document_counts)
        first_row = sum(counts[: rank()])
        positives = (first_row + torch.arange(len(batch), device=keys.device)) * width
        scores = queries.scores(everywhere)
        excluded = copies_of_positives(keys, positives)
        losses = contrastive(scores, positives, temperature=self.temperature, excluded=excluded)
        best = scores.detach().masked_fill(excluded, float("-inf")).argmax(dim=1)
        return losses, (best == positives).to(losses.dtype)

    def _pairwise(
        self, batch: Batch, queries: Representation, documents: Representation, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Losses and hits of this rank's queries against their own negatives. [B], [B]"""
        if batch.negatives == 0:
            raise SourcierError(
                "the pairwise loss needs negatives: set negatives=1 or more, or loss=contrastive"
            )
        width = 1 + batch.negatives
        rows = torch.arange(len(batch), device=batch.document_keys.device).repeat_interleave(width)
        scores = queries.scorable()[rows].pair_scores(documents.scorable()).view(len(batch), width)
        losses = pairwise_cross_entropy(scores[:, 0], scores[:, 1:], temperature=self.temperature)
        return losses, (scores[:, :1] > scores[:, 1:]).all(dim=1).to(losses.dtype)

    def _sparsity(self, representation: Representation, rows: int) -> tuple[Tensor, Tensor]:
        """FLOPS and mean number of active terms over the global batch of `rows` texts; zeros without terms."""
        activations = representation.activations
        if activations is None:
            zero = torch.zeros((), device=next(self.model.parameters()).device)
            return zero, zero
        active = (activations.detach() > 0).sum().to(activations.dtype)
        return flops(sum_over_ranks(activations.sum(dim=0)) / rows), sum_over_ranks(active) / rows


def text_key(text: str) -> int:
    """A number that is equal for equal texts in every process (unlike `hash`), as a signed 64-bit integer."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
