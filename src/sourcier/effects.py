"""Settings that do nothing beside the others that were chosen: a table says which, when and why.

What was set to its default cannot be told from what was not set: it is taken for the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar

from sourcier.types import SourcierError

Situation = TypeVar("Situation")


@dataclass(frozen=True)
class Idle(Generic[Situation]):
    """Settings without effect in some situations; of a section below, as `section.name`."""

    names: Sequence[str]
    when: Callable[[Situation], bool]
    why: str  # and the mend


def refuse_idle(config: Any, table: Sequence[Idle[Situation]], situation: Situation) -> None:
    """Refuses a dataclass with a setting that was changed and changes nothing."""
    for idle in table:
        if not idle.when(situation):
            continue
        for name in idle.names:
            *sections, own = name.split(".")
            holder = config
            for section in sections:
                holder = getattr(holder, section)
            value = getattr(holder, own)
            if value != _default(holder, own):
                raise SourcierError(f"{name}={value} has no effect: {idle.why}")


def _default(config: Any, name: str) -> Any:
    (item,) = (item for item in fields(config) if item.name == name)
    return item.default if item.default_factory is MISSING else item.default_factory()
