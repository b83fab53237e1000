"""Run by `test_equivalence.py` under torchrun: one process with the whole batch against all ranks with a part each.

    torchrun --nproc_per_node N equivalence_worker.py FOLDER_OF_TINY_MODELS RESULT_FILE

Each rank first computes its share of the references alone, before there is a process group; then all compute their
parts of the same batches under DistributedDataParallel. Rank 0 writes, a case, the largest differences of loss,
gradients and weights after some steps, and between the gradients of the ranks; and what some steps give whose right
values are known.
"""

import copy
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sourcier.data.examples import Example
from sourcier.models import FAMILIES
from sourcier.models.encoder import SearchModel
from sourcier.models.representations import DenseRepresentation, Representation, TermWeightRepresentation
from sourcier.train.step import Batch, Collator, StepOutput, TrainingStep
from sourcier.train.verify import Course, compare, follow

WORDS = ["river", "spring", "well", "water", "ground", "stone", "lake", "rain", "cloud", "snow", "ice", "sea"]

SPARSE = ("splade", "sparse_embed")

#: Kinds whose buffers, poolers and checkpointing DistributedDataParallel could stumble over. (Hazards A9 and A10.)
KINDS = ("roberta", "xlm_roberta", "distilbert", "modernbert", "mpnet")


@dataclass(frozen=True)
class Case:
    family: str
    loss: str
    negatives: int
    flops: float = 0.0
    l1: float = 0.0
    chunk: int | None = None
    accumulated: bool = False
    kind: str = "bert"
    checkpointed: bool = False


def cases() -> Iterator[Case]:
    for family in FAMILIES:
        for loss, negatives in (
            ("contrastive", 0),
            ("contrastive", 1),
            ("contrastive", 2),
            ("symmetric", 1),
            ("kl", 2),
            ("margin_mse", 1),
        ):
            for chunk in (None, 4 if negatives else 2):
                for flops in (0.0, 0.1) if family in SPARSE else (0.0,):
                    yield Case(family, loss, negatives, flops, chunk=chunk)
        for loss, chunk in (("pairwise", None), ("kl", 3), ("margin_mse", None)):
            yield Case(family, loss, 1, chunk=chunk, accumulated=True)
    for family in SPARSE:
        for chunk in (None, 4):
            yield Case(family, "contrastive", 1, flops=0.1, l1=0.01, chunk=chunk)
    for family in ("dense", "splade"):  # one on each class of backbone
        for kind in ("bert", *KINDS):
            for checkpointed in (False, True):
                yield Case(family, "contrastive", 1, 0.1, kind=kind, checkpointed=checkpointed)


def examples_of_unequal_lengths(count: int, negatives: int) -> list[Example]:
    """The first and the last row, which two ranks hold, have the same positive."""

    def text(start: int, words: int) -> str:
        return " ".join(WORDS[(start * 5 + step * 7) % len(WORDS)] for step in range(words))

    return [
        Example(
            query=text(row, 1 + row % 3),
            positive=text(1, 3) if row == count - 1 else text(row + 1, 3 + row),
            negatives=tuple(text(row + 2 + number, 2 + 3 * number + row) for number in range(negatives)),
            scores=tuple(2.0 + 0.3 * row - number * (1.0 + 0.2 * row) for number in range(1 + negatives)),
        )
        for row in range(count)
    ]


def share(examples: list[Example], rank: int, world: int) -> list[Example]:
    """Contiguous and as unequal as can be: the first rank holds the rest of the division."""
    each = len(examples) // world
    first = len(examples) - each * (world - 1)
    start = 0 if rank == 0 else first + each * (rank - 1)
    return examples[start : start + (first if rank == 0 else each)]


