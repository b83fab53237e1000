"""What the metrics.jsonl of a run tells, read back: its curves, its warnings, and how much of it can be judged."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sourcier.train.health import LOGS, PREFIX, READ
from sourcier.types import SourcierError


@dataclass(frozen=True)
class History:
    """The lines of a run's metrics.jsonl, by name."""

    curves: dict[str, list[tuple[int, float]]]
    warnings: list[str]
    #: Whether the last line is a part of one: the run was ended while it wrote.
    is_cut: bool = False

    @property
    def readings(self) -> int:
        """How many lines have all the figures that the rule of `sourcier.train.health` reads."""
        return min(len(self.curves.get(PREFIX + name, ())) for name in READ)

    @property
    def compressed(self) -> bool | None:
        """Whether the run was warned of compressed similarity; None where that rule had too little to read."""
        return True if self.warnings else False if self.readings >= LOGS else None

    def verdict(self) -> list[str]:
        """What is to be said of the course of the run, in sentences; the first one is whether it was warned."""
        return [self._of_similarity(), *self._of_file()]

    def _of_similarity(self) -> str:
        if self.warnings:
            return f"Training warned: {self.warnings[0]}."
        if self.readings >= LOGS:
            return "Training gave no warning of compressed similarity."
        if self.readings:
            return (
                f"Training logged its health in {self.readings} of the {LOGS} lines that a warning needs: "
                "too few lines to judge its course."
            )
        return "Training logged no figures of health, so that nothing can be said of its course."

    def _of_file(self) -> list[str]:
        return (
            ["The last line of its metrics is cut off and left out: the run was ended there."]
            if self.is_cut
            else []
        )


def read_history(metrics: Path) -> History:
    """The curves of a run, and the warnings that it gave."""
    curves: dict[str, list[tuple[int, float]]] = {}
    warnings: list[str] = []
    try:
        *lines, last = metrics.read_bytes().split(b"\n")
    except OSError as error:
        raise SourcierError(f"{metrics}: cannot be read: {error}") from error
    is_cut = bool(last) and not _is_whole(last)
    for number, line in enumerate(lines if is_cut or not last else [*lines, last], start=1):
        place = f"{metrics}:{number}"
        entry = _entry(line, place)
        if "warning" in entry:
            warnings.append(str(entry["warning"]))
        for name, value in entry.items():
            if name not in ("step", "seconds") and isinstance(value, int | float):
                curves.setdefault(name, []).append((entry["step"], _finite(name, value, place)))
    return History(curves, warnings, is_cut)


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _entry(line: bytes, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise SourcierError(f"{place}: is not JSON: restore the file, or take the line out") from error
    step = entry.get("step") if isinstance(entry, dict) else None
    if type(step) is not int or step < 0:
        raise SourcierError(f'{place}: is no line of metrics: expected an object with "step", a whole number')
    return dict(entry)


def _finite(name: str, value: float, place: str) -> float:
    """A number that can be drawn; a run writes null where a figure is none."""
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise SourcierError(
            f"{place}: '{name}' is {number}, which no run writes: restore the file, or put null there"
        )
    return number
