"""Weights of vocabulary terms from a masked-language head. (SPLADE, Formal et al. 2021, section 3.)

Shapes: B texts of the batch, L padded tokens, V terms of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from sourcier.config import setting
from sourcier.kernels.splade_pool import splade_pool
from sourcier.models.backbone import Backbone, MaskedLanguageBackbone
from sourcier.models.encoder import EncoderConfig, SearchModel, text_mask
from sourcier.models.representations import TermWeightRepresentation
from sourcier.models.tokens import Features
from sourcier.types import Side, SourcierError


class Splade(SearchModel):
    """log(1 + ReLU(logits)), the largest over a text's tokens."""

    @dataclass(kw_only=True)
    class Config(EncoderConfig):
        document_only: bool = setting(
            False, "queries are not encoded: weight 1 for each of their tokens (inference-free)"
        )
        token_weights: bool = setting(
            False, "document_only: each token has a fixed weight of its own, such as its rarity"
        )
        pooling: Literal["max", "sum"] = setting(
            "max", "what of a term's weights at the tokens of a text counts"
        )
        log_twice: bool = setting(False, "weights are log(1 + log(1 + ReLU(logits)))")
        query_terms: int | None = setting(
            None, "heaviest terms that a query keeps (default: all)", at_least=1
        )
        document_terms: int | None = setting(
            None, "heaviest terms that a document keeps (default: all)", at_least=1
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.token_weights and not self.document_only:
                raise SourcierError("token_weights are for queries that are not encoded: set document_only")

    family: ClassVar[str] = "splade"
    backbone_class: ClassVar[type[Backbone]] = MaskedLanguageBackbone
    weighs_terms: ClassVar[bool] = True

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
        super().__init__(backbone, tokenizer, config)
        self._special_ids = torch.tensor(tokenizer.all_special_ids)
        self.query_weights: Tensor | None
        # Not trained: what they say of a token is known before.
        self.register_buffer("query_weights", self._equal_weights() if config.token_weights else None)

    @property
    def default_temperature(self) -> float:
        return 1.0

    def forward(self, features: Features, side: Side) -> TermWeightRepresentation:
        looked_up = side == "query" and self.config.document_only
        weights = self._own_terms(features) if looked_up else self._terms(features)
        kept = self.config.query_terms if side == "query" else self.config.document_terms
        return TermWeightRepresentation(weights if kept is None else heaviest(weights, kept))

    def _equal_weights(self) -> Tensor:
        """1 for each token but the special ones. [V]"""
        weights = torch.ones(self.backbone.vocabulary)
        weights[self._special_ids] = 0
        return weights

    def _terms(self, features: Features) -> Tensor:
        """The weights that the masked-language head gives. [B, V]"""
        transformed, mask = self.backbone.terms(features), text_mask(features)
        weight, bias = self.backbone.decoder_weight, self.backbone.decoder_bias
        if self.config.pooling == "sum":
            return sum_pool(transformed, mask, weight, bias, log_twice=self.config.log_twice)
        weights = splade_pool(transformed, mask, weight, bias)
        # A second logarithm is monotone too: the largest of a text stays the largest.
        return torch.log1p(weights) if self.config.log_twice else weights

    def _own_terms(self, features: Features) -> Tensor:
        """The fixed weight of each token of the text; 1 where it has none, and 0 for special ones. [B, V]"""
        ids, decoder = features["input_ids"], self.backbone.decoder_weight
        counted = text_mask(features)
        if self.query_weights is None:
            counted = counted & ~torch.isin(ids, self._special_ids.to(ids.device))
        weights = torch.zeros(len(ids), len(decoder), dtype=decoder.dtype, device=ids.device)
        rows, columns = counted.nonzero(as_tuple=True)
        terms = ids[rows, columns]
        weights[rows, terms] = (
            1 if self.query_weights is None else self.query_weights[terms].to(weights.dtype)
        )
        return weights


def sum_pool(
    transformed: Tensor, mask: Tensor, weight: Tensor, bias: Tensor | None, *, log_twice: bool
) -> Tensor:
    """The sum of each term's weights over the tokens of a text, one text after the other. [B, V]"""
    pooled = []
    for tokens, kept in zip(transformed, mask, strict=True):
        weights = torch.log1p(torch.relu(nn.functional.linear(tokens[kept], weight, bias)))
        pooled.append((torch.log1p(weights) if log_twice else weights).sum(dim=0))
    return torch.stack(pooled)


def heaviest(weights: Tensor, count: int) -> Tensor:
    """The weights of each text's `count` heaviest terms, and zeros. [B, V]"""
    terms = weights.detach().topk(min(count, weights.shape[1]), dim=1).indices
    kept = torch.zeros_like(weights, dtype=torch.bool).scatter(1, terms, True)
    return torch.where(kept, weights, 0)
