"""`sourcier corpus`: collections to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sourcier.cli.command import Command, Output, Parser, count, names
from sourcier.cli.places import check_writable


def add_python_flags(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("output", metavar="OUT", help="the BEIR folder to write")
    parser.add_argument(
        "--packages", type=names, metavar="A,B", help="only these packages (default: all installed)"
    )
    parser.add_argument(
        "--limit", type=count, default=3000, metavar="N", help="most documents (default: 3000)"
    )
    parser.add_argument("--dev", type=names, default=[], metavar="A,B", help="packages of the dev split")
    parser.add_argument("--test", type=names, default=[], metavar="A,B", help="packages of the test split")


def python(settings: Any) -> Output:
    """Write the documentation of installed packages as a BEIR folder."""
    from sourcier.data.pydocs import write_python_corpus

    check_writable("OUT", settings.output, "folder")
    written = write_python_corpus(
        settings.output, settings.packages, settings.limit, dev=settings.dev, test=settings.test
    )
    values = {
        "output": settings.output,
        "documents": {split: sum(packages.values()) for split, packages in written.splits.items()},
        "packages": {split: sorted(packages) for split, packages in written.splits.items()},
        "left_out": dict(written.left_out),
    }
    return Output(values, str(written))


COMMANDS = {
    "corpus python": Command(
        summary="turn the documentation of installed Python packages into a BEIR folder with splits",
        example="sourcier corpus python docs --packages numpy,torch --limit 3000",
        add_flags=add_python_flags,
        run=python,
    )
}
