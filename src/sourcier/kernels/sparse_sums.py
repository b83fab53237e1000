"""The backward product of every kernel here: a few rows of a table, weighted and summed into a few targets.

It is the product of a sparse matrix with a dense one, through `embedding_bag`: the one form of it that PyTorch runs
in parallel, in the same order each time, on every device.

Shapes: P pairs (the entries of the sparse matrix), S rows of the table, D dimensions, T targets.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def weighted_sums(table: Tensor, sources: Tensor, targets: Tensor, values: Tensor, count: int) -> Tensor:
    """The sum of `values[p] * table[sources[p]]` over the pairs p of each target, at least in float32. [count, D]

    `table` [S, D]; `sources`, `targets` [P] integers; `values` [P]. A target without a pair gets zeros.
    """
    dtype = torch.promote_types(torch.promote_types(table.dtype, values.dtype), torch.float32)
    targets, order = targets.to(torch.int32).sort(stable=True)
    every = torch.arange(count, dtype=torch.int32, device=targets.device)
    return embedding_bag(
        sources.to(torch.int32)[order],
        table.to(dtype),
        torch.searchsorted(targets, every, out_int32=True),
        mode="sum",
        per_sample_weights=values.to(dtype)[order],
    )
