"""Which hits may serve as hard negatives: the rules, worked out on scores and flags alone.

Shapes: K hits of a query, best first.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sourcier.config import setting
from sourcier.ranges import check_ranges
from sourcier.types import EMPTY_SCORE, SourcierError

_WINDOW = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How hard negatives are chosen among the hits of a query."""

    ranks: str = setting("10-100", "ranks of the hits to choose from, FIRST-LAST")
    negatives: int = setting(4, "negatives of each row", at_least=1)
    absolute_margin: float | None = setting(
        None, "least distance of a negative's score below the positive's", at_least=0
    )
    relative_margin: float | None = setting(
        None, "the same as a fraction of the positive's score; 0.05 is 5%", at_least=0
    )
    sampling: Literal["top", "random"] = setting("top", "the best of the hits that are left, or any of them")
    seed: int = setting(42, "decides what is drawn at random", at_least=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        first, last = self.window
        if not 1 <= first <= last:
            raise SourcierError(f"ranks={self.ranks} must rise from 1 or more, such as 10-100")
        if self.negatives > last - first + 1:
            raise SourcierError(
                f"negatives={self.negatives} are more than the {last - first + 1} hits of ranks={self.ranks}: "
                "widen the ranks, or ask for fewer"
            )

    @property
    def window(self) -> tuple[int, int]:
        """The first and the last rank, counted from 1."""
        found = _WINDOW.fullmatch(self.ranks)
        if found is None:
            raise SourcierError(f"ranks={self.ranks} must be two ranks, such as 10-100")
        return int(found[1]), int(found[2])


class Choice(NamedTuple):
    """The hits that the rules leave, [K] bool, and how many the margin alone took out."""

    allowed: np.ndarray
    too_close: int


def choose(scores: np.ndarray, excluded: np.ndarray, positive: float, rules: Rules) -> Choice:
    """The hits of a query that may be negatives.

    `scores` [K], best first, -inf where there is no hit; `excluded` [K] bool marks what answers the query; `positive`
    is the positive's score, -inf where it was not found: it lies below all hits, so that none is far enough below it.
    """
    first, last = rules.window
    ranks = np.arange(1, len(scores) + 1)
    eligible = (ranks >= first) & (ranks <= last) & matching(scores) & ~excluded
    close = scores.astype(np.float64) > ceiling(positive, rules)
    return Choice(eligible & ~close, int((eligible & close).sum()))


def matching(scores: np.ndarray) -> np.ndarray:
    """Which hits have anything in common with the query. [K] bool

    A score of 0 is that of no common term, and documents without content come last of all: neither is hard.
    """
    return (scores > EMPTY_SCORE) & (scores != 0)


def ceiling(positive: float, rules: Rules) -> float:
    """The highest score that a negative may have beside a positive of this score."""
    if rules.absolute_margin is None and rules.relative_margin is None:
        return math.inf
    if positive == -math.inf:
        return positive
    # A fraction of the score's size: taken of a negative score itself, the margin would lie above the positive.
    margins = (rules.absolute_margin or 0.0, abs(positive) * (rules.relative_margin or 0.0))
    return positive - max(margins)


def in_order(allowed: np.ndarray, rules: Rules, row: int) -> np.ndarray:
    """The places of the allowed hits [K] of a row, the preferred ones first."""
    places = np.flatnonzero(allowed)
    return places if rules.sampling == "top" else generator(rules, row).permutation(places)


def generator(rules: Rules, row: int) -> np.random.Generator:
    """Random numbers of a row that depend on nothing but the seed and the row."""
    return np.random.default_rng((rules.seed, row))
