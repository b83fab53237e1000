"""Which numbers a setting may be: said where the setting is declared, checked and worded in one place.

    @dataclass(kw_only=True)
    class Config:
        dropout: float = setting(0.1, "probability of every dropout", at_least=0, below=1)

        def __post_init__(self) -> None:
            check_ranges(self)

Not-a-number and infinity are refused in every field, also in one that declares no range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from sourcier.types import SourcierError


@dataclass(frozen=True, kw_only=True)
class Range:
    """Finite numbers within bounds, or those that are named."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf
    among: tuple[float, ...] = ()

    def __contains__(self, value: Any) -> bool:
        if not math.isfinite(value) or (self.among and value not in self.among):
            return False
        return bool(self.at_least <= value <= self.at_most and self.above < value < self.below)

    def described(self, value: Any) -> str:
        """The range in words, to one who gave a number outside it."""
        if self.among:
            *others, last = map(str, self.among)
            return f"{', '.join(others)} or {last}"
        bounds = {
            "at least": self.at_least,
            "above": self.above,
            "at most": self.at_most,
            "below": self.below,
        }
        words = [f"{name} {bound}" for name, bound in bounds.items() if math.isfinite(bound)]
        if not math.isfinite(value) and math.isinf(min(self.at_most, self.below)):
            words.append("finite")
        return " and ".join(words)


def check_ranges(config: Any) -> None:
    """Refuses a dataclass that has a number outside the range of its field; None is in every range."""
    for item in fields(config):
        value, allowed = getattr(config, item.name), item.metadata.get("range", Range())
        if isinstance(value, bool) or not isinstance(value, Real):
            continue
        if value not in allowed:
            raise SourcierError(f"{item.name}={value} must be {allowed.described(value)}")
