"""What a run says while it goes on: a bar or lines on standard error, `metrics.jsonl`, and trackers."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor

from sourcier.train.health import HealthRule

logger = logging.getLogger(__name__)

#: Seconds between two lines where standard error is not a terminal.
LINE_SECONDS = 5.0


class Tracker(Protocol):
    """Where figures go besides the file; accelerate's trackers are of this kind."""

    def log(self, values: dict[str, float], step: int) -> None: ...


class Averages:
    """Means of the figures of several steps, left on the device until somebody asks.

    A figure that only some of the steps have is the mean of those.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] += 1

    def take(self) -> dict[str, Tensor]:
        """The means since the last call."""
        means = {name: value / self._counts[name] for name, value in self._sums.items()}
        self._sums, self._counts = {}, Counter()
        return means

    def state_dict(self) -> dict[str, Any]:
        return {
            "sums": {name: value.cpu() for name, value in self._sums.items()},
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums, self._counts = dict(state["sums"]), Counter(state["counts"])


def is_logged(step: int, *, steps: int, every: int) -> bool:
    """Whether a step (from 1) has a line of its own: each `every`-th, and the last."""
    return step % every == 0 or step == steps


def to_numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars on a device as numbers, in one transfer."""
    if not metrics:
        return {}
    device = next(iter(metrics.values())).device
    values = torch.stack([value.to(device) for value in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))


class Report:
    """Tells the progress of a run; a context manager, so that the bar is gone before an error is printed."""

    def __init__(
        self,
        metrics: Path,
        *,
        steps: int,
        log_every: int,
        show: bool = True,
        tracker: Tracker | None = None,
        rule: HealthRule | None = None,
    ) -> None:
        """`rule` reads the figures and may have something to say, which is told even where nothing is shown."""
        self._steps = steps
        self._log_every = log_every
        self._file = metrics.open("a", encoding="utf-8")
        self._tracker = tracker
        self._rule = rule
        self._averages = Averages()
        self._examples = 0
        self._training = 0.0  # seconds, without pauses
        self._started = self._lapped = time.perf_counter()
        self._pause: float | None = None  # when the time stopped that counts for the rate
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
        if is_logged(step, steps=self._steps, every=self._log_every):
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
        warning = self._rule.judge(step, self._steps, means) if self._rule else None
        if warning:
            self._warn(step, warning)

    def _warn(self, step: int, text: str) -> None:
        self._append({"step": step, "warning": text})
        if self._display:
            self._display.say(text)
        else:
            logger.warning(text)

    def evaluation(self, step: int, values: Mapping[str, float], text: str) -> None:
        """Notes what an evaluation found; `text` says it to people."""
        self._write(step, values)
        if self._display:
            self._display.say(text)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        elapsed = time.perf_counter() - self._started
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._append({"step": step, **finite, "seconds": round(elapsed, 3)})
        if self._tracker:
            self._tracker.log(dict(values), step=step)

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._file.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that does not count for the rate: an evaluation, or the writing of a model."""
        self._pause = time.perf_counter()
        yield
        self._lapped += time.perf_counter() - self._pause
        self._pause = None

    def state_dict(self) -> dict[str, Any]:
        """How much of the file counts, and what is not in it yet."""
        self._file.flush()
        os.fsync(self._file.fileno())
        now = time.perf_counter()
        return {
            "written": os.fstat(self._file.fileno()).st_size,
            "averages": self._averages.state_dict(),
            "rule": self._rule.state_dict() if self._rule else None,
            "examples": self._examples,
            "training": self._training,
            "lap": (self._pause or now) - self._lapped,
            "seconds": now - self._started,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what was written after that state."""
        self._file.truncate(min(state["written"], os.fstat(self._file.fileno()).st_size))
        self._averages.load_state_dict(state["averages"])
        if self._rule:
            self._rule.load_state_dict(state["rule"])
        self._examples, self._training = state["examples"], state["training"]
        now = time.perf_counter()
        self._lapped, self._started = now - state["lap"], now - state["seconds"]


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
