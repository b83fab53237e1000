"""One vector a text: token vectors pooled to one, projected and normalised on request.

Shapes: B texts of the batch, L padded tokens, H hidden size, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from sourcier.models.backbone import Backbone
from sourcier.models.encoder import EncoderConfig, SearchModel, text_mask
from sourcier.models.representations import DenseRepresentation
from sourcier.models.tokens import Features
from sourcier.types import Side

Pooling = Literal["mean", "cls", "last"]


class Dense(SearchModel):
    """Single vectors, compared by cosine or dot product."""

    @dataclass(kw_only=True)
    class Config(EncoderConfig):
        pooling: Pooling | None = field(
            default=None,
            metadata={"help": "mean, cls or last token (default: last for decoders, else mean)"},
        )
        dimension: int | None = field(
            default=None,
            metadata={"help": "size of a projection (default: none)"},
        )
        similarity: Literal["cosine", "dot"] = field(
            default="cosine", metadata={"help": "cosine normalises the vectors"}
        )

    family: ClassVar[str] = "dense"

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
        super().__init__(backbone, tokenizer, config)
        if config.pooling is None:
            self.config = replace(self.config, pooling="last" if backbone.is_causal else "mean")
        self.projection: nn.Linear | None = None
        if config.dimension is not None:
            self.projection = orthogonal_projection(backbone, config.dimension)

    @property
    def default_temperature(self) -> float:
        return 0.05 if self.config.similarity == "cosine" else 1.0

    def forward(self, features: Features, side: Side) -> DenseRepresentation:
        vectors = pool(self.backbone.hidden(features), text_mask(features), self.config.pooling)
        if self.projection is not None:
            vectors = self.projection(vectors)
        if self.config.similarity == "cosine":
            vectors = nn.functional.normalize(vectors, dim=-1)
        return DenseRepresentation(vectors)


def pool(hidden: Tensor, mask: Tensor, how: Pooling) -> Tensor:
    """One vector a text; zeros where a text has no token. What stands at padding never counts. [B, H]"""
    hidden = torch.where(mask[:, :, None], hidden, 0)
    if how == "mean":
        return hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    positions = torch.arange(mask.shape[1], device=mask.device)
    # The first and the last token of the text, on whichever side the padding is.
    first, last = mask.int().argmax(dim=1), torch.where(mask, positions, 0).amax(dim=1)
    return hidden[torch.arange(len(hidden), device=mask.device), first if how == "cls" else last]


def orthogonal_projection(backbone: Backbone, dimension: int, gain: float = 1.0) -> nn.Linear:
    """A new projection without bias; orthogonal rows keep the angles of the backbone as well as they can."""
    options: dict[str, Any] = {"dtype": backbone.model.dtype, "device": backbone.model.device}
    projection = nn.Linear(backbone.hidden_size, dimension, bias=False, **options)
    # In float32, since half precision has no orthogonalisation.
    weight = nn.init.orthogonal_(torch.empty(dimension, backbone.hidden_size), gain=gain)
    with torch.no_grad():
        projection.weight.copy_(weight)
    return projection
