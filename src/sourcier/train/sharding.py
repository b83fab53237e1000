"""Weights, gradients and the optimizer's memory shared out over the processes (FSDP2), and the way back to whole ones.

What gathers a tensor is a collective: all processes have to call it, in the same order.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import Tensor, nn

from sourcier.models.encoder import SearchModel
from sourcier.types import SourcierError


def sharding_plugin(wanted: bool) -> FullyShardedDataParallelPlugin | None:
    """What tells accelerate to shard, where the settings or `accelerate launch --use_fsdp` ask for it."""
    by_launcher = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if not wanted and not by_launcher:
        return None
    if by_launcher and os.environ.get("FSDP_VERSION", "2") != "2":
        raise SourcierError("accelerate launch asks for the first FSDP: give it --fsdp_version 2")
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        # Each process loads the model whole and keeps its part: what arrives empty would lose its tied weights.
        cpu_ram_efficient_loading=False,
        activation_checkpointing=False,  # `gradient_checkpointing` does it, without renaming weights
    )


def shard_on_cpu(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | None) -> None:
    """Has accelerate shard on CPUs, which PyTorch does as on accelerators."""
    if plugin is not None and accelerator.distributed_type == DistributedType.MULTI_CPU:
        accelerator.state.fsdp_plugin = plugin
        # Both, as accelerate itself sets them: the first is read from the second whenever it is asked for anew.
        accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP


def shards(accelerator: Accelerator) -> bool:
    """Whether what accelerate prepares is shared out over the processes."""
    return accelerator.distributed_type == DistributedType.FSDP


def plan_sharding(accelerator: Accelerator, model: SearchModel) -> None:
    """Has each layer of the backbone gathered when it computes.

    All else, above all embeddings that the head may share, is gathered once a step by the module that holds the model,
    so that a family may read any of it.
    """
    plugin = accelerator.state.fsdp_plugin
    plugin.transformer_cls_names_to_wrap = sorted({type(layer).__name__ for layer in model.backbone.layers})
    # Weights are gathered as they are: in half precision the scores and the loss would be too. See `autocast`.
    plugin.mixed_precision_policy = None


def autocast(accelerator: Accelerator, module: nn.Module) -> None:
    """Has a sharded module compute in the precision that accelerate was given, as it has others do by itself."""
    if accelerator.mixed_precision != "no":
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[accelerator.mixed_precision]
        module.forward = torch.autocast(accelerator.device.type, dtype)(module.forward)


def is_sharded(module: nn.Module) -> bool:
    """Whether a module's weights are gathered when it computes, which all processes then have to do together."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor of which this process may hold a part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """This process' part of a whole `value`, as it holds one of `like`."""
    if not hasattr(like, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process has the same value: none sends it to the others.
    return distribute_tensor(
        value.to(like.device), like.device_mesh, like.placements, src_data_rank=None  # type: ignore[attr-defined]
    )  # fmt: skip


def whole_tree(values: Any) -> Any:
    """Dictionaries and lists, such as the state of an optimizer, with whole tensors in them."""
    if isinstance(values, Tensor):
        return whole(values)
    if isinstance(values, Mapping):
        return {name: whole_tree(value) for name, value in values.items()}
    return [whole_tree(value) for value in values] if isinstance(values, list) else values


class PlainModel:
    """A model that may be sharded, as the main process can evaluate and save it alone.

    To be made before the model is sharded.
    """

    def __init__(self, accelerator: Accelerator, model: SearchModel) -> None:
        self._accelerator = accelerator
        self._model = model
        self._empty = _without_weights(model) if shards(accelerator) else None

    def __call__(self) -> SearchModel:
        """The model itself, or a copy with whole weights: on the main process, on its device. All have to call it."""
        if self._empty is None:
            return self._model
        known: dict[int, Any] = {}
        for empty, own in zip(self._empty.parameters(), self._model.parameters(), strict=True):
            value = whole(own.detach())
            if self._accelerator.is_main_process:
                known[id(empty)] = nn.Parameter(value, own.requires_grad)
        return copy.deepcopy(self._empty, known) if self._accelerator.is_main_process else self._empty


def _without_weights(model: SearchModel) -> SearchModel:
    """A copy whose parameters have shapes and ties, and no memory."""
    known: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, known)
