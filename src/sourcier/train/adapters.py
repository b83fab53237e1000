"""Training a part of a model: low-rank adapters beside its linear layers (LoRA, Hu et al. 2021), or its last layers.

What is frozen gets no gradient, so it is no part of what DistributedDataParallel, the optimizer and a run's state see.
The heads, which the base does not have or which make the vectors, are always trained.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from sourcier.models.encoder import SearchModel
from sourcier.train.settings import Settings
from sourcier.types import SourcierError


def adapt(model: SearchModel, settings: Settings) -> list[nn.Parameter]:
    """Makes that part of the model trainable which the settings name; gives what was frozen for it."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.lora_rank is not None:
        add_adapters(
            model,
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            targets=settings.lora_targets,
            seed=settings.seed,
        )
    if settings.freeze_but_last is not None:
        freeze_but_last(model, settings.freeze_but_last)
    return [parameter for parameter in learning if not parameter.requires_grad]


def release(model: SearchModel, frozen: Iterable[nn.Parameter]) -> None:
    """Makes the model as any other again: without adapters, whose work is added to it, and with nothing frozen."""
    merge(model)
    for parameter in frozen:
        parameter.requires_grad_(True)


def add_adapters(model: SearchModel, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Freezes the backbone and puts adapters beside its linear layers, or beside those named.

    A name stands for every layer that ends with it. The head of a masked language model goes on learning, but not the
    embeddings that its decoder may share.
    """
    backbone = model.backbone.model
    encoder = set(backbone.base_model.modules())
    linear = [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and module in encoder
    ]
    chosen = [name for name in linear if not targets or name.endswith(tuple(targets))]
    for target in targets:
        if not any(name.endswith(target) for name in linear):
            raise SourcierError(f"lora_targets={target} is no linear layer: they end in {_endings(linear)}")
    if not chosen:
        raise SourcierError(
            f"'{backbone.config.model_type}' has no linear layers to adapt: leave out lora_rank"
        )
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=chosen, bias="none")  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, backbone)
    inside = {id(parameter) for parameter in backbone.base_model.parameters()}
    for parameter in backbone.parameters():  # what is left is the head
        if id(parameter) not in inside:
            parameter.requires_grad_(True)


def freeze_but_last(model: SearchModel, layers: int) -> None:
    """Freezes the embeddings and all but the last `layers` of the backbone; what follows them goes on learning."""
    encoder, stack = model.backbone.model.base_model, model.backbone.layers
    if layers > len(stack):
        raise SourcierError(f"freeze_but_last={layers}: the backbone has {len(stack)} layers")
    if not len(stack):
        raise SourcierError(
            f"'{model.backbone.config.model_type}' has no list of layers: leave out freeze_but_last"
        )
    first = next(stack[0].parameters())
    for parameter in encoder.parameters():  # the embeddings come before the layers
        if parameter is first:
            break
        parameter.requires_grad_(False)
    for layer in list(stack)[: len(stack) - layers]:
        layer.requires_grad_(False)


def merged_copy(model: SearchModel) -> SearchModel:
    """The model as any other, on the CPU: its adapters added to what they stand beside. Itself, where it has none."""
    if not any(_adapted(model)):
        return model
    tensors = [*model.parameters(), *model.buffers()]
    # What the copy finds here it takes instead of copying: an accelerator need not hold the model twice.
    known = {id(tensor): _on_cpu(tensor) for tensor in tensors}
    merged = copy.deepcopy(model, known)
    merge(merged)
    return merged


def merge(model: SearchModel) -> None:
    """Adds adapters to the layers that they stand beside, which then stand alone again."""
    adapted = list(_adapted(model))
    for name, layer in adapted:
        layer.merge()
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.get_base_layer())
    if adapted:
        del model.backbone.model.peft_config  # which transformers would save


def _adapted(model: nn.Module) -> Iterator[tuple[str, BaseTunerLayer]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer))


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach().cpu().clone()
    return nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value


def _endings(names: Sequence[str]) -> str:
    return ", ".join(sorted({name.rsplit(".", 1)[-1] for name in names})) or "nothing"
