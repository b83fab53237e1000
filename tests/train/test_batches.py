"""The stream of batches: from any place in an epoch, without making what comes before, and of rows that have enough."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model
from toy import Table, letters

from sourcier.data.examples import Example, Examples
from sourcier.data.sampling import BatchSampler
from sourcier.models.colbert import ColBERT
from sourcier.train.batches import BatchStream, check_examples
from sourcier.train.step import Batch, Collator
from sourcier.types import DataError


class Counting(Collator):
    """Knows how many batches it made."""

    made = 0

    def __call__(self, examples: Sequence[Example]) -> Batch:
        self.made += 1
        return super().__call__(examples)


def stream(collator: Collator | None = None) -> BatchStream:
    """10 rows in batches of 2."""
    examples = letters(10)
    return BatchStream(examples, BatchSampler(examples, 2, seed=1), collator or Collator(Table()))


@pytest.mark.parametrize("taken", [0, 1, 4, 5, 6, 10, 13])
def test_goes_on_at_the_place_where_another_one_stood(taken: int) -> None:
    whole = [found.rows for found in islice(stream(), 15)]
    first, second = stream(), stream()
    list(islice(first, taken))
    second.load_state_dict(first.state_dict())
    assert [found.rows for found in islice(second, 15 - taken)] == whole[taken:]


def test_batches_before_the_place_are_not_made() -> None:
    collator = Counting(Table())
    found = stream(collator)
    found.load_state_dict({"epoch": 7, "batch": 4})
    next(found)
    assert collator.made == 1


def test_every_epoch_has_each_row_once_in_another_order() -> None:
    rows = [row for found in islice(stream(), 10) for row in found.rows]
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10] != rows[10:]


def test_making_batches_draws_no_random_numbers() -> None:
    """Else dropout would depend on how often an epoch was entered."""
    state = torch.get_rng_state()
    list(islice(stream(), 12))
    assert torch.equal(torch.get_rng_state(), state)


def test_changed_examples_are_in_the_next_batch() -> None:
    examples = letters(10, negatives=1)
    found = BatchStream(examples, BatchSampler(examples, 2, seed=1), Collator(Table(), 1), workers=0)
    next(found)
    examples.rows[:] = [Example(row.query, row.positive, ("z",)) for row in examples.rows]
    found.refresh()
    assert next(found).batch.documents["rows"].tolist()[1::2] == [25, 25]


EXAMPLES = Examples(
    [
        Example("a", "n", ("b", "c"), (3.0, 2.0, 1.0)),
        Example("d", "q", ("e",), (3.0, 2.0)),
        Example("f", "s", ("g", "h")),
    ],
    name="pairs.jsonl",
)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"negatives": 2, "scores": False},
            r"pairs\.jsonl: row 1 \(query 'd'\) has 1 negatives, 2 are asked",
        ),
        ({"negatives": 1, "scores": True}, r"pairs\.jsonl: row 2 \(query 'f'\) has no scores of a teacher"),
    ],
)
def test_a_row_that_lacks_something_is_named(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_examples(EXAMPLES, **asked)


def test_rows_that_have_enough_pass() -> None:
    check_examples(EXAMPLES, negatives=1, scores=False)


def test_what_prepares_batches_elsewhere_gets_no_weights(tmp_path: Path) -> None:
    """The tiny model's weights alone take more; what arrives makes the same batch."""
    model = ColBERT.from_base(tiny_model("bert", tmp_path))
    collator = Collator(model, 1)
    sent = pickle.dumps(collator)
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    assert len(sent) < weights
    assert len(pickle.dumps(model)) > weights
    rows = [Example("spring water?", "the ground", ("a file",))]
    here, there = collator(rows), pickle.loads(sent)(rows)
    assert all(torch.equal(there.queries[name], value) for name, value in here.queries.items())
    assert all(torch.equal(there.documents[name], value) for name, value in here.documents.items())
