"""Texts of a batch without their padding: one row of tokens, in which each text attends to itself alone.

An encoder then computes on the tokens that there are. On a CPU, where a batch costs what its tokens cost, this takes
the padding's share off every layer; on accelerators, where many small attentions cost more than some padding, batches
stay padded.

Shapes: B texts, L padded tokens, T tokens that are no padding, A heads, H hidden size, D dimensions of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sourcier.kernels.packed_attention import packed_attention

#: Kinds whose tokens know their place by an id alone and attend to all of their text.
KINDS = frozenset({"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"})

#: The name of our attention among those of transformers.
ATTENTION = "sourcier"


@dataclass(frozen=True)
class Packing:
    """Which tokens of a padded batch are there."""

    shape: tuple[int, int]  # B, L
    places: Tensor  # [T] the number of each token in [0, B * L)
    lengths: list[int]  # [B]

    @classmethod
    def of(cls, mask: Tensor) -> Self:
        """The packing of a batch with this `mask` [B, L], true at tokens."""
        mask = mask.bool()
        rows, columns = mask.shape
        return cls((rows, columns), mask.flatten().nonzero().squeeze(1), mask.sum(dim=1).tolist())

    @property
    def positions(self) -> Tensor:
        """The column of each token in the padded batch. [1, T]"""
        return (self.places % self.shape[1])[None]

    def pack(self, padded: Tensor) -> Tensor:
        """[1, T] of [B, L]"""
        return padded.flatten()[self.places][None]

    def unpack(self, packed: Tensor) -> Tensor:
        """[B, L, H] of [1, T, H], with zeros at padding."""
        rows, columns = self.shape
        padded = packed.new_zeros(rows * columns, packed.shape[-1]).index_copy(0, self.places, packed[0])
        return padded.view(rows, columns, -1)


def install(model: PreTrainedModel) -> bool:
    """Has a model attend to packed texts where it is asked to, if it is of a kind that can; else says False."""
    if model.config.model_type not in KINDS or model.config._attn_implementation not in ("sdpa", ATTENTION):
        return False
    if getattr(model.config, "is_decoder", False):
        return False
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
    return True


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    text_lengths: list[int] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer, with [1, A, T, D] for packed texts; others go on to its own form."""
    if text_lengths is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return packed_attention(queries, keys, values, text_lengths, scale=scale, dropout=dropout)[None], None
