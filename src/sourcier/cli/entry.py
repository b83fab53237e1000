"""From the arguments to the exit status: the one place that prints results and errors."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, NoReturn

import sourcier
from sourcier.cli import corpus, diagnosing, indexing, mining, searching, training, verify
from sourcier.cli.command import Command, Parser, WrongUse, is_main
from sourcier.config import unknown
from sourcier.types import SourcierError

COMMANDS: dict[str, Command] = (
    corpus.COMMANDS
    | mining.COMMANDS
    | training.COMMANDS
    | verify.COMMANDS
    | diagnosing.COMMANDS
    | indexing.COMMANDS
    | searching.COMMANDS
)

#: Which extra brings a library that is not installed.
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "accelerate", "safetensors", "peft"), "train"),
    **dict.fromkeys(("faiss", "numba", "bm25s", "ir_measures"), "index"),
}


def run() -> NoReturn:
    """Run the command of this process' arguments, and end with its exit status."""
    status = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "torch.distributed" in sys.modules:
        from sourcier.train.processes import leave

        leave(status)
    sys.exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(arguments)
    except WrongUse as error:
        return _fail(error, arguments, status=2)
    except KeyboardInterrupt:
        sys.stderr.write("sourcier: interrupted\n")
        return 130
    except Exception as error:
        return _fail(error, arguments, status=1)


def read(arguments: Sequence[str]) -> tuple[Command, Any]:
    """The command that is asked for and the values of its flags; nothing is run."""
    name = _find_command(arguments)
    command, rest = COMMANDS[name], arguments[len(name.split()) :]
    parser = Parser(name, command)
    command.add_flags(parser, rest)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command, parser.read(rest)


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        raise WrongUse("no command given (see sourcier --help)")
    if arguments[0] in ("-h", "--help"):
        return _say(_overview())
    if arguments[0] == "--version":
        return _say(f"sourcier {sourcier.__version__}")
    if len(arguments) > 1 and arguments[1] in ("-h", "--help") and _actions(arguments[0]):
        return _say(_overview(f"{arguments[0]} "))
    command, settings = read(arguments)
    with redirect_stdout(sys.stderr):  # libraries that print must not spoil the result
        output = command.run(settings)
    if is_main():
        return _say(
            json.dumps(output.values, ensure_ascii=False, allow_nan=False) if settings.json else output.text
        )
    return 0


def _say(result: str) -> int:
    """Print a result; returns the exit status."""
    try:
        print(result, flush=True)
    except (
        BrokenPipeError
    ):  # the reader, such as `head`, has seen enough; Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0


def _find_command(arguments: Sequence[str]) -> str:
    """The name of the command, of one word or two, that the arguments begin with."""
    first = arguments[0]
    if first in COMMANDS:
        return first
    actions = _actions(first)
    if not actions:
        known = {name.split()[0] for name in COMMANDS}
        raise WrongUse(f"{unknown('command', first, known)} (see sourcier --help)")
    if len(arguments) == 1:
        raise WrongUse(f"'{first}' needs one of: {', '.join(actions)} (see sourcier {first} --help)")
    if arguments[1] not in actions:
        raise WrongUse(f"{unknown(f'{first} command', arguments[1], actions)} (see sourcier {first} --help)")
    return f"{first} {arguments[1]}"


def _actions(group: str) -> list[str]:
    """The second words of the commands that have two and begin with `group`."""
    return [name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")]


def _overview(prefix: str = "") -> str:
    """The commands whose names begin with `prefix`, one a line."""
    width = max(map(len, COMMANDS)) + 2
    shown = {name: command for name, command in COMMANDS.items() if name.startswith(prefix)}
    return "\n".join(
        [
            f"usage: sourcier {prefix}COMMAND …",
            "",
            "Train, index, search and evaluate neural search models on your own documents.",
            "",
            *(f"  {name:{width}}{command.summary}" for name, command in shown.items()),
            "",
            "`sourcier COMMAND --help` tells the options of a command, `sourcier --version` the version.",
        ]
    )


def _fail(error: Exception, arguments: Sequence[str], *, status: int) -> int:
    """Say in one line what went wrong."""
    if "--debug" in arguments:
        traceback.print_exception(error)
    sys.stderr.write(f"sourcier: {_in_words(error)}\n")
    return status


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, SourcierError):
        return text
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return f"{error.name} is not installed: pip install 'sourcier[{EXTRAS[error.name]}]'"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"unexpected {type(error).__name__}: {text} (--debug shows where)"
