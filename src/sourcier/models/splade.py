"""Weights of vocabulary terms from a masked-language head. (SPLADE, Formal et al. 2021, section 3.)

Shapes: B texts of the batch, L padded tokens, V terms of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from sourcier.kernels.splade_pool import splade_pool
from sourcier.models.backbone import Backbone, MaskedLanguageBackbone
from sourcier.models.encoder import EncoderConfig, SearchModel, text_mask
from sourcier.models.representations import TermWeightRepresentation
from sourcier.models.tokens import Features
from sourcier.types import Side


class Splade(SearchModel):
    """log(1 + ReLU(logits)), the largest over a text's tokens."""

    @dataclass(kw_only=True)
    class Config(EncoderConfig):
        document_only: bool = field(
            default=False,
            metadata={"help": "queries are not encoded: weight 1 for each of their tokens (inference-free)"},
        )

    family: ClassVar[str] = "splade"
    backbone_class: ClassVar[type[Backbone]] = MaskedLanguageBackbone

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
        super().__init__(backbone, tokenizer, config)
        self._special_ids = torch.tensor(tokenizer.all_special_ids)

    @property
    def default_temperature(self) -> float:
        return 1.0

    def forward(self, features: Features, side: Side) -> TermWeightRepresentation:
        if side == "query" and self.config.document_only:
            return TermWeightRepresentation(self._own_terms(features))
        transformed = self.backbone.terms(features)
        weight, bias = self.backbone.decoder_weight, self.backbone.decoder_bias
        return TermWeightRepresentation(splade_pool(transformed, text_mask(features), weight, bias))

    def _own_terms(self, features: Features) -> Tensor:
        """Weight 1 for each token of the text but the special ones. [B, V]"""
        ids, decoder = features["input_ids"], self.backbone.decoder_weight
        counted = text_mask(features) & ~torch.isin(ids, self._special_ids.to(ids.device))
        weights = torch.zeros(len(ids), len(decoder), dtype=decoder.dtype, device=ids.device)
        rows, columns = counted.nonzero(as_tuple=True)
        weights[rows, ids[rows, columns]] = 1
        return weights
