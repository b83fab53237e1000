"""How a run stands, and what it came to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sourcier.types import SourcierError


@dataclass(frozen=True)
class Standing:
    """The best of the evaluations so far, and how many have passed since."""

    best: float | None = None
    best_step: int = 0
    misses: int = 0

    def after(self, step: int, value: float | None) -> Standing:
        """The standing after an evaluation at `step`; without dev (None) the newest model is the best."""
        if value is None or self.best is None or value > self.best:
            return Standing(value, step, 0)
        return Standing(self.best, self.best_step, self.misses + 1)


@dataclass(frozen=True)
class TrainingResult:
    """What a run came to."""

    metric: str | None  # None where there was no dev
    best: float | None
    best_step: int  # 0 is the model as it came
    steps: int
    stopped_early: bool
    best_folder: Path
    last_folder: Path
    seconds: float  # of training, over all sittings of a run that was resumed

    @classmethod
    def read(cls, summary: Path) -> Self:
        """The result that `record` left in a run's training.json."""
        try:
            values = json.loads(summary.read_text(encoding="utf-8"))
            known = {name: values[name] for name in cls.__dataclass_fields__}
        except (ValueError, KeyError) as error:
            raise SourcierError(
                f"{summary}: cannot be read: restore it, or train in another folder"
            ) from error
        folders = {name: summary.parent / known[name] for name in ("best_folder", "last_folder")}
        for folder in folders.values():
            if not folder.is_dir():
                raise SourcierError(
                    f"{folder}: is missing, though the run is over: restore it, or train in another folder"
                )
        return cls(**known | folders)

    def record(self) -> dict[str, Any]:
        """The result as training.json holds it: with folders relative to the run's."""
        return asdict(self) | {"best_folder": self.best_folder.name, "last_folder": self.last_folder.name}
