"""Numbers of settings: each has a range, and what is outside it is named with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import get_args, get_type_hints

import pytest

from sourcier.config import from_dict, setting
from sourcier.indexes.kinds import KINDS, kind_class
from sourcier.models.checkpoints import FAMILIES
from sourcier.models.projection import Layer
from sourcier.ranges import check_ranges
from sourcier.retrieval.building import Building
from sourcier.train.negatives import Rules
from sourcier.train.remining import Remining
from sourcier.train.step import TrainingStep
from sourcier.train.trainer import Trainer
from sourcier.types import SourcierError


@dataclass(kw_only=True)
class Bounded:
    count: int | None = setting(4, "how many", at_least=1)
    rate: float = setting(0.5, "how fast", above=0)
    share: float = setting(0.5, "how much", at_least=0, below=1)
    bits: int = setting(2, "how fine", among=(1, 2, 4))
    free: float = 0.0
    flag: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(kw_only=True)
class Outer:
    inner: Bounded = field(default_factory=Bounded)


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [
        ("count", 0, "at least 1"),
        ("rate", 0.0, "above 0"),
        ("rate", math.nan, "above 0 and finite"),
        ("rate", math.inf, "above 0 and finite"),
        ("share", -0.1, "at least 0 and below 1"),
        ("share", 1.0, "at least 0 and below 1"),
        ("share", math.nan, "at least 0 and below 1"),
        ("bits", 3, "1, 2 or 4"),
        ("free", math.nan, "finite"),
        ("free", -math.inf, "finite"),
    ],
)
def test_a_number_out_of_range_is_named_with_the_range(name: str, value: float, range_: str) -> None:
    with pytest.raises(SourcierError) as error:
        Bounded(**{name: value})
    assert str(error.value) == f"{name}={value} must be {range_}"


def test_bounds_that_are_in_the_range_are_taken() -> None:
    assert Bounded(count=1, share=0.0, bits=4, free=-1e300, flag=True) == Bounded(
        count=1, share=0, bits=4, free=-1e300, flag=True
    )


def test_none_is_in_every_range() -> None:
    assert Bounded(count=None).count is None


def test_a_number_out_of_range_is_named_with_the_file_and_the_section_once() -> None:
    with pytest.raises(SourcierError) as error:
        from_dict(Outer, {"inner": {"bits": 3}}, where="run.yaml")
    assert str(error.value) == "run.yaml: inner: bits=3 must be 1, 2 or 4"


def _all_settings() -> list[tuple[type, str, type]]:
    """Class, name and type of each number among the settings of training, models, indexes and mining."""
    there = [name for name in KINDS if name != "seismic" or find_spec("seismic")]
    kinds = [part for name in there for part in (kind_class(name).Build, kind_class(name).Search)]
    families = [family.Config for family in FAMILIES.values()]
    classes = [
        Trainer.Config,
        TrainingStep.Config,
        Remining.Config,
        Rules,
        Building,
        Layer,
        *families,
        *kinds,
    ]
    numbers = []
    for cls in classes:
        hints = get_type_hints(cls)
        for item in fields(cls):
            members = get_args(hints[item.name]) or (hints[item.name],)
            numbers += [(cls, item.name, kind) for kind in (int, float) if kind in members]
    return numbers


@pytest.mark.parametrize(
    ("cls", "name", "kind"), _all_settings(), ids=lambda value: getattr(value, "__qualname__", value)
)
def test_every_number_among_the_settings_has_a_range(cls: type, name: str, kind: type) -> None:
    required = {"output": "run"} if cls is Trainer.Config else {"dimension": 8} if cls is Layer else {}
    with pytest.raises(SourcierError, match=f"^{name}=(-1|nan) must be .*[0-9]"):
        cls(**required | {name: math.nan if kind is float else -1})
