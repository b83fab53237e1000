"""What each process that measures training steps does, whichever system it runs: warm up, step, and say what it took.

    python benchmarks/steps/SYSTEM.py TASK.json          prints one JSON object on its last line

It imports nothing but PyTorch, since each system lives in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

#: A row: query, positive and, in some tasks, one negative.
Row = Sequence[str]
Step = Callable[[Sequence[Row]], float]

LEARNING_RATE, WEIGHT_DECAY, CLIP = 2e-5, 0.01, 1.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained on what, and how."""

    family: str
    base: str
    batches: list[list[Row]]
    query_length: int = 32
    document_length: int = 180
    dropout: float = 0.1
    flops: float = 1e-3
    chunk: int | None = None
    warmup: int = 1
    threads: int = 2
    profile: bool = False

    @classmethod
    def read(cls) -> Task:
        return cls(**json.loads(Path(sys.argv[1]).read_text()))


def measure(system: str, task: Task, step: Step) -> None:
    """Runs the batches, the first `warmup` of them untimed, and prints seconds, peak memory and losses."""
    seconds, processor, losses = [], [], []
    for batch in task.batches:
        started, worked = time.perf_counter(), time.process_time()
        losses.append(step(batch))
        processor.append(time.process_time() - worked)
        seconds.append(time.perf_counter() - started)
    found: dict[str, Any] = {
        "system": system,
        "seconds": seconds[task.warmup :],
        "processor": processor[task.warmup :],
        "peak": peak(),
        "losses": losses,
    }
    if task.profile:
        from shares import shares

        found["profile"] = shares(lambda: step(task.batches[-1]))
    print(json.dumps(found))


def peak() -> float:
    """The largest resident memory of this process so far, libraries and all, in MB.

    VmHWM, unlike `ru_maxrss`, starts at zero in a process and not at the size of its parent.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def prepare(model: nn.Module, task: Task) -> torch.optim.Optimizer:
    """A model in training mode with the task's dropout everywhere, and its optimizer."""
    torch.set_num_threads(task.threads)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = task.dropout
    model.train()
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def update(model: nn.Module, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Backward, clipping and the optimizer's step, as both trainers do it."""
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())
