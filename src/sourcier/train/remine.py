"""Mining with a copy of a model that is being trained, as a process of its own.

`python -m sourcier.train.remine` reads one line of JSON from standard input, a `Task`, and ends with status 0 once its
output is there. Standard input stays open as long as the parent lives: when it is closed, the process ends at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sourcier.config import from_dict
from sourcier.data.collections import Corpus
from sourcier.data.examples import Examples
from sourcier.files import sync
from sourcier.models import checkpoints
from sourcier.retrieval.retriever import Retriever
from sourcier.train.mining import mine
from sourcier.train.negatives import Rules
from sourcier.types import SourcierError


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is mined with what. Paths are strings, so that a task is JSON."""

    model: str
    corpus: str  # BEIR folder, or a corpus as .jsonl or .tsv
    examples: str  # .jsonl
    output: str  # .jsonl
    rules: Rules
    teacher: str | None = None
    device: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        return from_dict(cls, json.loads(text), where="task")


def remine(task: Task) -> None:
    """Write the examples with negatives that the model ranks high; a row with too few of them keeps what it has.

    The same task gives the same file. It appears when it is whole.
    """
    examples = Examples.from_jsonl(task.examples)
    output = Path(task.output)
    model = checkpoints.load(task.model, task.device)
    with (
        TemporaryDirectory(prefix="index-", dir=Path(task.model).parent) as folder,
        Retriever.build(model, Corpus.read(task.corpus), folder, save_model=False) as retriever,
    ):
        mined = mine(retriever, examples, task.rules).examples
    rows = [
        new if len(new.negatives) >= task.rules.negatives else old
        for new, old in zip(mined, examples, strict=True)
    ]
    mined = Examples(rows, name=examples.name)
    if task.teacher is not None:
        from sourcier.models.cross_encoder import CrossEncoder
        from sourcier.train.teacher import scored

        mined = scored(mined, CrossEncoder(task.teacher, device=task.device))
    mined.to_jsonl(output)
    sync(output)
    sync(output.parent)


def _end_with_parent() -> None:
    # Not through sys.stdin, which the interpreter locks when it ends.
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> int:
    task = Task.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        remine(task)
    except SourcierError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
