"""What a command is, how its flags are read, and what several commands share."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from jsonargparse import ArgumentParser

from sourcier.config import unknown
from sourcier.types import SourcierError

#: Marks a model folder of ours; `sourcier.models.checkpoints` writes it.
MODEL_MANIFEST = "sourcier.json"


class WrongUse(SourcierError):
    """The command line itself is wrong."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command found: for programs, and for people."""

    values: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: what it is for, an example, its flags, and its work."""

    summary: str
    example: str
    #: Adds the flags; it is given the arguments, since some decide which flags there are.
    add_flags: Callable[[Parser, Sequence[str]], None]
    run: Callable[[Any], Output]


class Parser(ArgumentParser):
    """The flags of one command; a wrong use is an exception of one line."""

    def __init__(self, name: str, command: Command) -> None:
        super().__init__(
            prog=f"sourcier {name}",
            description=f"{command.summary}\n\nexample:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            exit_on_error=False,
        )

    def read(self, arguments: Sequence[str]) -> Any:
        """The values of the flags."""
        self._refuse_unknown(arguments)
        try:
            return self.parse_args(list(arguments))
        except argparse.ArgumentError as error:
            raise WrongUse(f"{' '.join(str(error).split())} (see {self.prog} --help)") from error

    def _refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Name the nearest known flag before the parser complains of whatever follows from the wrong one."""
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for argument in arguments:
            if argument == "--":
                return
            flag = argument.split("=", 1)[0]
            if flag.startswith("--") and flag not in known:
                raise WrongUse(f"{unknown('option', flag, known)} (see {self.prog} --help)")


class Reported(Protocol):
    """What was read from files, with a report that can be printed and counts what was skipped."""

    report: Any


Source = TypeVar("Source", bound=Reported)


def is_main() -> bool:
    """Whether this process, of those that a launcher started, is the one that speaks and writes."""
    return int(os.environ.get("RANK", "0")) == 0


def note(text: str) -> None:
    """Tell the user something that is not the result."""
    if is_main():
        print(text, file=sys.stderr)


def told(source: Source) -> Source:
    """`source`, after the user has been told what was skipped or odd in it."""
    if source.report.skipped or source.report.noted:
        note(str(source.report))
    return source


def hide_weight_bars() -> None:
    """Spare the user the bars that transformers shows while it reads or writes weights, which are over at once."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # heeded when transformers is imported
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()


def add_lenient(parser: Parser) -> None:
    parser.add_argument(
        "--lenient", action="store_true", help="skip and count faulty lines instead of stopping"
    )


# jsonargparse also calls the type of a flag on a default and on a value that has the type already.


def count(value: str | int) -> int:
    """The type of a flag: a whole number above 0."""
    text = str(value)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not '{text}'")
    return int(text)


def names(value: str | list[str]) -> list[str]:
    """The type of a flag: names parted by commas, except those within brackets, as in `P(rel=2,judged_only=True)@5`."""
    parts = re.split(r",(?![^(]*\))", value) if isinstance(value, str) else value
    return [name.strip() for name in parts if name.strip()]


def model_folder(path: str) -> Path:
    """The model of a run is its best; another folder is taken as it is."""
    folder = Path(path)
    best = folder / "best"
    return best if (best / MODEL_MANIFEST).is_file() and not (folder / MODEL_MANIFEST).is_file() else folder