class Models:
    """Tiny models, each loaded once and copied for each case."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._loaded: dict[tuple[str, str], SearchModel] = {}

    def __call__(self, case: Case) -> SearchModel:
        key = (case.family, case.kind)
        if key not in self._loaded:
            torch.manual_seed(0)
            self._loaded[key] = FAMILIES[case.family].from_base(self._base / case.kind).double().train()
        model = self._loaded[key]
        model = copy.deepcopy(model, {id(model.tokens): model.tokens})
        if case.checkpointed:
            model.checkpoint_activations()
        return model


class Accumulating:
    """Takes several batches for one step, with one reduction at the end."""

    def __init__(self, step: nn.Module) -> None:
        self.step = step

    def __call__(self, batches: Sequence[Batch], number: int) -> StepOutput:
        outputs = []
        for part, batch in enumerate(batches, start=1):
            last = part == len(batches)
            quiet = getattr(self.step, "no_sync", nullcontext)
            with nullcontext() if last else quiet():
                outputs.append(self.step(batch, number))
                loss = outputs[-1].loss / len(batches)
                if not last:
                    loss.backward()
        mean = sum(output.metrics["loss"] for output in outputs) / len(batches)
        return StepOutput(loss, {"loss": mean})


def run(step: Any, case: Case, model: SearchModel, batches: list[list[Example]]) -> Course:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    made = [Collator(model, case.negatives)(rows) for rows in batches]
    if case.accumulated:
        return follow(Accumulating(step), model, made, update, first=3)
    return follow(step, model, made[0], update, first=3)


def build_step(case: Case, model: SearchModel) -> TrainingStep:
    return TrainingStep.Config(
        loss=case.loss,  # type: ignore[arg-type]
        flops_query=case.flops,
        flops_document=2 * case.flops,
        l1_query=case.l1,
        l1_document=2 * case.l1,
        sparsity_warmup=5,
        chunk=case.chunk,
    ).build(model)


def rows_of(case: Case, world: int) -> list[Example]:
    """Of unequal shares; of equal ones where batches are accumulated, whose means are then means of as many rows."""
    return examples_of_unequal_lengths(4 * world if case.accumulated else 2 * world + 1, case.negatives)


def alone(case: Case, models: Models, world: int) -> Course:
    """One process, one batch."""
    model = models(case)
    return run(build_step(case, model), case, model, [rows_of(case, world)])


def together(case: Case, models: Models, rank: int, world: int) -> Course:
    """This rank's part of the batch, or of each half of it."""
    model, rows = models(case), rows_of(case, world)
    halves = [rows[: len(rows) // 2], rows[len(rows) // 2 :]] if case.accumulated else [rows]
    step = DistributedDataParallel(build_step(case, model))
    return run(step, case, model, [share(half, rank, world) for half in halves])


def spread(gradients: Sequence[Tensor]) -> float:
    """By how much the ranks' gradients differ. (Hazard A1.)"""
    own = torch.cat([gradient.flatten() for gradient in gradients])
    everywhere = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, own)
    return max((other - own).abs().max().item() for other in everywhere)


class Table(nn.Module):
    """Text "a" is row 0 of queries or of documents, "b" row 1, …"""

    default_temperature = 1 / 20

    def __init__(self, queries: Tensor, documents: Tensor, kind: type[Representation]) -> None:
        super().__init__()
        self.queries, self.documents = nn.Parameter(queries), nn.Parameter(documents)
        self.kind = kind

    def tokenize(self, texts: list[str], side: str) -> dict[str, Tensor]:
        return {"rows": torch.tensor([ord(text) - ord("a") for text in texts])}

    def forward(self, features: dict[str, Tensor], side: str) -> Representation:
        table = self.queries if side == "query" else self.documents
        return self.kind(table[features["rows"]])


def one_hot_loss(negatives: int, rank: int, world: int) -> float:
    """Two queries a rank, each on its own one-hot positive, all negatives on others: the loss. (Hazard A5.)"""
    rows = 2 * world
    examples = [
        Example(
            query=chr(97 + row),
            positive=chr(97 + row),
            negatives=tuple(chr(97 + rows + row * negatives + number) for number in range(negatives)),
        )
        for row in range(rows)
    ]
    eye = torch.eye(26, dtype=torch.float64)
    model = Table(eye, eye.clone(), DenseRepresentation)
    step = DistributedDataParallel(TrainingStep.Config().build(model))  # type: ignore[arg-type]
    output = step(Collator(model, negatives)(share(examples, rank, world)))  # type: ignore[arg-type]
    output.loss.backward()
    return float(output.metrics["loss"])


def flops_of_two_ranks(rank: int, world: int) -> dict[str, Any]:
    """Rank 0 has the queries [2, 0, 0, 0] twice, each other rank [0, 2, 0, 0]; all share one document. (Hazard B1.)"""
    queries = torch.zeros(2 * world, 4, dtype=torch.float64)
    queries[:2, 0] = queries[2:, 1] = 2.0
    model = Table(queries, torch.tensor([[0, 0, 3.0, 0]], dtype=torch.float64), TermWeightRepresentation)
    config = TrainingStep.Config(temperature=1.0, flops_query=1.0, flops_document=0.0)
    step = DistributedDataParallel(config.build(model))  # type: ignore[arg-type]
    examples = [Example(query=chr(97 + row), positive="a") for row in range(2 * world)]
    output = step(Collator(model)(share(examples, rank, world)))  # type: ignore[arg-type]
    output.loss.backward()
    assert model.queries.grad is not None
    assert model.documents.grad is not None
    return {
        "value": float(output.metrics["flops_query"]),
        "gradient": model.queries.grad[queries > 0].tolist(),
        "document gradient": model.documents.grad.abs().max().item(),
    }


def reductions_of_a_step(models: Models, rank: int, world: int) -> list[int]:
    """How often gradients are reduced in each of two steps, the ranks having 5 and 3 chunks a side. (Hazard A8.)"""
    case = Case("dense", "contrastive", 0, chunk=1)
    model = models(case)
    step = DistributedDataParallel(build_step(case, model), bucket_cap_mb=1000)
    found: list[int] = []

    def count(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        found[-1] += 1
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    step.register_comm_hook(None, count)
    rows = examples_of_unequal_lengths(5 + 3 * (world - 1), 0)
    for number in range(2):
        found.append(0)
        step(Collator(model, 0)(share(rows, rank, world)), number).loss.backward()
    return found


def main(base: str, result: str) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    models = Models(Path(base))
    every = list(cases())
    own = {number: alone(every[number], models, world) for number in range(rank, len(every), world)}

    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    shared: list[Any] = [None] * world
    dist.all_gather_object(shared, own)
    references = {number: course for part in shared for number, course in part.items()}
    results = []
    for number, case in enumerate(every):
        reference, course = references[number], together(case, models, rank, world)
        found = compare(reference, course)
        ranks = spread(list(course.gradients.values()))
        results.append({"case": asdict(case), **asdict(found), "ranks": ranks})
    right = {
        "one hot": [one_hot_loss(negatives, rank, world) for negatives in (0, 1, 2)],
        "expected": [math.log1p((2 * world * (1 + n) - 1) * math.exp(-20)) for n in (0, 1, 2)],
        "flops": flops_of_two_ranks(rank, world),
        "reductions": reductions_of_a_step(models, rank, world),
    }
    if rank == 0:
        Path(result).write_text(json.dumps({"cases": results, "right": right}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
