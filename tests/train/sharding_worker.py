"""Run by `test_sharding.py` under torchrun: FSDP2 on all ranks against one process.

    torchrun --nproc_per_node N sharding_worker.py FOLDER_OF_TINY_MODELS OUTPUT

Rank 0 writes, a case, by how much the sharded step differs from that of one process; then the trainer runs sharded, and
a run of it is stopped and resumed.
"""

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from equivalence_worker import Case, Models, alone, build_step, rows_of, share
from torch import nn

from sourcier.data.collections import read_beir
from sourcier.data.examples import Examples
from sourcier.models import FAMILIES
from sourcier.models.dense import Dense
from sourcier.train.processes import leave, prepare, start
from sourcier.train.sharding import PlainModel, is_sharded
from sourcier.train.step import Collator
from sourcier.train.trainer import Trainer
from sourcier.train.verify import Course, compare, follow

CASES = [
    *[Case(family, "contrastive", 1, 0.1, chunk=chunk) for family in FAMILIES for chunk in (None, 4)],
    # Chunks of which a rank has fewer texts than another one has chunks.
    Case("dense", "kl", 2, chunk=1),
    Case("splade", "contrastive", 1, 0.1, chunk=4, checkpointed=True),
    Case("dense", "contrastive", 1, kind="mpnet", checkpointed=True),
]


def sharded(case: Case, models: Models, rank: int, world: int, folder: Path) -> tuple[Course, list[str]]:
    """This rank's part of the steps; the model is saved behind them."""
    accelerator = start(precision="fp32", timeout=2, sharded=True)
    model = models(case)
    plain = PlainModel(accelerator, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step, optimizer = prepare(accelerator, build_step(case, model), optimizer)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    batch = Collator(model, case.negatives)(share(rows_of(case, world), rank, world))
    course = follow(step, model, batch, update, first=3)
    whole = plain()
    if accelerator.is_main_process:
        whole.save_pretrained(folder)
    return course, [type(module).__name__ for module in step.modules() if is_sharded(module)]


def saved_differences(course: Course, folder: Path, family: str) -> float:
    """How far the weights of the saved folder are from those that training ended with."""
    loaded: nn.Module = FAMILIES[family].from_pretrained(folder)
    weights = dict(loaded.named_parameters())
    assert weights.keys() == course.weights.keys()
    return max((weights[name] - value).abs().max().item() for name, value in course.weights.items())


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


def train(folder: Path, run: Path, *, stop: int | None = None, resume: bool = False, **settings: Any) -> None:
    """Six steps of a dense model with dropout off, evaluated and saved at the third and the last."""
    model = Dense.from_base(folder / "bert", dtype=torch.float64)
    config = Trainer.Config(
        output=str(run),
        steps=6,
        batch_size=5,
        accumulation=2,
        learning_rate=1e-3,
        eval_every=3,
        timeout=2.0,
        progress=False,
        **settings,
    )
    dev = read_beir(folder / "beir", "train")
    trainer = config.build(model, Examples.from_beir(folder / "beir"), dev)
    if stop is not None:
        update = trainer._update

        def limited(step: int) -> None:
            if step > stop:
                raise Stopped
            update(step)

        trainer._update = limited  # type: ignore[method-assign]
    trainer.run(resume=resume)


def main(base: str, output: str) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    models, folder = Models(Path(base)), Path(output)
    references = [alone(case, models, world) for case in CASES]
    results: list[dict[str, Any]] = []
    for number, (case, reference) in enumerate(zip(CASES, references, strict=True)):
        saved = folder / f"case{number}"
        course, wrapped = sharded(case, models, rank, world, saved)
        found = {"case": asdict(case), **asdict(compare(reference, course)), "wrapped": wrapped}
        if rank == 0:
            results.append({**found, "saved": saved_differences(course, saved, case.family)})
    if rank == 0:
        (folder / "cases.json").write_text(json.dumps(results))
    train(Path(base), folder / "straight", sharded=True)
    with suppress(Stopped):
        train(Path(base), folder / "stopped", stop=4, sharded=True)
    train(Path(base), folder / "stopped", resume=True, sharded=True)
    train(Path(base), folder / "adapted", sharded=True, lora_rank=2)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
