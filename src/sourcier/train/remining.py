"""Hard negatives that follow the model: mined anew every N steps by another process, from a copy of the model.

    RUN/negatives/000000500.jsonl   the examples with the negatives that were mined with the model after step 500
    RUN/negatives/000000500/        until these come in: `model`, the copy; `rows.jsonl`, the examples as they were;
                                    `log`, what the process said

Training goes on while the process works. The new negatives come in `delay` steps after the copy was made, however
long the mining took: training waits for them, if need be. So what is trained on depends on neither speed nor machine,
and a run that is resumed sees the same negatives: its checkpoint names the files that were in force and under way, and
what was under way is mined again from the same copy.
"""

from __future__ import annotations

import copy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from sourcier.config import setting
from sourcier.data.collections import Corpus
from sourcier.data.examples import Examples
from sourcier.models.devices import check_device
from sourcier.ranges import check_ranges
from sourcier.train.negatives import Rules
from sourcier.train.remine import Task
from sourcier.types import SourcierError

T = TypeVar("T")
Save = Callable[[Path], None]


def alone(work: Callable[[], T]) -> T:
    """How a process that trains alone has the main process do something."""
    return work()


class Remining:
    """Changes the negatives of a run's examples at fixed steps. Every process has one; the main one mines."""

    @dataclass(kw_only=True)
    class Config:
        every: int | None = setting(
            None, "steps between minings of new hard negatives; by default none", at_least=1
        )
        delay: int | None = setting(
            None, "steps until they come in (default: as many as between minings)", at_least=1
        )
        corpus: str | None = setting(None, "documents to mine from: BEIR folder, .jsonl or .tsv")
        ranks: str = setting("10-100", "ranks of the hits to choose from, FIRST-LAST")
        absolute_margin: float | None = setting(
            None, "least distance of a negative's score below the positive's", at_least=0
        )
        relative_margin: float | None = setting(
            None, "the same as a fraction of the positive's score; 0.05 is 5%", at_least=0
        )
        sampling: Literal["top", "random"] = setting(
            "top", "the best of the hits that are left, or any of them"
        )
        teacher: str | None = setting(None, "cross-encoder that scores the new negatives")
        device: str | None = setting(
            None, "where the copy of the model computes, such as cuda:1 (default: cpu)"
        )

        def __post_init__(self) -> None:
            check_ranges(self)
            if self.every is None:
                return
            if self.steps_until > self.every:
                raise SourcierError(
                    f"remine: delay={self.delay} must be at most every={self.every}: one mining at a time"
                )
            if self.corpus is None:
                raise SourcierError("remine: corpus is missing: name the documents to mine from")

        @property
        def steps_until(self) -> int:
            """Steps from the copy of the model to the first one with the new negatives."""
            return self.delay if self.delay is not None else self.every or 0

        def check_device(self) -> None:
            """Refuses a device that is none, or that this machine, on which the main process mines, lacks."""
            check_device(self.device, given_as=f"remine.device={self.device}")

        def rules(self, *, negatives: int, seed: int) -> Rules:
            return Rules(
                ranks=self.ranks,
                negatives=negatives,
                absolute_margin=self.absolute_margin,
                relative_margin=self.relative_margin,
                sampling=self.sampling,
                seed=seed,
            )

    def __init__(
        self,
        config: Config,
        folder: Path,
        examples: Examples,
        *,
        negatives: int,
        seed: int,
        steps: int,
        timeout: float = 30.0,
        on_main: Callable[[Callable[[], Any]], Any] = alone,
    ) -> None:
        """`steps` is the length of the run; `timeout` in minutes bounds a wait; `on_main` is `processes.on_main`."""
        if config.every is None:
            raise ValueError("nothing is mined anew without `every`")
        if negatives < 1:
            raise SourcierError("remine: negatives=0 leaves nothing to mine: set negatives=1 or more")
        self._window = config.rules(
            negatives=negatives, seed=seed
        ).window  # refused now, not at the first mining
        if config.every + config.steps_until >= steps:
            raise SourcierError(
                f"remine: every={config.every}, delay={config.steps_until}: no new negatives would come in before the "
                f"last of {steps} steps: lower every or delay, raise steps, or leave it out"
            )
        #: The examples to train on. They change in place, row by row the same queries and positives.
        self.examples = copy.copy(examples)
        self.examples.rows = list(examples.rows)
        self._config = config
        self._every = config.every
        self._delay = config.steps_until
        self._folder = folder
        self._negatives = negatives
        self._seed = seed
        self._steps = steps
        self._timeout = timeout
        self._on_main = on_main
        #: The step with whose model the negatives were mined; None for those that the examples came with.
        self.in_force: int | None = None
        self._pending: int | None = None
        self._process: subprocess.Popen[str] | None = None

    def check(self) -> None:
        """Tries what each mining will need, so that a run does not stop at its first one.

        The corpus is read to its end: a pass takes a small part of what encoding it takes at each mining.
        """
        from sourcier.models.cross_encoder import CrossEncoder

        documents, first = len(Corpus.read(str(self._config.corpus))), self._window[0]
        if documents < first:
            raise SourcierError(
                f"{self._config.corpus}: remine corpus holds {documents} documents, and hits are chosen from rank "
                f"{first} on: lower remine ranks, or name another corpus"
            )
        self._config.check_device()
        if self._config.teacher is not None:
            CrossEncoder(self._config.teacher)

    def before_step(self, step: int, save: Save) -> bool:
        """What is due before step `step`, counted from 1, on all processes; whether the examples have changed.

        `save` writes the model as it is into a folder.
        """
        self._look()
        done = step - 1
        due = self._pending is not None and done == self._pending + self._delay
        if due:
            self._take_in()
        if done and done % self._every == 0 and done + self._delay < self._steps:
            self._on_main(lambda: self._begin(done, save))
            self._pending = done
        return due

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the steps of the negatives that are in force and of those under way."""
        return {"in_force": self.in_force, "pending": self._pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on as `state` says, with the files of the run; mines again what had not been finished."""
        self.in_force, self._pending = state["in_force"], state["pending"]
        if self.in_force is not None:
            self._read(self.in_force)
        if self._pending is not None:
            self._on_main(self._begin_again)

    def close(self) -> None:
        """Ends a mining that nobody will wait for."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def finish(self) -> None:
        """Removes what a run that is over does not need."""
        self.close()
        if self._pending is not None:
            shutil.rmtree(self._work(self._pending), ignore_errors=True)
            self._file(self._pending).unlink(missing_ok=True)

    def _begin(self, step: int, save: Save) -> None:
        """Copies model and examples, and starts a process that mines with them."""
        work = self._work(step)
        shutil.rmtree(work, ignore_errors=True)
        self._file(step).unlink(missing_ok=True)
        work.mkdir(parents=True)
        self.examples.to_jsonl(work / "rows.jsonl")
        save(work / "model")
        self._launch(step)

    def _begin_again(self) -> None:
        assert self._pending is not None
        if self._file(self._pending).is_file():
            return
        work = self._work(self._pending)
        for needed in (work / "model", work / "rows.jsonl"):
            if not needed.exists():
                raise SourcierError(
                    f"{needed}: is missing, with which negatives were being mined: restore it, or start another run"
                )
        self._launch(self._pending)

    def _launch(self, step: int) -> None:
        work = self._work(step)
        task = Task(
            model=str(work / "model"),
            corpus=str(self._config.corpus),
            examples=str(work / "rows.jsonl"),
            output=str(self._file(step)),
            rules=self._config.rules(negatives=self._negatives, seed=self._seed + step),
            teacher=self._config.teacher,
            device=self._config.device,
        )
        with self._log(step).open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sourcier.train.remine"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # of a process that is gone already, which the next look finds
            self._process.stdin.write(task.to_json() + "\n")
            self._process.stdin.flush()

    def _take_in(self) -> None:
        """Waits for the negatives that are due, and makes them those of the examples."""
        assert self._pending is not None
        self._on_main(self._wait)
        self._read(self._pending)
        self.in_force, self._pending = self._pending, None

    def _wait(self) -> None:
        assert self._pending is not None
        process, self._process = self._process, None
        if process is not None:
            try:
                status = process.wait(timeout=self._timeout * 60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise SourcierError(
                    f"mining with the model of step {self._pending} was not done {self._timeout:g} minutes after "
                    "it was needed: raise timeout or remine delay, or mine on another device"
                ) from None
            self._refuse(process, status)
        shutil.rmtree(self._work(self._pending), ignore_errors=True)

    def _look(self) -> None:
        """Stops the run if a mining has failed, rather than when its negatives are due."""
        process = self._process
        if process is not None and (status := process.poll()):
            self._process = None
            self._refuse(process, status)

    def _refuse(self, process: subprocess.Popen[str], status: int) -> None:
        """Lets go of a process that has ended, and refuses one that failed."""
        process.communicate()
        if status:
            raise SourcierError(
                f"mining with the model of step {self._pending} failed: {self._last_words(status)}"
            )

    def _last_words(self, status: int) -> str:
        assert self._pending is not None
        log = self._log(self._pending)
        if status < 0:  # it had no time to say why
            name = signal.Signals(-status).name
            return f"{name} ended it, which a system sends when memory runs out ({log})"
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"{said[-1]} ({log})" if said else f"the process ended with status {status}"

    def _read(self, step: int) -> None:
        path = self._file(step)
        mined = Examples.from_jsonl(path)
        rows = [(row.query, row.positive) for row in self.examples]
        if [(row.query, row.positive) for row in mined] != rows:
            raise SourcierError(
                f"{path}: holds other examples than this run: restore it, or start another run"
            )
        self.examples.rows[:] = mined.rows

    def _file(self, step: int) -> Path:
        return self._folder / f"{step:09d}.jsonl"

    def _work(self, step: int) -> Path:
        return self._folder / f"{step:09d}"

    def _log(self, step: int) -> Path:
        return self._work(step) / "log"
