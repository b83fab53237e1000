"""The stream of batches of one rank: its rows of every global batch, epoch after epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch.utils.data import DataLoader, Dataset

from sourcier.data.examples import Example, Examples
from sourcier.data.sampling import BatchSampler
from sourcier.train.step import Batch, Collator


class NumberedBatch(NamedTuple):
    """A batch, and which rows of the examples are in it."""

    rows: list[int]
    batch: Batch


def stream(
    examples: Examples, sampler: BatchSampler, collator: Collator, *, workers: int = 0
) -> Iterator[NumberedBatch]:
    """Batches without end, in a new order each epoch."""
    loader = DataLoader(
        _Numbered(examples),
        batch_sampler=sampler,
        collate_fn=_NumberedCollator(collator),
        num_workers=workers,
    )
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


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
