"""What crosses ranks in a training step, with gradients.

The global batch is the unit: rank r holds rows of it, the loss is defined on all of it, and the sum of the ranks'
losses is the loss of the batch. DistributedDataParallel averages gradients over ranks, where a sum is meant: that
factor stands in `sum_under_ddp` and nowhere else.

Without a process group, or with one process, each function returns its input.

Shapes: B rows of this rank (may differ between ranks), G rows of all ranks.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from sourcier.models.representations import Representation, pad_axis

R = TypeVar("R", bound=Representation)


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process among them, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def sum_under_ddp(loss: Tensor) -> Tensor:
    """This rank's part of the loss, scaled so that DDP's mean over ranks is the sum over ranks."""
    return loss * world_size()


def row_counts(rows: int, device: torch.device) -> list[int]:
    """How many rows each rank holds, in the order of ranks."""
    if world_size() == 1:
        return [rows]
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([rows], dtype=torch.int64, device=device))
    return [int(count) for count in counts]


def gather(representation: R, counts: list[int]) -> R:
    """The rows of all ranks in the order of ranks, gradients flowing back to the rank that made them. G rows"""
    if world_size() == 1:
        return representation
    device = next(iter(representation.tensors().values())).device
    longest = max(row_counts(representation.length, device))
    padded = representation.pad(longest).tensors()
    return representation.replace(**{name: gather_rows(value, counts) for name, value in padded.items()})


def gather_rows(tensor: Tensor, counts: list[int]) -> Tensor:
    """`tensor` [B, ...] of all ranks, concatenated in the order of ranks. [G, ...]"""
    if world_size() == 1:
        return tensor
    padded = pad_axis(tensor, 0, max(counts))
    if tensor.is_floating_point():
        stacked: Tensor = _AllGather.apply(padded)
    else:
        stacked = _all_gather(padded)
    return torch.cat([part[:count] for part, count in zip(stacked.unbind(), counts, strict=True)])


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every rank's `tensor`, with gradients."""
    if world_size() == 1:
        return tensor
    summed: Tensor = _AllReduce.apply(tensor)
    return summed


def _all_gather(tensor: Tensor) -> Tensor:
    """[world, ...]; bool travels as bytes, which every backend carries."""
    sent = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
    parts = [torch.empty_like(sent) for _ in range(world_size())]
    dist.all_gather(parts, sent.contiguous())
    return torch.stack(parts).to(tensor.dtype)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _all_gather(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Each rank's loss depends on every rank's rows: their gradients are summed, and each keeps its own."""
        summed = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed[rank()]


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed
