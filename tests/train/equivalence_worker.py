"""Run by `test_equivalence.py` under torchrun: one process with the whole batch against all ranks with a part each.

    torchrun --nproc_per_node N equivalence_worker.py FOLDER_OF_TINY_MODELS RESULT_FILE

Each rank first computes the reference alone, before there is a process group, then its part of the same batch under
DistributedDataParallel. Rank 0 writes, a case, the largest difference of loss and gradients, and the gradient's norm.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sourcier.data.examples import Example
from sourcier.models import FAMILIES
from sourcier.models.encoder import SearchModel
from sourcier.train.step import Collator, TrainingStep

WORDS = ["river", "spring", "well", "water", "ground", "stone", "lake", "rain", "cloud", "snow", "ice", "sea"]


@dataclass(frozen=True)
class Case:
    family: str
    loss: str
    negatives: int
    flops: float
    kind: str = "bert"
    checkpointed: bool = False


#: Steps of a case: what DistributedDataParallel waits for in vain, it tells at the second.
STEPS = 2

#: Kinds whose buffers and poolers DistributedDataParallel could stumble over. (Hazards A9 and A10.)
KINDS = ("roberta", "xlm_roberta", "distilbert", "modernbert")

CASES = [
    Case(family, loss, negatives, flops)
    for family in ("dense", "splade", "sparse_embed", "colbert")
    for loss, negatives in (("contrastive", 0), ("contrastive", 2), ("pairwise", 1))
    for flops in ((0.0, 0.1) if family in ("splade", "sparse_embed") else (0.0,))
] + [
    Case(family, "contrastive", 1, 0.0, kind, checkpointed)
    for family in ("dense", "splade")  # one on each class of backbone
    for kind in ("bert", *KINDS)
    for checkpointed in (False, True)
    if kind != "bert" or checkpointed
]


def examples_of_unequal_lengths(count: int, negatives: int) -> list[Example]:
    def text(start: int, words: int) -> str:
        return " ".join(WORDS[(start * 5 + step * 7) % len(WORDS)] for step in range(words))

    return [
        Example(
            query=text(row, 1 + row % 3),
            positive=text(row + 1, 3 + row),
            negatives=tuple(text(row + 2 + number, 2 + 3 * number + row) for number in range(negatives)),
        )
        for row in range(count)
    ]


def share(examples: list[Example], rank: int, world: int) -> list[Example]:
    """Contiguous and as unequal as can be: the first rank holds the rest of the division."""
    each = len(examples) // world
    first = len(examples) - each * (world - 1)
    start = 0 if rank == 0 else first + each * (rank - 1)
    return examples[start : start + (first if rank == 0 else each)]


def build(case: Case, base: str) -> SearchModel:
    torch.manual_seed(0)
    model = FAMILIES[case.family].from_base(Path(base) / case.kind).double().train()
    if case.checkpointed:
        model.checkpoint_activations()
    return model


def run(
    step: torch.nn.Module, case: Case, model: SearchModel, examples: list[Example]
) -> tuple[float, list[torch.Tensor]]:
    for _ in range(STEPS):
        model.zero_grad()
        output = step(Collator(model, case.negatives)(examples), 3)
        output.loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    assert all(gradient is not None for gradient in gradients), f"{case}: a parameter has no gradient"
    return output.metrics["loss"].item(), [gradient.clone() for gradient in gradients if gradient is not None]


def build_step(case: Case, model: SearchModel) -> TrainingStep:
    return TrainingStep.Config(
        loss=case.loss,  # type: ignore[arg-type]
        flops_query=case.flops,
        flops_document=2 * case.flops,
        sparsity_warmup=5,
    ).build(model)


def main(base: str, result: str) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rows = 2 * world + 1
    references = []
    for case in CASES:
        model = build(case, base)
        references.append(
            run(build_step(case, model), case, model, examples_of_unequal_lengths(rows, case.negatives))
        )

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = []
    for case, (loss, gradients) in zip(CASES, references, strict=True):
        model = build(case, base)
        step = DistributedDataParallel(build_step(case, model))
        examples = share(examples_of_unequal_lengths(rows, case.negatives), rank, world)
        own_loss, own_gradients = run(step, case, model, examples)
        results.append(
            {
                **asdict(case),
                "loss": abs(loss - own_loss),
                "gradient": max(
                    (a - b).abs().max().item() for a, b in zip(gradients, own_gradients, strict=True)
                ),
                "norm": torch.stack([gradient.norm() for gradient in gradients]).norm().item(),
            }
        )
    if rank == 0:
        Path(result).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
