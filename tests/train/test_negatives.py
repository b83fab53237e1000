"""The rules of hard negatives, against arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sourcier.train.negatives import Choice, Rules, ceiling, choose, in_order
from sourcier.types import EMPTY_SCORE, SourcierError

SCORES = np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0], dtype=np.float32)


def rules(**settings: Any) -> Rules:
    return Rules(**{"ranks": "1-6", "negatives": 1} | settings)


def chosen(given: Rules, *, positive: float = 8.0, excluded: tuple[int, ...] = ()) -> list[int]:
    flags = np.isin(np.arange(len(SCORES)), excluded)
    return np.flatnonzero(choose(SCORES, flags, positive, given).allowed).tolist()


def test_ranks_count_from_one_and_include_the_last() -> None:
    assert chosen(rules(ranks="2-4")) == [1, 2, 3]


def test_a_window_may_reach_beyond_the_hits() -> None:
    assert chosen(rules(ranks="5-100")) == [4, 5]


def test_what_answers_the_query_keeps_its_rank_and_is_no_negative() -> None:
    assert chosen(rules(ranks="2-4"), excluded=(1,)) == [2, 3]


def test_without_a_margin_a_hit_may_score_above_the_positive() -> None:
    assert chosen(rules(), excluded=(1,)) == [0, 2, 3, 4, 5]


def test_an_absolute_margin_is_a_distance_to_the_positive() -> None:
    """8 - 2 = 6, and 6 itself is far enough."""
    assert chosen(rules(absolute_margin=2.0)) == [3, 4, 5]


def test_a_relative_margin_is_a_fraction_of_the_positive() -> None:
    """8 - 3/8 · 8 = 5."""
    assert chosen(rules(relative_margin=0.375)) == [4, 5]


def test_of_two_margins_the_wider_one_holds() -> None:
    assert ceiling(8.0, rules(absolute_margin=1.0, relative_margin=0.5)) == 4.0
    assert ceiling(8.0, rules(absolute_margin=5.0, relative_margin=0.5)) == 3.0


def test_a_relative_margin_lies_below_a_negative_score_too() -> None:
    assert ceiling(-8.0, rules(relative_margin=0.25)) == -10.0


def test_nothing_is_far_enough_below_a_positive_that_was_not_found() -> None:
    assert chosen(rules(relative_margin=0.0), positive=-math.inf) == []
    assert chosen(rules(), positive=-math.inf) == [0, 1, 2, 3, 4, 5]


def test_the_margin_is_counted_apart_from_rank_and_answers() -> None:
    excluded = np.array([True, False, False, False, False, False])
    choice = choose(SCORES, excluded, 8.0, rules(ranks="1-3", absolute_margin=1.5))
    assert choice.too_close == 2


@pytest.mark.parametrize("score", [0.0, EMPTY_SCORE, -math.inf])
def test_a_hit_without_a_match_is_not_hard(score: float) -> None:
    scores = np.array([2.0, score], dtype=np.float32)
    choice = choose(scores, np.zeros(2, dtype=bool), 3.0, rules(ranks="1-2"))
    assert choice.allowed.tolist() == [True, False]


def test_the_best_come_first() -> None:
    assert in_order(np.array([False, True, True, False, True]), rules(), 0).tolist() == [1, 2, 4]


def test_a_draw_depends_on_seed_and_row_alone() -> None:
    allowed = np.ones(50, dtype=bool)
    draws = {
        (seed, row): tuple(in_order(allowed, rules(sampling="random", seed=seed), row).tolist())
        for seed in (1, 2)
        for row in (1, 2)
    }
    assert len(set(draws.values())) == 4
    assert sorted(draws[1, 1]) == list(range(50))
    assert tuple(in_order(allowed, rules(sampling="random", seed=1), 2).tolist()) == draws[1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": "10"}, "ranks=10 must be two ranks"),
        ({"ranks": "0-5"}, "ranks=0-5 must rise from 1"),
        ({"ranks": "9-5"}, "ranks=9-5 must rise"),
        ({"negatives": 0}, "negatives=0 must be at least 1"),
        ({"negatives": 7}, "negatives=7 are more than the 6 hits of ranks=1-6"),
        ({"absolute_margin": -1.0}, "absolute_margin=-1.0 must be at least 0"),
        ({"relative_margin": math.nan}, "relative_margin=nan must be at least 0 and finite"),
    ],
)
def test_rules_that_cannot_hold_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SourcierError, match=message):
        rules(**settings)


def test_a_choice_of_no_hits() -> None:
    nothing = choose(np.empty(0, dtype=np.float32), np.empty(0, dtype=bool), 1.0, rules())
    assert (len(nothing.allowed), nothing.too_close) == (0, 0)
    assert isinstance(nothing, Choice)
