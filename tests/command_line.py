"""How a command ended that was run in this process, and a corpus to run one on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """The exit status and what was printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def fault(self) -> str:
        """The only line of a command that fails, without the name of the program."""
        assert (self.out, self.err.count("\n"), self.err[:10]) == ("", 1, "sourcier: "), self
        return self.err.removeprefix("sourcier: ").rstrip("\n")


#: Runs a command with arguments of any type, as a shell would give them.
Run = Callable[..., Ended]

DOCUMENTS = {
    "cat": "the cat sleeps on the warm sofa",
    "dog": "the dog runs in the green park",
    "fish": "a fish swims in the cold sea",
    "bird": "a bird sings in the old tree",
}
QUERIES = {"q1": "cat sofa", "q2": "dog park", "q3": "fish sea", "q4": "bird tree"}


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
