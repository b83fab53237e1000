"""The stream of batches of one rank: its rows of every global batch, epoch after epoch, from any place in it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from sourcier.data.examples import Example, Examples
from sourcier.data.sampling import BatchSampler
from sourcier.train.step import Batch, Collator
from sourcier.types import DataError

logger = logging.getLogger(__name__)


class NumberedBatch(NamedTuple):
    """A batch, and which rows of the examples are in it."""

    rows: list[int]
    batch: Batch


class BatchStream:
    """Batches without end, in a new order each epoch.

    Its place is the epoch and how many of its batches were taken; what workers prepared ahead does not count. To go on
    from a place, the batches before it are left out of the plan, not made.
    """

    def __init__(
        self, examples: Examples, sampler: BatchSampler, collator: Collator, *, workers: int = 0
    ) -> None:
        self.epoch = 0
        self.batch = 0
        self._dataset = _Numbered(examples)
        self._sampler = sampler
        self._collator = _NumberedCollator(collator)
        self._workers = workers
        self._batches: Iterator[NumberedBatch] | None = None

    def __iter__(self) -> Iterator[NumberedBatch]:
        return self

    def __next__(self) -> NumberedBatch:
        while True:
            if self._batches is None:
                self._batches = self._open()
            found = next(self._batches, None)
            if found is not None:
                self.batch += 1
                return found
            self.epoch, self.batch, self._batches = self.epoch + 1, 0, None

    def refresh(self) -> None:
        """Forgets what was prepared ahead, after examples have changed: the next batch is made of them as they are."""
        self._batches = None

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.refresh()

    def _open(self) -> Iterator[NumberedBatch]:
        """The batches of this epoch from this place on."""
        self._sampler.set_epoch(self.epoch)
        loader = DataLoader(
            self._dataset,
            batch_sampler=_Rest(self._sampler, self.batch),
            collate_fn=self._collator,
            num_workers=self._workers,
            # A loader draws a seed each time: from a generator of its own, so that dropout does not depend on it.
            generator=torch.Generator(),
        )
        return iter(loader)


def check_examples(examples: Examples, *, negatives: int, scores: bool) -> None:
    """Refuses, before the first step, examples that lack what every batch asks for; the error names the row."""
    for row, example in enumerate(examples):
        found = len(example.negatives)
        if found < negatives:
            raise DataError(
                f"{examples.name}: row {row} (query {example.query!r}) has {found} negatives, "
                f"{negatives} are asked for: set negatives={found} or mine more"
            )
        if scores and example.scores is None:
            raise DataError(
                f"{examples.name}: row {row} (query {example.query!r}) has no scores of a teacher, which the loss "
                'learns from: give "scores" with each row, or choose another loss'
            )


def warn_of_unread_scores(examples: Examples, *, loss: str, read: bool) -> None:
    """Tells of a teacher's scores that the loss does not read: they were costly, and may be forgotten."""
    if not read and any(example.scores is not None for example in examples):
        logger.warning(
            "%s: has scores of a teacher, which loss=%s does not read: loss=kl and loss=margin_mse learn from them",
            examples.name, loss,
        )  # fmt: skip


class SameExamples:
    """The part of a run's state that knows whether the rows, of which it keeps numbers, are still the same."""

    def __init__(self, examples: Examples) -> None:
        self._name = examples.name
        summed = hashlib.blake2b(digest_size=16)
        for example in examples:
            summed.update(repr(example).encode("utf-8", "surrogatepass"))
        self.digest = summed.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        return {"digest": self.digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["digest"] != self.digest:
            raise DataError(f"{self._name}: the examples are not those that the run began with: restore them")


class _Rest:
    """The batches of a sampler from one on."""

    def __init__(self, sampler: BatchSampler, start: int) -> None:
        self._sampler = sampler
        self._start = start

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self._sampler), self._start, None)

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._start)


class _Numbered(Dataset[tuple[int, Example]]):
    """Examples that know their row, so that an error can name it."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __getitem__(self, row: int) -> tuple[int, Example]:
        return row, self._examples[row]


class _NumberedCollator:
    """Keeps the rows beside the batch that the collator makes of their examples."""

    def __init__(self, collator: Collator) -> None:
        self._collator = collator

    def __call__(self, numbered: Sequence[tuple[int, Example]]) -> NumberedBatch:
        rows, examples = zip(*numbered, strict=True)
        return NumberedBatch(list(rows), self._collator(examples))
