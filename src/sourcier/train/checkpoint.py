"""What a run leaves behind: a folder that is its own, and that a kill at any moment leaves whole.

RUN/config.yaml      what was trained on what, and the settings
RUN/metrics.jsonl    one JSON object a logged step, and one an evaluation
RUN/training.json    summary, written when the run is over
RUN/best, RUN/last   model folders
RUN/negatives        what was mined during training, see `remining.py`
RUN/state            while the run is not over: what it needs to go on
    CURRENT          the name of the state that counts, replaced atomically
    lock             held by the process that writes the run
    step-000000050   a state, in which nothing changes; with the models of its evaluation until they are in place

A state counts from the moment that CURRENT names it. What was written for one that does not count is removed, and what
was left to do for the one that counts is done, when the run is resumed.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sourcier.config import replace_text
from sourcier.files import sync, sync_tree
from sourcier.types import SourcierError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MODELS = ("best", "last")

#: What a file system says that has no locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_STATE_NAME = re.compile(r"step-\d{9}")


class RunFolder:
    """The output folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.best = self.path / "best"
        self.last = self.path / "last"
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "training.json"
        self.negatives = self.path / "negatives"
        self.states = self.path / "state"
        self._pointer = self.states / "CURRENT"
        self._lock_file = self.states / "lock"
        self._lock: IO[str] | None = None

    def check(self, *, resume: bool) -> None:
        """Refuses a folder that holds something: a run that took days, unless it is to go on, or another's files."""
        if self.path.exists() and not self.path.is_dir():
            raise SourcierError(f"{self.path}: output is a file: choose a folder")
        entries = list(self.path.iterdir()) if self.path.is_dir() else []
        if not resume and entries:
            raise SourcierError(
                f"{self.path}: output is not empty: choose another folder, or go on with this run by --resume"
            )
        own = (*self.path.glob(f".{self.config.name}.*"), self.states)
        if not self.config.is_file() and any(entry not in own for entry in entries):
            raise SourcierError(
                f"{self.path}: is not empty and holds no run ({self.config.name}): check --output"
            )

    def create(self) -> None:
        """Makes the folder, which has to be empty or missing."""
        self.check(resume=False)
        self.path.mkdir(parents=True, exist_ok=True)

    def reopen(self) -> None:
        """Takes the folder of a run that was stopped: removes its litter, and does what was left to do."""
        self.check(resume=True)
        self.path.mkdir(parents=True, exist_ok=True)
        if self.summary.is_file():
            self.finish()
            return
        self.lock()
        for name in (self.config.name, self.summary.name, *MODELS):
            for litter in self.path.glob(f".{name}.*"):
                _remove(litter)
        self._settle()
        if self.state() is None:
            self.metrics.unlink(missing_ok=True)

    def lock(self) -> None:
        """Keeps other processes out; refuses a folder that another one trains in, such as a run taken for dead."""
        self.states.mkdir(exist_ok=True)
        if fcntl is None:
            return
        self._lock = self._lock_file.open("w")
        try:  # a lock that ends with the process, however that ends
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise SourcierError(f"{self.path}: another process trains there: end it first") from error
            if error.errno not in _WITHOUT_LOCKS:
                raise

    def state(self) -> Path | None:
        """The state that counts, where there is one; a pointer that is damaged or lost is an error."""
        there = sorted(path.name for path in self.states.glob("step-*"))
        if self._pointer.is_file():
            named = self._pointer.read_text(encoding="utf-8", errors="replace").strip()
        elif there in ([], [_state_name(0)]):  # a kill may have come before the first state counted
            return None
        else:
            named = ""
        if not _STATE_NAME.fullmatch(named) or named not in there:
            raise SourcierError(
                f"{self._pointer}: names {named!r}, which is no state of this run: write the name of one that is whole "
                f"into it ({', '.join(there) or 'none is left'}), or start a new run"
            )
        return self.states / named

    @property
    def begun(self) -> bool:
        """Whether anything was trained here that a run could go on from."""
        return self.summary.is_file() or self.state() is not None

    @contextmanager
    def new_state(self, step: int) -> Iterator[Path]:
        """A folder for the state at `step`, which counts at the end; models in it then go to their place in the run."""
        unfinished = self.states / f".{_state_name(step)}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        sync_tree(unfinished)
        finished = self.states / _state_name(step)
        unfinished.rename(finished)
        sync(self.states)
        replace_text(self._pointer, finished.name + "\n")
        sync(self.states)
        self._settle()

    def finish(self) -> None:
        """Removes what a run that is over does not need."""
        if self._lock is not None:
            self._lock.close()
        shutil.rmtree(self.states, ignore_errors=True)

    def _settle(self) -> None:
        """Puts the models of the state that counts in their place, and removes all other states."""
        state = self.state()
        models = [] if state is None else [state / name for name in MODELS]
        for model in models:
            if model.is_dir():
                self._replace_model(model)
        for other in self.states.iterdir():
            if other not in (state, self._pointer, self._lock_file):
                _remove(other)

    def _replace_model(self, new: Path) -> None:
        place, old = self.path / new.name, self.path / f".{new.name}.old"
        if place.exists():
            _remove(old)
            place.rename(old)
        new.rename(place)
        sync(self.path)
        _remove(old)


def _state_name(step: int) -> str:
    return f"step-{step:09d}"


def _remove(path: Path) -> None:
    """Removes a file or a folder, or finds it gone."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
