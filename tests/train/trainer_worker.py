"""Run by `test_trainer_ranks.py` under torchrun: what the trainer does on every rank.

torchrun --nproc_per_node N trainer_worker.py agree FOLDER    trains, stops early, and is refused a folder
torchrun --nproc_per_node N trainer_worker.py fail FOLDER     rank 1 fails in the middle of a run
torchrun --nproc_per_node N trainer_worker.py nan FOLDER      what rank 1 computes is no number in the second step
torchrun --nproc_per_node N trainer_worker.py parts FOLDER    trains adapters, and the last layer, of a tiny BERT
torchrun --nproc_per_node N trainer_worker.py command FOLDER WHERE ARGUMENTS…
                                                              `sourcier ARGUMENTS`, failing on rank 1 in its third
                                                              forward or batch, but not after a restart
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from toy import NOTHING, Table, letters

from sourcier.cli.entry import main
from sourcier.data.examples import Example, Examples
from sourcier.models.splade import Splade
from sourcier.train import trainer
from sourcier.train.step import Collator, TrainingStep
from sourcier.train.trainer import Trainer, TrainingResult
from sourcier.types import SourcierError


def train(
    output: Path,
    *,
    model: Table | None = None,
    examples: Examples | None = None,
    dev: Any = None,
    **settings: Any,
) -> TrainingResult:
    """Three steps of two batches over 11 rows in batches of 4, 4 and 3, with two hard negatives."""
    config = Trainer.Config(
        output=str(output),
        **{
            "steps": 3,
            "batch_size": 4,
            "accumulation": 2,
            "negatives": 2,
            "learning_rate": 0.05,
            "clip": 0.1,
            "timeout": 1.0,
            "progress": False,
        }
        | settings,
    )
    return config.build(model or Table(), examples or letters(11, negatives=2), dev).run()


class Falling:
    """An evaluation that finds the model worse each time."""

    part = NOTHING

    def __init__(self, *ignored: Any, **settings: Any) -> None:
        self.value = 1.0

    def __call__(self, model: Table) -> float:
        self.value -= 0.1
        return self.value


class FailsOnRankOne(Table):
    def forward(self, features: dict[str, torch.Tensor], side: str) -> Any:
        if os.environ["RANK"] == "1":
            raise RuntimeError("rank 1 has had enough")
        return super().forward(features, side)


class NoNumberOnRankOne(Table):
    """From the second step on: one has two batches, each with queries and documents."""

    calls = 0

    def forward(self, features: dict[str, torch.Tensor], side: str) -> Any:
        self.calls += 1
        found = super().forward(features, side)
        if os.environ["RANK"] == "1" and self.calls > 4:
            found.vectors.data.fill_(math.nan)
        return found


def crowd(output: Path, *, rows: int, sharing: int) -> TrainingResult:
    """Two epochs over rows of which the first ones share a positive, so that no two of those meet in a batch."""
    model = Table(rows=2 * rows)
    examples = Examples(
        [Example(query=chr(97 + row), positive=chr(97 + rows + max(row, sharing - 1))) for row in range(rows)]
    )
    config = Trainer.Config(output=str(output), epochs=2, batch_size=8, timeout=1.0, progress=False)
    return config.build(model, examples).run()


def agree(folder: Path) -> dict[str, Any]:
    train(folder / "ranks")
    crowded = crowd(folder / "crowded", rows=100, sharing=60)
    try:
        crowd(folder / "identical", rows=20, sharing=20)
    except SourcierError as error:
        alone = str(error)
    rank = int(os.environ["RANK"])
    other_rate = refused(folder / "unlike", learning_rate=0.05 + rank)
    other_rows = refused(folder / "unlike", examples=letters(11 - rank, negatives=2))
    trainer.take_part = trainer.Validation = Falling  # type: ignore[misc, assignment]
    stopped = train(folder / "early", dev=object(), steps=10, eval_every=1, patience=2)
    return {
        "crowded": crowded.steps,
        "alone": alone,
        "other rate": other_rate,
        "other rows": other_rows,
        "unlike": (folder / "unlike").exists(),
        "stopped": stopped.steps,
        "refused": refused(folder / "ranks"),
    }


def refused(output: Path, **settings: Any) -> str:
    """Why a run does not begin."""
    try:
        train(output, **settings)
    except SourcierError as error:
        return str(error)
    return "it did begin"


def note_threads(file: Path) -> None:
    """Writes the names of the threads that there are when all else is over."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    file.write_text("\n".join(names))


def parts(folder: Path) -> None:
    """The base is there already; dropout is none, so that one process does the same."""
    rows = [Example(f"water {n}", f"lake {n}", (f"file {n}",)) for n in range(8)]
    for name, choice in (("adapters", {"lora_rank": 2}), ("layers", {"freeze_but_last": 1})):
        torch.manual_seed(0)
        model = Splade.from_base(folder / "base", dtype=torch.float64)
        given: dict[str, Any] = {"steps": 3, "batch_size": 4, "negatives": 1, "learning_rate": 0.01}
        config = Trainer.Config(output=str(folder / name), progress=False, timeout=1.0, **given, **choice)
        config.build(model, Examples(rows)).run()


def fail_third(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, failing the third time on rank 1, unless the launcher has started anew."""
    calls = 0

    def call(*arguments: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError("rank 1 has had enough")
        return original(*arguments, **settings)

    return call


def command(where: str, arguments: list[str]) -> int:
    if where == "batch":
        Collator.__call__ = fail_third(Collator.__call__)  # type: ignore[method-assign]
    else:
        TrainingStep.forward = fail_third(TrainingStep.forward)  # type: ignore[method-assign]
    return main(arguments)


if __name__ == "__main__":
    task, target = sys.argv[1], Path(sys.argv[2])
    if task == "fail":
        train(target / "fail", model=FailsOnRankOne())
    elif task == "nan":
        said = refused(target / "run", model=NoNumberOnRankOne(), batch_size=4, steps=6)
        (target / f"rank{os.environ['RANK']}.json").write_text(json.dumps(said))
    elif task == "parts":
        atexit.register(
            note_threads, target / f"threads{os.environ['RANK']}"
        )  # first, so that it is the last
        parts(target)
    elif task == "command":
        sys.exit(command(sys.argv[3], sys.argv[4:]))
    else:
        (target / f"rank{os.environ['RANK']}.json").write_text(json.dumps(agree(target)))
