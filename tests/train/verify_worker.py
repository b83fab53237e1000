"""Run by `test_verify.py` under torchrun: `verify` on every rank, also with a fault that loses gradients.

torchrun --nproc_per_node N verify_worker.py BASE OUTPUT none|gather|sharded
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from sourcier.data.examples import Example, Examples
from sourcier.models.splade import Splade
from sourcier.train import objectives
from sourcier.train.processes import leave
from sourcier.train.settings import Settings
from sourcier.train.step import TrainingStep
from sourcier.train.verify import Verdict, verify


def rows() -> Examples:
    """Nine rows of unequal lengths that may share a batch."""
    return Examples(
        [
            Example(f"find {number}", f"water {number} " + "river " * number, (f"rain {number}",))
            for number in range(9)
        ]
    )


def verdict(base: str, *, sharded: bool) -> Verdict:
    step = TrainingStep.Config(flops_document=0.1, sparsity_warmup=100, chunk=8)
    config = Settings(output="", negatives=1, learning_rate=1e-3, sharded=sharded, step=step)
    return verify(config, lambda: Splade.from_base(base), rows())


def main(base: str, output: str, fault: str) -> None:
    if fault == "gather":  # what other ranks encoded carries no gradient (hazard A6)
        gather = objectives.gather
        objectives.gather = lambda rows, counts: gather(  # type: ignore[type-var]
            rows.detach() if dist.is_initialized() else rows, counts
        )
    found = verdict(base, sharded=fault == "sharded")
    if os.environ["RANK"] == "0":
        told = {"line": str(found), "holds": found.holds, "different": found.worst.different}
        Path(output).write_text(json.dumps(told))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
