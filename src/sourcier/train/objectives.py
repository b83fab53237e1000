"""What a step is trained towards: the losses of `sourcier.losses`, on the global batch.

Each objective gives the loss of every row of this rank, and whether the row was ranked right. Those with in-batch
terms score against the texts of all ranks.

Shapes: B rows of this rank, G rows of the global batch, M negatives a row, R texts known to be relevant to a query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sourcier.losses.distillation import kl_divergence, margin_mse
from sourcier.losses.ranking import contrastive, known_relevant, pairwise_cross_entropy
from sourcier.models.representations import Representation
from sourcier.train.gather import gather, gather_rows, rank, row_counts
from sourcier.types import SourcierError

Loss = Literal["contrastive", "symmetric", "pairwise", "kl", "margin_mse"]

#: The losses that read scores of a teacher.
DISTILLATION = ("kl", "margin_mse")


@dataclass(frozen=True)
class EncodedBatch:
    """This rank's rows of a global batch, behind the encoder."""

    queries: Representation  # B texts
    documents: Representation  # B * (1 + M) texts, row after row, the positive first
    document_keys: Tensor  # [B * (1 + M)] int64, equal for equal texts
    relevant_keys: Tensor  # [B, R] int64
    teacher: Tensor | None  # [B, 1 + M]
    counts: list[int]  # rows of each rank
    width: int  # 1 + M

    @property
    def rows(self) -> Tensor:
        """The numbers of this rank's rows in the global batch. [B]"""
        device = self.document_keys.device
        return sum(self.counts[: rank()]) + torch.arange(len(self.queries), device=device)

    def own_scores(self) -> Tensor:
        """Each query against its own documents. [B, 1 + M]"""
        rows = torch.arange(len(self.queries), device=self.document_keys.device)
        queries = self.queries.scorable()[rows.repeat_interleave(self.width)]
        return queries.pair_scores(self.documents.scorable()).view(-1, self.width)


class Outcome(NamedTuple):
    """What an objective finds, a row."""

    losses: Tensor  # [B]
    correct: Tensor  # [B] bool: the positive scores above all that it was compared with


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss with its temperatures."""

    loss: Loss
    temperature: float  # divides the model's scores
    teacher_temperature: float = 1.0

    def __call__(self, batch: EncodedBatch) -> Outcome:
        objectives: dict[Loss, Callable[[EncodedBatch], Outcome]] = {
            "contrastive": self._contrastive,
            "symmetric": self._symmetric,
            "pairwise": self._pairwise,
            "kl": self._kl,
            "margin_mse": self._margin_mse,
        }
        return objectives[self.loss](batch)

    def _contrastive(self, batch: EncodedBatch) -> Outcome:
        """Each query among the documents of all ranks."""
        counts = [count * batch.width for count in batch.counts]
        documents = gather(batch.documents.scorable(), counts)
        keys = gather_rows(batch.document_keys, counts)
        positives = batch.rows * batch.width
        scores = batch.queries.scores(documents)
        excluded = known_relevant(batch.relevant_keys, keys, positives)
        losses = contrastive(scores, positives, temperature=self.temperature, excluded=excluded)
        best = scores.detach().masked_fill(excluded, float("-inf")).argmax(dim=1)
        return Outcome(losses, best == positives)

    def _symmetric(self, batch: EncodedBatch) -> Outcome:
        """The mean of that and of each positive among the queries of all ranks.

        As Günther et al. 2023 (Jina embeddings, section 4) and CLIP (Radford et al. 2021, section 2.3) have it; hard
        negatives stand in the first direction alone.
        """
        forward = self._contrastive(batch)
        queries = gather(batch.queries.scorable(), batch.counts)
        longest = max(row_counts(batch.relevant_keys.shape[1], batch.relevant_keys.device))
        relevant_keys = gather_rows(_repeat_last(batch.relevant_keys, longest), batch.counts)
        scores = queries.scores(batch.documents.scorable()[:: batch.width]).T
        own_columns = torch.arange(len(queries), device=scores.device) - batch.rows[0]
        excluded = known_relevant(relevant_keys, batch.document_keys[:: batch.width], own_columns).T
        backward = contrastive(scores, batch.rows, temperature=self.temperature, excluded=excluded)
        return Outcome((forward.losses + backward) / 2, forward.correct)

    def _pairwise(self, batch: EncodedBatch) -> Outcome:
        """Each positive against its own row's negatives."""
        scores = self._own_scores(batch)
        keys = batch.document_keys.view(-1, batch.width)[:, 1:]
        excluded = (batch.relevant_keys[:, :, None] == keys[:, None]).any(dim=1)
        losses = pairwise_cross_entropy(
            scores[:, 0], scores[:, 1:], temperature=self.temperature, excluded=excluded
        )
        return Outcome(losses, ((scores[:, :1] > scores[:, 1:]) | excluded).all(dim=1))

    def _kl(self, batch: EncodedBatch) -> Outcome:
        scores = self._own_scores(batch)
        losses = kl_divergence(
            scores / self.temperature,
            self._teacher(batch).to(scores.dtype),
            teacher_temperature=self.teacher_temperature,
        )
        return Outcome(losses, (scores[:, :1] > scores[:, 1:]).all(dim=1))

    def _margin_mse(self, batch: EncodedBatch) -> Outcome:
        scores = self._own_scores(batch)
        losses = margin_mse(
            scores / self.temperature, self._teacher(batch).to(scores.dtype) / self.teacher_temperature
        )
        return Outcome(losses, (scores[:, :1] > scores[:, 1:]).all(dim=1))

    def _own_scores(self, batch: EncodedBatch) -> Tensor:
        if batch.width == 1:
            raise SourcierError(
                f"loss={self.loss} compares a row's own documents: set negatives=1 or more, or loss=contrastive"
            )
        return batch.own_scores()

    def _teacher(self, batch: EncodedBatch) -> Tensor:
        if batch.teacher is None:
            raise SourcierError(
                f"loss={self.loss} needs a teacher's scores in every example: mine them, or set loss=contrastive"
            )
        return batch.teacher


def _repeat_last(keys: Tensor, width: int) -> Tensor:
    """[B, R] with the last key of each row repeated up to `width`."""
    return torch.cat([keys, keys[:, -1:].expand(-1, width - keys.shape[1])], dim=1)
