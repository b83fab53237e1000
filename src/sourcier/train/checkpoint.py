"""What a run leaves behind: a folder that is its own.

RUN/config.yaml      settings of the run
RUN/metrics.jsonl    one JSON object a logged step, and one an evaluation
RUN/training.json    summary, written when the run is over
RUN/best, RUN/last   model folders
"""

from __future__ import annotations

from pathlib import Path

from sourcier.types import SourcierError


class RunFolder:
    """The output folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.best = self.path / "best"
        self.last = self.path / "last"
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "training.json"

    def create(self) -> None:
        """Makes the folder; one that holds something is left alone, since it may be a run that took days."""
        if self.path.exists() and not self.path.is_dir():
            raise SourcierError(f"{self.path}: output is a file: choose a folder")
        if self.path.is_dir() and any(self.path.iterdir()):
            raise SourcierError(f"{self.path}: output is not empty: choose another folder or remove it")
        self.path.mkdir(parents=True, exist_ok=True)
