"""Where the time of one training step goes, from PyTorch's profiler."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

#: A part, and names of which one stands in an operation's own name or in that of one that it is part of. What comes
#: first here wins, so that a product inside an attention counts as attention.
PARTS = (
    ("optimizer and clipping", ("Optimizer.", "aten::_foreach")),
    ("vocabulary or MaxSim products", ("_BestProducts", "BestProducts")),
    ("attention", ("_PackedAttention", "scaled_dot_product", "ScaledDotProduct")),
    ("term vectors' products", ("_PairProducts",)),
    ("linear layers", ("addmm", "Addmm", "aten::mm", "MmBackward", "aten::linear")),
    ("batched products", ("aten::bmm", "BmmBackward")),
    ("layer norm", ("layer_norm", "LayerNorm")),
    ("GELU", ("gelu", "Gelu")),
    ("dropout", ("dropout", "bernoulli")),
    ("embedding tables", ("embedding", "Embedding")),
)
REST = "the rest"


def shares(step: Callable[[], Any]) -> dict[str, Any]:
    """Each part's share of a step's time, and the step's rate as a share of that of one large matrix product."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    times: Counter[str] = Counter()
    for event in profiler.events():
        times[_part(event)] += event.self_cpu_time_total
    total = sum(times.values())
    with FlopCounterMode(display=False) as counter:
        step()
    seconds = min(_seconds(step) for _ in range(2))
    rate, possible = counter.get_total_flops() / seconds / 1e9, _matrix_rate()
    return {
        "shares": {part: round(spent / total, 3) for part, spent in times.most_common()},
        "gflops": round(rate, 1),
        "matrix_gflops": round(possible, 1),
        "of_matrix_rate": round(rate / possible, 2),
    }


def _part(event: FunctionEvent) -> str:
    names, above = [event.name], event.cpu_parent
    while above is not None:
        names.append(above.name)
        above = above.cpu_parent
    for part, known in PARTS:
        if any(word in name for name in names for word in known):
            return part
    return REST


def _matrix_rate(side: int = 2048) -> float:
    """Billions of operations a second of one large float32 product."""
    square = torch.randn(side, side)
    square @ square
    return 2 * side**3 / min(_seconds(lambda: square @ square) for _ in range(5)) / 1e9


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
