"""The one forward of a training step: encode queries and documents, score, and return the loss of the global batch.

What DistributedDataParallel wraps is `TrainingStep`, so no call bypasses the wrapper:

    step = TrainingStep.Config().build(model)
    for batch in loader:                    # collate_fn=Collator(model)
        step(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

Order of documents: row after row, each row's positive first and its negatives behind it, rank after rank. The positive
of row g of the global batch therefore stands in column g * (1 + M), however many ranks there are.

Shapes: B rows of this rank, G rows of the global batch, M negatives a row, R texts that are known to be relevant to a
query, V terms of the vocabulary.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sourcier.config import setting
from sourcier.data.examples import Example
from sourcier.losses.ranking import known_relevant
from sourcier.losses.sparsity import flops, l1, quadratic_warmup
from sourcier.models.encoder import SearchModel
from sourcier.models.representations import Representation
from sourcier.ranges import check_ranges
from sourcier.train import health
from sourcier.train.gather import row_counts, sum_over_ranks, sum_under_ddp
from sourcier.train.grad_cache import chunks, encode_in_chunks, width
from sourcier.train.objectives import DISTILLATION, EncodedBatch, Loss, Objective
from sourcier.train.sharding import is_sharded
from sourcier.types import Side, SourcierError

Features = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """This rank's rows of a global batch, as the model reads them."""

    queries: Features  # B texts
    documents: Features  # B * (1 + M) texts, row after row, the positive first
    document_keys: Tensor  # [B * (1 + M)] int64, equal for equal texts
    relevant_keys: (
        Tensor  # [B, R] int64, of texts that are known to be relevant to the query, the positive first
    )
    teacher: Tensor | None  # [B, 1 + M], where all examples have scores
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
            relevant_keys=self.relevant_keys.to(device, non_blocking=True),
            teacher=None if self.teacher is None else self.teacher.to(device, non_blocking=True),
        )


class Collator:
    """Makes a batch of examples: what a `DataLoader` takes as `collate_fn`."""

    def __init__(
        self,
        model: SearchModel,
        negatives: int = 0,
        *,
        relevant: Callable[[str], Iterable[str]] | None = None,
    ) -> None:
        """`negatives` is the number M of hard negatives a row, the first ones of each example.

        `relevant` gives all texts that are known to be relevant to a query, which are then never its negatives:
        `Examples.relevant_to`. Without it only copies of the row's own positive are spared.
        """
        self.model = model
        self.negatives = negatives
        self.relevant = relevant

    def __getstate__(self) -> dict[str, Any]:
        """For a process that prepares batches: tokenising needs no weights."""
        light = copy.copy(self.model)
        light.__dict__ |= {"_modules": {}, "_parameters": {}, "_buffers": {}}
        return self.__dict__ | {"model": light}

    def __call__(self, examples: Sequence[Example]) -> Batch:
        documents = [text for example in examples for text in self._documents(example)]
        return Batch(
            queries=self.model.tokenize([example.query for example in examples], "query"),
            documents=self.model.tokenize(documents, "document"),
            document_keys=torch.tensor([text_key(text) for text in documents], dtype=torch.int64),
            relevant_keys=self._relevant_keys(examples),
            teacher=self._teacher(examples),
            negatives=self.negatives,
        )

    def _documents(self, example: Example) -> tuple[str, ...]:
        if len(example.negatives) < self.negatives:
            raise SourcierError(
                f"query {example.query!r} has {len(example.negatives)} negatives, {self.negatives} are asked for: "
                f"set negatives={len(example.negatives)} or mine more"
            )
        return (example.positive, *example.negatives[: self.negatives])

    def _relevant_keys(self, examples: Sequence[Example]) -> Tensor:
        known = self.relevant or (lambda query: ())
        keys = [
            [text_key(text) for text in dict.fromkeys([row.positive, *known(row.query)])] for row in examples
        ]
        longest = max(map(len, keys))
        return torch.tensor([row + row[-1:] * (longest - len(row)) for row in keys], dtype=torch.int64)

    def _teacher(self, examples: Sequence[Example]) -> Tensor | None:
        rows = [example.scores for example in examples if example.scores is not None]
        if len(rows) < len(examples):
            return None
        return torch.tensor([scores[: 1 + self.negatives] for scores in rows])


@dataclass(frozen=True)
class StepOutput:
    """The loss to call `backward` on, and figures of the global batch that carry no gradient."""

    loss: Tensor
    metrics: dict[str, Tensor]


