"""What a run says while it goes on: a bar or lines on standard error, `metrics.jsonl`, and trackers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor

#: Seconds between two lines where standard error is not a terminal.
LINE_SECONDS = 5.0


class Tracker(Protocol):
    """Where figures go besides the file; accelerate's trackers are of this kind."""

    def log(self, values: dict[str, float], step: int) -> None: ...


class Averages:
    """Means of the figures of several steps, left on the device until somebody asks."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._count += 1

    def take(self) -> dict[str, Tensor]:
        """The means since the last call."""
        means = {name: value / self._count for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        return means


def to_numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars on a device as numbers, in one transfer."""
    values = torch.stack(list(metrics.values())).tolist() if metrics else []
    return dict(zip(metrics, values, strict=True))


class Report:
    """Tells the progress of a run; a context manager, so that the bar is gone before an error is printed."""

    def __init__(
        self, metrics: Path, *, steps: int, log_every: int, show: bool = True, tracker: Tracker | None = None
    ) -> None:
        self._steps = steps
        self._log_every = log_every
        self._file = metrics.open("a", encoding="utf-8")
        self._tracker = tracker
        self._averages = Averages()
        self._examples = 0
        self._training = 0.0  # seconds, without pauses
        self._started = self._lapped = time.perf_counter()
        self._display = _display(steps) if show else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display:
            self._display.close()
        self._file.close()

    def step(
        self, step: int, metrics: Mapping[str, Tensor], *, examples: int, epoch: float, learning_rate: float
    ) -> None:
        """Notes optimizer step `step` (from 1) over `examples` examples; writes every `log_every` steps."""
        self._averages.add(metrics)
        self._examples += examples
        if step % self._log_every == 0 or step == self._steps:
            self._write_step(step, epoch, learning_rate)
        elif self._display:
            self._display.move(step)

    def _write_step(self, step: int, epoch: float, learning_rate: float) -> None:
        means = to_numbers(self._averages.take())  # waits for the device, so the clock is read after it
        now = time.perf_counter()
        rate = self._examples / (now - self._lapped)
        self._training += now - self._lapped
        self._examples, self._lapped = 0, now
        values = means | {"learning_rate": learning_rate, "epoch": epoch, "examples_per_second": rate}
        self._write(step, values)
        if self._display:
            left = clock(self._training / step * (self._steps - step))
            self._display.move(step, f"loss {means['loss']:.4g} · {rate:.3g} examples/s · {left} left")

    def evaluation(self, step: int, values: Mapping[str, float], text: str) -> None:
        """Notes what an evaluation found; `text` says it to people."""
        self._write(step, values)
        if self._display:
            self._display.say(text)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        elapsed = time.perf_counter() - self._started
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"step": step, **finite, "seconds": round(elapsed, 3)}) + "\n")
        self._file.flush()
        if self._tracker:
            self._tracker.log(dict(values), step=step)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that does not count for the rate: an evaluation, or the writing of a model."""
        started = time.perf_counter()
        yield
        self._lapped += time.perf_counter() - started


class Display(Protocol):
    """What people see."""

    def move(self, step: int, text: str = "") -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def _display(steps: int) -> Display:
    console = Console(stderr=True)
    return Bar(console, steps) if console.is_terminal else Lines(console, steps)


class Bar:
    """A progress bar at the bottom of a terminal."""

    def __init__(self, console: Console, steps: int) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._progress.add_task("", total=steps)
        self._progress.start()

    def move(self, step: int, text: str = "") -> None:
        self._progress.update(self._task, completed=step, description=text or None)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """A line every few seconds, for files and pipes."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._printed = -math.inf

    def move(self, step: int, text: str = "") -> None:
        now = time.perf_counter()
        if text and (now - self._printed >= LINE_SECONDS or step == self._steps):
            self._printed = now
            self.say(f"step {step}/{self._steps} · {text}")

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to put away."""


def clock(seconds: float) -> str:
    """Seconds as people read them: 1:05, or 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
