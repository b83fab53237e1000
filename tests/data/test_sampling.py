"""Batches: every row once, no row beside one that it would harm, the same plan on every rank."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourcier.data.examples import Example, Examples
from sourcier.data.sampling import BatchSampler
from sourcier.types import SourcierError


def _pairs(count: int) -> Examples:
    return Examples([Example(f"query {number}", f"text {number}") for number in range(count)])


def _global(examples: Examples, size: int, world: int = 1, **settings: int | bool) -> list[list[int]]:
    """The batches of all ranks, put together."""
    ranks = [list(BatchSampler(examples, size, rank=rank, world=world, **settings)) for rank in range(world)]  # type: ignore[arg-type]
    return [[row for part in parts for row in part] for parts in zip(*ranks, strict=True)]


def _harm(examples: Examples, one: int, two: int) -> bool:
    """Whether two rows may not meet, said as the definition says it."""

    def texts(row: int) -> set[str]:
        return {examples[row].positive, *examples[row].negatives}

    return (
        examples[one].query == examples[two].query
        or bool(texts(one) & examples.relevant(two))
        or bool(texts(two) & examples.relevant(one))
    )


LETTERS = st.sampled_from("abcdefgh")
TANGLED = st.lists(
    st.builds(Example, LETTERS, LETTERS, st.lists(LETTERS, max_size=2).map(tuple)), min_size=1, max_size=40
).map(Examples)


@given(examples=TANGLED, size=st.integers(1, 6), bucket=st.integers(1, 3), seed=st.integers(0, 3))
def test_rows_that_harm_each_other_never_meet(examples: Examples, size: int, bucket: int, seed: int) -> None:
    for batch in _global(examples, size, bucket=bucket, seed=seed):
        assert len(batch) <= size
        assert not any(_harm(examples, one, two) for one, two in itertools.combinations(batch, 2))


@given(examples=TANGLED, size=st.integers(1, 6), epoch=st.integers(0, 3))
def test_each_row_comes_once_an_epoch(examples: Examples, size: int, epoch: int) -> None:
    sampler = BatchSampler(examples, size)
    sampler.set_epoch(epoch)
    assert sorted(row for batch in sampler for row in batch) == list(range(len(examples)))


@given(examples=TANGLED, size=st.integers(3, 6), drop_last=st.booleans())
def test_ranks_agree_take_part_in_each_step_and_miss_only_what_is_counted(
    examples: Examples, size: int, drop_last: bool
) -> None:
    samplers = [BatchSampler(examples, size, rank=rank, world=3, drop_last=drop_last) for rank in range(3)]
    steps = [list(sampler) for sampler in samplers]
    assert [len(batches) for batches in steps] == [len(samplers[0])] * 3
    for parts in zip(*steps, strict=True):
        sizes = [len(part) for part in parts]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert not drop_last or sum(sizes) == size
    seen = [row for batches in steps for batch in batches for row in batch]
    assert len(seen) == len(set(seen)) == len(examples) - samplers[0].dropped


@pytest.mark.parametrize(("size", "seen"), [(5, 10), (4, 8)], ids=["even", "tail of two rows is dropped"])
def test_ten_rows_on_four_ranks(size: int, seen: int) -> None:
    samplers = [BatchSampler(_pairs(10), size, rank=rank, world=4) for rank in range(4)]
    rows = [row for sampler in samplers for batch in sampler for row in batch]
    assert (len(rows), len(set(rows)), samplers[0].dropped) == (seen, seen, 10 - seen)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_world_does_not_change_the_batches(world: int) -> None:
    assert _global(_pairs(48), 6, world) == _global(_pairs(48), 6)


def test_promised_batches_come_where_most_rows_share_a_positive() -> None:
    rows = [Example(f"q{number}", "shared" if number < 60 else f"own {number}") for number in range(100)]
    samplers = [BatchSampler(Examples(rows), 8, rank=rank, world=2) for rank in range(2)]
    for epoch in range(5):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        assert [len(list(sampler)) for sampler in samplers] == [len(samplers[0])] * 2


def test_identical_rows_come_one_by_one() -> None:
    assert sorted(_global(Examples([Example("q", "p")] * 5), 4)) == [[0], [1], [2], [3], [4]]


def test_dropped_rows_are_told(caplog: pytest.LogCaptureFixture) -> None:
    sampler = BatchSampler(Examples([Example("q", "p")] * 5), 4, world=2)
    assert (len(sampler), list(sampler), sampler.dropped) == (0, [], 5)
    assert "leaves out 5 of 5 rows" in caplog.text


def test_batches_of_fewer_rows_than_the_least_are_left_out() -> None:
    sampler = BatchSampler(_pairs(9), 4, least=2)
    assert [len(batch) for batch in sampler] == [4, 4]
    assert sampler.dropped == 1


def test_the_least_is_of_all_ranks_together() -> None:
    assert [len(batch) for batch in _global(_pairs(10), 4, world=2, least=2)] == [4, 4, 2]


def test_rows_that_the_loss_cannot_use_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert len(BatchSampler(_pairs(9), 4, least=2)) == 2
    assert "leaves out 1 of 9 rows: their batches would hold fewer than 2 (what the loss" in caplog.text


def test_negative_of_one_that_is_relevant_to_the_other_keeps_them_apart() -> None:
    rows = [Example("q1", "p1", ("p2",)), Example("q2", "p2", ("n",)), Example("q3", "p3", ("n",))]
    batches = _global(Examples(rows), 3)
    assert not any({0, 1} <= set(batch) for batch in batches)
    assert len(batches) == 2


def test_shared_negative_does_not_keep_rows_apart() -> None:
    assert len(_global(Examples([Example(f"q{n}", f"p{n}", ("n",)) for n in range(4)]), 4)) == 1


def test_few_ties_leave_batches_full() -> None:
    rows = [Example(f"q{number}", f"p{number // 2}") for number in range(400)]
    assert len(_global(Examples(rows), 8)) <= 51


def test_epochs_and_seeds_differ_and_repeat() -> None:
    sampler = BatchSampler(_pairs(64), 8, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert second != first
    assert list(BatchSampler(_pairs(64), 8, seed=2)) != first


def test_plan_is_the_same_in_another_process() -> None:
    code = (
        "from sourcier.data.examples import Example, Examples\n"
        "from sourcier.data.sampling import BatchSampler\n"
        "rows = [Example(f'q{n % 30}', f'p{n % 17}', (f'p{n % 7}',)) for n in range(60)]\n"
        "print(list(BatchSampler(Examples(rows), 4, seed=3)))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1]


def test_batches_hold_similar_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, size=640)
    spread = [
        int(np.ptp(lengths[batch])) for batch in BatchSampler(_pairs(640), 16, bucket=40, lengths=lengths)
    ]
    assert max(spread) < 100


def test_order_of_batches_is_not_that_of_lengths() -> None:
    lengths = np.arange(640)
    first_rows = [min(batch) for batch in BatchSampler(_pairs(640), 16, bucket=40, lengths=lengths)]
    assert first_rows != sorted(first_rows)


def test_length_is_that_of_the_longest_text() -> None:
    rows = [
        Example(f"q{n}", f"p{n}" + "x" * (0 if n % 2 else 500), (f"n{n}" + "x" * (500 if n % 2 else 0),))
        for n in range(8)
    ]
    rows += [Example(f"short {n}", f"short text {n}") for n in range(8)]
    assert all(len({row < 8 for row in batch}) == 1 for batch in BatchSampler(Examples(rows), 4, bucket=4))


def test_ragged_batches_come_last() -> None:
    assert [len(batch) for batch in BatchSampler(_pairs(19), 8)] == [8, 8, 3]


def test_rows_that_are_drawn_twice_do_not_meet_themselves() -> None:
    mixed = Examples.mix(
        [(_pairs(3), 0.9), (Examples([Example(f"other {n}", f"o{n}") for n in range(57)]), 0.1)]
    )
    batches = list(BatchSampler(mixed, 4))
    assert sum(map(len, batches)) == 60
    assert all(len(batch) == len(set(batch)) for batch in batches)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"batch_size": 2, "world": 4}, "batch size 2: 4 processes cannot share it; "),
        ({"batch_size": 8, "world": 2, "rank": 2}, "rank 2: is not one of 2 processes; "),
        ({"batch_size": 8, "bucket": 0}, "bucket 0: "),
        ({"batch_size": 8, "lengths": [1]}, "lengths: 1 for 3 examples; "),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(SourcierError, match=expected):
        BatchSampler(_pairs(3), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["free", "identical", "one query"])
def test_time_grows_with_rows_and_not_with_their_square(kind: str) -> None:
    rows = {
        "free": lambda n: Example(f"q{n}", f"p{n}"),
        "identical": lambda n: Example("q", "p"),
        "one query": lambda n: Example("q", f"p{n}"),
    }[kind]
    examples = Examples([rows(number) for number in range(40_000)])
    started = time.process_time()
    assert len(BatchSampler(examples, 32)) > 0
    assert time.process_time() - started < 10  # some tenths of a second; a square would take minutes
