"""One vector a text: token vectors pooled to one, projected and normalised on request.

Shapes: B texts of the batch, L padded tokens, H hidden size, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from sourcier.config import setting
from sourcier.effects import Idle
from sourcier.models.backbone import Backbone
from sourcier.models.encoder import EncoderConfig, SearchModel, text_mask
from sourcier.models.projection import Layer, check_layers, projection
from sourcier.models.representations import DenseRepresentation
from sourcier.models.tokens import Features, TokenRow
from sourcier.types import Side

Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt", "weighted_mean"]


class Dense(SearchModel):
    """Single vectors, compared by cosine or dot product."""

    @dataclass(kw_only=True)
    class Config(EncoderConfig):
        pooling: Pooling | tuple[Pooling, ...] | None = field(
            default=None,
            metadata={
                "help": "how token vectors become one: mean, cls, last, max, mean_sqrt or weighted_mean; several are "
                "put side by side (default: last for decoders, else mean)"
            },
        )
        pool_prompt: bool = setting(True, "tokens of the prompt, and those before it, are pooled too")
        dimension: int | None = setting(None, "size of a projection (default: none)", at_least=1)
        layers: tuple[Layer, ...] = ()
        similarity: Literal["cosine", "dot"] = setting("cosine", "what scores are")
        normalize: bool = setting(
            True, "vectors of a cosine model have length 1; no: only its scores are cosines"
        )

        idle: ClassVar[tuple[Idle[Any], ...]] = (
            Idle(
                ["normalize"],
                lambda it: it.similarity == "dot",
                "similarity=dot takes vectors as they are: leave it out, or similarity",
            ),
            Idle(
                ["pool_prompt"],
                lambda it: not it.query_prompt and not it.document_prompt,
                "there is no prompt: give query_prompt or document_prompt, or leave it out",
            ),
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if isinstance(self.pooling, tuple) and len(self.pooling) == 1:
                self.pooling = self.pooling[0]
            check_layers(self.layers, self.dimension)

    family: ClassVar[str] = "dense"

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
        super().__init__(backbone, tokenizer, config)
        if config.pooling is None:
            self.config = replace(self.config, pooling="last" if backbone.is_causal else "mean")
        self._ways: Sequence[Pooling] = (
            self.config.pooling if isinstance(self.config.pooling, tuple) else (self.config.pooling,)
        )
        self.projection = projection(backbone, config.dimension, config.layers, ways=len(self._ways))

    @property
    def default_temperature(self) -> float:
        return 0.05 if self.config.similarity == "cosine" else 1.0

    def collate(self, rows: Sequence[TokenRow], side: Side) -> Features:
        """A batch; `pooled` [B, L] bool, where the prompt is left out, is True behind it."""
        features = super().collate(rows, side)
        opening = 0 if self.config.pool_prompt else self.tokens.prompt_length(side)
        if not opening:
            return features
        behind = torch.arange(features["input_ids"].shape[1]) >= opening
        return features | {"pooled": text_mask(features) & behind}

    def forward(self, features: Features, side: Side) -> DenseRepresentation:
        hidden, text = self.backbone.hidden(features), text_mask(features)
        # The place of a token in its text, from 1, whatever of the text is pooled.
        places = text.cumsum(dim=1)
        mask = features.get("pooled", text)
        vectors = torch.cat([pool(hidden, mask, how, places) for how in self._ways], dim=-1)
        if self.projection is not None:
            vectors = self.projection(vectors)
        if self.config.similarity == "dot":
            return DenseRepresentation(vectors)
        unit = nn.functional.normalize(vectors, dim=-1)
        if self.config.normalize:
            return DenseRepresentation(unit)
        return DenseRepresentation(unit, norms=vectors.detach().norm(dim=-1, keepdim=True))


def pool(hidden: Tensor, mask: Tensor, how: Pooling, places: Tensor | None = None) -> Tensor:
    """One vector a text; zeros where a text has no token. What stands at padding never counts. [B, H]

    `places` [B, L] are the weights of `weighted_mean`: by default the tokens' places in `mask`, from 1.
    """
    if how == "max":
        largest = torch.where(mask[:, :, None], hidden, torch.finfo(hidden.dtype).min).amax(dim=1)
        return torch.where(mask.any(dim=1, keepdim=True), largest, 0)
    hidden = torch.where(mask[:, :, None], hidden, 0)
    if how in ("mean", "mean_sqrt"):
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        return hidden.sum(dim=1) / (count if how == "mean" else count.sqrt())
    if how == "weighted_mean":
        weights = torch.where(mask, mask.cumsum(dim=1) if places is None else places, 0).to(hidden.dtype)
        return (hidden * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)
    positions = torch.arange(mask.shape[1], device=mask.device)
    # The first and the last token of the text, on whichever side the padding is.
    first, last = mask.int().argmax(dim=1), torch.where(mask, positions, 0).amax(dim=1)
    return hidden[torch.arange(len(hidden), device=mask.device), first if how == "cls" else last]
