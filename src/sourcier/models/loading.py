"""Whether a configuration and the weights beside it describe the same encoder.

transformers fills what is missing with random numbers and drops what has no place, neither with an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from sourcier.types import SourcierError

#: Tables that earlier releases stored with the weights, and that models work out by themselves.
_WORKED_OUT = ("position_ids", "token_type_ids", "inv_freq", "masked_bias")


def check_encoder(source: str, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Refuses weights of other shapes than the model's encoder, those that lack some of it, or hold more of it.

    `info` is what `from_pretrained` gives with `output_loading_info`. Heads and poolers may be left over.
    """
    for name, found, wanted in sorted(info["mismatched_keys"]):
        raise SourcierError(
            f"{source}: weight '{name}' has the shape {tuple(found)}, and config.json says {tuple(wanted)}: "
            "give the config.json that belongs to the weights"
        )
    # Under the names that they have in the encoder.
    asked = {_inner(model, name): name for name in model.state_dict() if _is_of_encoder(model, name)}
    missing = {_inner(model, name): name for name in info["missing_keys"] if _is_of_encoder(model, name)}
    if missing:
        first = min(missing, key=_order)
        raise SourcierError(
            f"{source}: weight '{missing[first]}' is missing ({_counts(first, set(asked), asked.keys() - missing)}): "
            "restore it, or choose another base"
        )
    over = {_inner(model, name): name for name in info["unexpected_keys"] if _would_change_it(model, name)}
    if over:
        first = min(over, key=_order)
        raise SourcierError(
            f"{source}: weight '{over[first]}' has no place in the model "
            f"({_counts(first, set(asked), asked.keys() | over)}): give the config.json that belongs to the weights"
        )


def missing_of_head(model: PreTrainedModel, info: Mapping[str, Any]) -> list[str]:
    """The weights of the model that are not its encoder's and were not there."""
    return sorted(name for name in info["missing_keys"] if not _is_of_encoder(model, name))


def _is_of_encoder(model: PreTrainedModel, name: str) -> bool:
    return model.base_model is model or name.startswith(f"{model.base_model_prefix}.")


def _inner(model: PreTrainedModel, name: str) -> str:
    """A weight's name in the encoder alone: files of models with a head put a prefix before it."""
    return name.removeprefix(f"{model.base_model_prefix}.")


def _would_change_it(model: PreTrainedModel, name: str) -> bool:
    """Whether a weight that found no place stands within a part of the encoder, unlike heads and poolers beside it."""
    if name.rpartition(".")[2] in _WORKED_OUT:
        return False
    part = _inner(model, name).partition(".")[0]
    return part in dict(model.base_model.named_children())


def _counts(first: str, asked: set[str], held: set[str]) -> str:
    """What the configuration asks for and what there is: layers where these differ, or else weights."""
    stack = re.match(r"(.+?\.)\d+\.", first)
    if stack:
        layers = [len({_layer(name, stack[1]) for name in names} - {None}) for names in (asked, held)]
        if layers[0] != layers[1]:
            return f"layers: {layers[0]} in config.json, {layers[1]} in the weights"
    return f"weights of the encoder: {len(asked)} by config.json, {len(held)} there"


def _layer(name: str, stack: str) -> int | None:
    """The number of the layer of a stack that a weight belongs to."""
    number = name.removeprefix(stack).partition(".")[0]
    return int(number) if name.startswith(stack) and number.isdigit() else None


def _order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
