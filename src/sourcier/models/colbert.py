"""A normalised vector for each token, compared by MaxSim. (ColBERT, Khattab and Zaharia 2020, section 3.)

Shapes: B texts of the batch, L padded tokens, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from sourcier.config import setting
from sourcier.effects import Idle
from sourcier.models.backbone import Backbone
from sourcier.models.encoder import EncoderConfig, SearchModel, text_mask
from sourcier.models.projection import Layer, check_layers, projection
from sourcier.models.representations import TokenVectorRepresentation
from sourcier.models.tokens import Features, TokenRow, punctuation_ids
from sourcier.types import Side, SourcierError


class ColBERT(SearchModel):
    """Token vectors: queries filled up with mask tokens, documents without their punctuation."""

    @dataclass(kw_only=True)
    class Config(EncoderConfig):
        dimension: int | None = setting(128, "size of a token's vector; none: that of the base", at_least=1)
        layers: tuple[Layer, ...] = ()
        normalize: bool = setting(True, "vectors have length 1")
        query_marker: str = setting("[unused0]", "token at position 1 of a query; '': none")
        document_marker: str = setting("[unused1]", "token at position 1 of a document; '': none")
        query_expansion: int = setting(
            32, "queries shorter than this many tokens are filled up with mask tokens; 0: none", at_least=0
        )
        attend_to_expansion: bool = setting(False, "other tokens see the mask tokens of the expansion")
        skip_punctuation: bool = setting(True, "punctuation of documents takes no part in scoring")
        skip_tokens: tuple[str, ...] = setting((), "more tokens of documents that take no part in scoring")

        idle: ClassVar[tuple[Idle[Any], ...]] = (
            Idle(
                ["attend_to_expansion"],
                lambda it: it.query_expansion == 0,
                "query_expansion=0 leaves nothing to see: leave out one of them",
            ),
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            check_layers(self.layers, self.dimension)

    family: ClassVar[str] = "colbert"

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
        if config.query_expansion > 0 and tokenizer.mask_token_id is None:
            raise SourcierError(
                f"{backbone.model.name_or_path}: the tokenizer has no mask token to expand queries with: "
                "set query_expansion=0"
            )
        super().__init__(backbone, tokenizer, config)
        self.projection = projection(backbone, config.dimension, config.layers)
        self.skipped = torch.tensor(self._skipped_ids(tokenizer), dtype=torch.long)

    @property
    def default_temperature(self) -> float:
        return 1.0

    def collate(self, rows: Sequence[TokenRow], side: Side) -> Features:
        """A batch; `scored` [B, L] bool is True at the tokens that take part in MaxSim."""
        if side == "document":
            features = super().collate(rows, side)
            return features | {
                "scored": text_mask(features) & ~torch.isin(features["input_ids"], self.skipped)
            }
        features = super().collate([self._expanded(row) for row in rows], side)
        scored = text_mask(features)
        if not self.config.attend_to_expansion:
            own = torch.tensor([len(row) for row in rows])
            attended = torch.arange(scored.shape[1]) < own[:, None]
            features["attention_mask"] = torch.where(attended, features["attention_mask"], 0)
        return features | {"scored": scored}

    def forward(self, features: Features, side: Side) -> TokenVectorRepresentation:
        scored = features["scored"]
        vectors = self.backbone.hidden(features, wanted=scored)
        # Before the projection, for padding may be NaN; and behind it, for a bias makes something of zeros.
        vectors = torch.where(scored[:, :, None], vectors, 0)
        if self.projection is not None:
            vectors = torch.where(scored[:, :, None], self.projection(vectors), 0)
        if self.config.normalize:
            vectors = nn.functional.normalize(vectors, dim=-1)
        return TokenVectorRepresentation(vectors, scored)

    def _expanded(self, row: TokenRow) -> TokenRow:
        missing = min(self.config.query_expansion, self.config.query_length) - len(row)
        return np.pad(row, (0, max(0, missing)), constant_values=self.tokenizer.mask_token_id or 0)

    def _skipped_ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """The tokens of documents that take no part in scoring."""
        vocabulary = tokenizer.get_vocab()
        for token in self.config.skip_tokens:
            if token not in vocabulary:
                raise SourcierError(f"skip_tokens: {token!r} is no token of the base: leave it out")
        named = {vocabulary[token] for token in self.config.skip_tokens}
        return sorted(named.union(punctuation_ids(tokenizer) if self.config.skip_punctuation else []))

    def _markers(self, tokenizer: PreTrainedTokenizerBase) -> dict[Side, int]:
        """The ids of the markers; what the vocabulary lacks is added to it, and to the backbone's."""
        markers = self._named_markers()
        opening = tokenizer("")["input_ids"][:1]
        if markers and (not opening or opening[0] not in tokenizer.all_special_ids):
            raise SourcierError(
                f"{self.backbone.model.name_or_path}: its tokenizer opens texts with no special token, behind which "
                "a marker could stand: choose an encoder"
            )
        # Made special even where the vocabulary has them, so that the tokenizer takes each for one token.
        tokenizer.add_tokens(list(markers.values()), special_tokens=True)
        self.backbone.resize_vocabulary(len(tokenizer))
        vocabulary = tokenizer.get_vocab()
        return {side: vocabulary[marker] for side, marker in markers.items()}

    def _named_markers(self) -> dict[Side, str]:
        """The markers of the sides that have one."""
        query, document = self.config.query_marker, self.config.document_marker
        if query and query == document:
            raise SourcierError(f"query_marker and document_marker are both {query!r}: choose two")
        named: dict[Side, str] = {"query": query, "document": document}
        return {side: marker for side, marker in named.items() if marker}
