"""Settings without effect: refused where they were changed, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sourcier.effects import Idle, refuse_idle
from sourcier.types import SourcierError


@dataclass(kw_only=True)
class Adapters:
    alpha: float = 16.0
    targets: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Config:
    rank: int | None = None
    alpha: float = 16.0
    adapters: Adapters = field(default_factory=Adapters)


TABLE: list[Idle[Config]] = [
    Idle(["alpha", "adapters.alpha", "adapters.targets"], lambda it: it.rank is None, "give rank")
]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(alpha=8.0), "alpha=8.0"),
        (Config(adapters=Adapters(alpha=8.0)), "adapters.alpha=8.0"),
        (Config(adapters=Adapters(targets=["query"])), r"adapters.targets=\['query'\]"),
    ],
)
def test_what_was_changed_and_changes_nothing_is_named(config: Config, said: str) -> None:
    with pytest.raises(SourcierError, match=f"^{said} has no effect: give rank$"):
        refuse_idle(config, TABLE, config)


@pytest.mark.parametrize("config", [Config(), Config(alpha=16.0), Config(rank=2, alpha=8.0)])
def test_defaults_and_what_has_an_effect_are_taken(config: Config) -> None:
    refuse_idle(config, TABLE, config)
