"""A contextual vector for each of a text's heaviest terms. (SparseEmbed, Kong et al., SIGIR 2023, section 3.)

Shapes: B texts of the batch, L padded tokens, H hidden size, E input size of the decoder, V terms of the
vocabulary, K terms that are kept a text, D dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from sourcier.config import setting
from sourcier.kernels.splade_pool import splade_pool
from sourcier.models.backbone import Backbone, MaskedLanguageBackbone
from sourcier.models.encoder import EncoderConfig, SearchModel, text_mask
from sourcier.models.projection import orthogonal_projection
from sourcier.models.representations import TermVectorRepresentation
from sourcier.models.tokens import Features
from sourcier.types import Side


class SparseEmbed(SearchModel):
    """The K heaviest SPLADE terms, each with the mean of the token vectors, weighted by the term's own logits."""

    @dataclass(kw_only=True)
    class Config(EncoderConfig):
        query_terms: int = setting(64, "terms that a query keeps", at_least=1)
        document_terms: int = setting(256, "terms that a document keeps", at_least=1)
        dimension: int = setting(64, "size of a term's vector", at_least=1)
        attention: Literal["tokens", "terms"] = setting(
            "tokens",
            "a term's softmax runs over the tokens of the text, or a token's over the terms that are kept",
        )

    family: ClassVar[str] = "sparse_embed"
    backbone_class: ClassVar[type[Backbone]] = MaskedLanguageBackbone
    weighs_terms: ClassVar[bool] = True

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
        super().__init__(backbone, tokenizer, config)
        # Token vectors leave their layer norm with a square of about H, of which ReLU drops half. This gain makes a
        # term that two texts share add about 1 to their score.
        gain = math.sqrt(2 / min(config.dimension, backbone.hidden_size))
        self.projection = orthogonal_projection(backbone, config.dimension, gain)

    @property
    def default_temperature(self) -> float:
        return 1.0

    def forward(self, features: Features, side: Side) -> TermVectorRepresentation:
        mask = text_mask(features)
        hidden, transformed = self.backbone.hidden_and_terms(features)
        weight, bias = self.backbone.decoder_weight, self.backbone.decoder_bias
        transformed = torch.where(mask[:, :, None], transformed, 0)
        weights = splade_pool(transformed, mask, weight, bias)
        kept = self.config.query_terms if side == "query" else self.config.document_terms
        heaviest = weights.detach().topk(min(kept, weights.shape[1]), dim=1)
        active = heaviest.values > 0
        logits = term_logits(transformed, heaviest.indices, weight, bias)
        over = attend if self.config.attention == "tokens" else share
        vectors = torch.relu(self.projection(over(hidden, logits, mask)))
        vectors = torch.where(active[:, :, None], vectors, 0)
        return TermVectorRepresentation(heaviest.indices, active, vectors, weights)


def term_logits(transformed: Tensor, terms: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The logits of a text's own terms at each of its tokens; no other term's are built. [B, L, K]"""
    logits = transformed @ nn.functional.embedding(terms, weight).transpose(1, 2)
    return logits if bias is None else logits + bias[terms][:, None]


def attend(hidden: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """For each term the mean of the token vectors, weighted by softmax over its logits. [B, K, H]"""
    # The lowest finite number instead of -inf: a text without a token gets zeros then, not NaN.
    logits = torch.where(mask[:, :, None], logits, torch.finfo(logits.dtype).min)
    hidden = torch.where(mask[:, :, None], hidden, 0)
    return logits.softmax(dim=1).transpose(1, 2) @ hidden


def share(hidden: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """For each term the sum of the token vectors, each of which is shared among the terms by softmax. [B, K, H]

    As neural-cherche computes it: the logits of all terms that are kept take part, whatever their weight.
    """
    hidden = torch.where(mask[:, :, None], hidden, 0)
    logits = torch.where(mask[:, :, None], logits, 0)
    return logits.softmax(dim=2).transpose(1, 2) @ hidden