class TrainingStep(nn.Module):
    """Encodes, scores and sums up: a model and its loss as one module."""

    @dataclass(kw_only=True)
    class Config:
        loss: Loss = field(
            default="contrastive",
            metadata={
                "help": "contrastive: all documents of the batch; symmetric: and all queries for each positive; "
                "pairwise: each row's own negatives; kl, margin_mse: what a teacher scored them"
            },
        )
        temperature: float | None = setting(
            None, "divides the scores; by default what suits the family", above=0
        )
        teacher_temperature: float = setting(1.0, "divides the teacher's scores", above=0)
        chunk: int | None = setting(
            None,
            "documents whose activations are held at a time (GradCache); by default all of the batch",
            at_least=1,
        )
        flops_query: float = setting(0.0, "FLOPS weight of the queries' terms", at_least=0)
        flops_document: float = setting(0.0, "FLOPS weight of the documents' terms", at_least=0)
        l1_query: float = setting(0.0, "L1 weight of the queries' terms", at_least=0)
        l1_document: float = setting(0.0, "L1 weight of the documents' terms", at_least=0)
        sparsity_warmup: int = setting(
            0, "steps over which the FLOPS and L1 weights grow to what they are, as a square", at_least=0
        )

        def __post_init__(self) -> None:
            check_ranges(self)

        @property
        def needs_scores(self) -> bool:
            """Whether the loss reads a teacher's scores, which every example must have then."""
            return self.loss in DISTILLATION

        @property
        def penalised(self) -> bool:
            """Whether terms are kept few."""
            return any((self.flops_query, self.flops_document, self.l1_query, self.l1_document))

        @property
        def needs_negatives(self) -> bool:
            """Whether the loss compares a row's own documents alone, so that batches can be accumulated."""
            return self.loss not in ("contrastive", "symmetric")

        def least_rows(self, negatives: int) -> int:
            """Rows that a global batch needs: a text that is compared with itself alone has a loss of 0."""
            in_batch = self.loss == "symmetric" or (self.loss == "contrastive" and not negatives)
            return 2 if in_batch else 1

        def build(self, model: SearchModel) -> TrainingStep:
            return TrainingStep(self, model)

    def __init__(self, config: Config, model: SearchModel) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.objective = Objective(
            loss=config.loss,
            temperature=model.default_temperature if config.temperature is None else config.temperature,
            teacher_temperature=config.teacher_temperature,
        )

    def forward(self, batch: Batch, step: int = 0, *, examine: bool = False) -> StepOutput:
        """The loss of the global batch of which `batch` is this rank's part; `step` counts optimizer steps from 0.

        With `examine` the figures of `sourcier.train.health` are among the metrics, at the price of one score matrix.
        """
        # A chunk of queries holds as many tokens as one of documents.
        chunk = self.config.chunk
        queries_a_chunk = chunk and max(chunk, chunk * width(batch.documents) // width(batch.queries))
        queries = self._encode(batch.queries, "query", queries_a_chunk)
        documents = self._encode(batch.documents, "document", chunk)
        counts = row_counts(len(batch), batch.document_keys.device)
        losses, correct = self.objective(
            EncodedBatch(
                queries=queries,
                documents=documents,
                document_keys=batch.document_keys,
                relevant_keys=batch.relevant_keys,
                teacher=batch.teacher,
                counts=counts,
                width=1 + batch.negatives,
            )
        )

        rows = sum(counts)
        ranking = losses.sum() / rows
        config = self.config
        of_queries, query_figures = self._sparsity(queries, rows, config.flops_query, config.l1_query)
        of_documents, document_figures = self._sparsity(
            documents, rows * (1 + batch.negatives), config.flops_document, config.l1_document
        )
        penalty = quadratic_warmup(step, config.sparsity_warmup) * (of_queries + of_documents)

        metrics = {
            "ranking": sum_over_ranks(ranking.detach()),
            "accuracy": sum_over_ranks(correct.sum().to(losses.dtype) / rows),
        }
        metrics |= {f"{name}_query": value for name, value in query_figures.items()}
        metrics |= {f"{name}_document": value for name, value in document_figures.items()}
        metrics["loss"] = metrics["ranking"] + penalty.detach()
        if examine:
            figures = health.examine(queries, documents, width=1 + batch.negatives, excluded=_known(batch))
            metrics |= {health.PREFIX + name: value for name, value in figures.items()}
        # The ranking loss is this rank's part of a sum. The penalty is the same number on every rank, and the gradient
        # that `sum_over_ranks` brings back to it is already that of all ranks together: each rank counts for its share.
        return StepOutput(sum_under_ddp(ranking + penalty / len(counts)), metrics)

    def _encode(self, features: Features, side: Side, chunk: int | None) -> Representation:
        def encode(part: Features) -> Representation:
            return self.model(part, side)

        if chunk is None:
            return encode(features)
        least = 1
        if is_sharded(self):
            texts = next(iter(features.values()))
            least = max(row_counts(chunks(len(texts), chunk), texts.device))
        return encode_in_chunks(encode, features, chunk, least=least)

    def _sparsity(
        self, representation: Representation, rows: int, flops_weight: float, l1_weight: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The penalty of the global batch of `rows` texts, and FLOPS and active terms a text; 0 without terms."""
        activations = representation.activations
        if activations is None:
            return torch.zeros((), device=next(self.model.parameters()).device), {}
        mean = sum_over_ranks(activations.sum(dim=0)) / rows
        active = (activations.detach() > 0).sum().to(activations.dtype)
        cost = flops(mean)
        figures = {"flops": cost.detach(), "terms": sum_over_ranks(active) / rows}
        return flops_weight * cost + l1_weight * l1(mean), figures


def _known(batch: Batch) -> Tensor:
    """Which documents of this rank are known to be relevant to a query besides its positive. [B, B * (1 + M)] bool"""
    positives = torch.arange(len(batch), device=batch.document_keys.device) * (1 + batch.negatives)
    return known_relevant(batch.relevant_keys, batch.document_keys, positives)


def text_key(text: str) -> int:
    """A number that is equal for equal texts in every process (unlike `hash`), as a signed 64-bit integer."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
