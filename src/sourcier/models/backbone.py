"""A Hugging Face model as the body of a search model: loaded whole or refused, all kinds called alike.

Shapes: B texts of the batch, L padded tokens, H hidden size, E input size of the decoder, V terms of the
vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
)

from sourcier.models import packing
from sourcier.models.loading import check_encoder, missing_of_head
from sourcier.models.tokens import Features, first_line
from sourcier.types import SourcierError

#: The features that every kind of model reads; others are for the family.
_MODEL_INPUTS = ("input_ids", "attention_mask")


class Backbone(nn.Module):
    """An encoder, or a decoder without its language head: token ids to a contextual vector for each token."""

    auto_class: ClassVar[Any] = AutoModel
    mapping: ClassVar[Any] = MODEL_MAPPING

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        self._gives_positions = "position_ids" in self._accepted and _counts_positions_from_zero(model)
        table = _position_table(model)
        self._first = 0 if table is None else _first_position(table)
        self._packs = "position_ids" in self._accepted and packing.install(model)

    @classmethod
    def load(cls, source: str, *, dtype: torch.dtype | None = None) -> Self:
        """The model of a folder or of a hub id, with every weight from there; in `dtype`, or as it is stored."""
        config = _load_config(source)
        cls.check(source, config)
        # A pooler that nothing reads would get no gradient, which stops DistributedDataParallel.
        options = {"add_pooling_layer": False} if _takes_pooler_option(cls.mapping[type(config)]) else {}
        try:
            with _quiet():
                model, info = cls.auto_class.from_pretrained(
                    source,
                    config=config,
                    dtype=dtype or "auto",
                    trust_remote_code=False,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,
                    **options,
                )
        except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
            raise SourcierError(f"{source}: its weights cannot be loaded: {first_line(error)}") from error
        check_encoder(source, model, info)
        if missing := missing_of_head(model, info):
            raise SourcierError(
                f"{source}: weight '{missing[0]}' of the masked-language head is missing ({len(missing)} in all): "
                "choose a base that was saved with its head, or the dense or colbert family"
            )
        return cls(model)

    @classmethod
    def check(cls, source: str, config: PretrainedConfig) -> None:
        """Refuses a base that this kind of backbone cannot be made of."""
        if config.is_encoder_decoder:
            raise SourcierError(
                f"{source}: '{config.model_type}' is an encoder with a decoder: choose an encoder, "
                "or a decoder-only model for the dense family"
            )
        if type(config) not in cls.mapping:
            raise SourcierError(f"{source}: '{config.model_type}' is no model of texts: choose another base")

    @property
    def config(self) -> PretrainedConfig:
        return self.model.config

    @property
    def layers(self) -> nn.ModuleList:
        """The stack of layers, from the first to the last; empty where the kind has none."""
        stacks = [module for module in self.model.base_model.modules() if isinstance(module, nn.ModuleList)]
        return max(stacks, key=len, default=nn.ModuleList())

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has vectors for."""
        return len(cast(nn.Embedding, self.model.get_input_embeddings()).weight)

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only those before it, so that the last one alone has seen the text."""
        kind = type(self.config)
        either = kind in MODEL_FOR_MASKED_LM_MAPPING and not getattr(self.config, "is_decoder", False)
        return kind in MODEL_FOR_CAUSAL_LM_MAPPING and not either

    @property
    def position_limit(self) -> int | None:
        """How many tokens the model has positions for; None where nothing limits them.

        Kinds whose table of positions starts behind the padding row lose that row and those before it.
        """
        limits = [getattr(self.config, "max_position_embeddings", None)]
        table = _position_table(self.model)
        if table is not None:
            limits.append(table.num_embeddings - _first_position(table))
        return min((limit for limit in limits if limit is not None and limit > 0), default=None)

    def hidden(self, features: Features, wanted: Tensor | None = None) -> Tensor:
        """The last layer's vector of each token. [B, L, H]

        `wanted` [B, L] bool says which vectors are read, by default those of the tokens that attention reads.
        """
        return self._run(
            self.model.base_model, features, lambda output: (output.last_hidden_state,), wanted=wanted
        )[0]

    def arguments(self, features: Features) -> dict[str, Any]:
        """What `forward` of this kind of model takes, found from its signature.

        Positions and token types are given where they would come from buffers of the model:
        DistributedDataParallel writes into buffers, and autograd keeps these.
        """
        ids = features["input_ids"]
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": features["attention_mask"]}
        if "token_type_ids" in self._accepted:
            arguments["token_type_ids"] = torch.zeros_like(ids)
        if self._gives_positions:
            arguments["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None]
        if "use_cache" in self._accepted:
            arguments["use_cache"] = False
        return arguments

    def _run(
        self,
        model: nn.Module,
        features: Features,
        read: Callable[[Any], tuple[Tensor, ...]],
        *,
        wanted: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """What `read` takes from the output of a model, [B, L, …] each, without computing on padding where it can."""
        mask = features["attention_mask"].bool()
        # On accelerators, many small attentions cost more than the padding that they save.
        packable = self._packs and mask.device.type == "cpu"
        if not packable or (wanted is not None and (wanted & ~mask).any()):
            return read(model(**self.arguments(features), **options))
        packed = packing.Packing.of(mask)
        arguments = self.arguments({name: packed.pack(features[name]) for name in _MODEL_INPUTS})
        arguments["position_ids"] = packed.positions + self._first
        output = model(**arguments | {"attention_mask": None, "text_lengths": packed.lengths} | options)
        return tuple(packed.unpack(tensor) for tensor in read(output))

    def resize_vocabulary(self, size: int) -> None:
        """Makes room for new tokens, whose vectors start as the mean of the old ones: the same on every process."""
        old = self.vocabulary
        if size <= old:
            return
        with _quiet():
            table = self.model.resize_token_embeddings(size, mean_resizing=False)
        with torch.no_grad():
            table.weight[old:] = table.weight[:old].mean(dim=0)

    def save(self, folder: Path) -> None:
        """Writes the model as transformers does."""
        with _quiet():
            self.model.save_pretrained(folder)


class MaskedLanguageBackbone(Backbone):
    """An encoder with its masked-language head, whose last product, with the vocabulary, is left to a kernel."""

    auto_class: ClassVar[Any] = AutoModelForMaskedLM
    mapping: ClassVar[Any] = MODEL_FOR_MASKED_LM_MAPPING

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        decoder = model.get_output_embeddings()
        if not isinstance(decoder, nn.Linear):
            raise SourcierError(
                f"'{self.config.model_type}': its masked-language head does not end in a linear layer"
            )
        decoder.__class__ = PassingDecoder

    @classmethod
    def check(cls, source: str, config: PretrainedConfig) -> None:
        if type(config) not in cls.mapping:
            raise SourcierError(
                f"{source}: '{config.model_type}' has no masked-language head, which sparse families read: "
                "choose a masked language model, or the dense or colbert family"
            )
        super().check(source, config)

    @property
    def decoder_weight(self) -> Tensor:
        """[V, E]"""
        return self.model.get_output_embeddings().weight

    @property
    def decoder_bias(self) -> Tensor | None:
        """[V]"""
        return self.model.get_output_embeddings().bias

    def terms(self, features: Features) -> Tensor:
        """What the decoder multiplies with its weight: each token behind the head's transformation. [B, L, E]"""
        return self._run(self.model, features, lambda output: (output.logits,))[0]

    def hidden_and_terms(self, features: Features) -> tuple[Tensor, Tensor]:
        """The last layer's vector of each token [B, L, H], and `terms` [B, L, E], from one pass."""
        hidden, terms = self._run(
            self.model,
            features,
            lambda output: (output.hidden_states[-1], output.logits),
            output_hidden_states=True,
        )
        return hidden, terms


class PassingDecoder(nn.Linear):
    """The decoder of a masked-language head that gives back its input.

    It keeps weight and bias, their names and ties, so the model is saved as the ordinary one that it is; but
    the [B, L, V] logits are never built.
    """

    def forward(self, transformed: Tensor) -> Tensor:
        return transformed


def _load_config(source: str) -> PretrainedConfig:
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise SourcierError(f"{source}/config.json is missing: give the folder of a Hugging Face model")
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise SourcierError(f"{source}: its configuration cannot be loaded: {first_line(error)}") from error


def _takes_pooler_option(model_class: Any) -> bool:
    return "add_pooling_layer" in inspect.signature(model_class.__init__).parameters


def _position_table(model: PreTrainedModel) -> nn.Embedding | None:
    """The table of absolute positions; None for relative and rotary kinds."""
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "embed_positions", ".wpe")) and isinstance(
            module, nn.Embedding
        ):
            return module
    return None


def _first_position(table: nn.Embedding) -> int:
    return 0 if table.padding_idx is None else table.padding_idx + 1


def _counts_positions_from_zero(model: PreTrainedModel) -> bool:
    """Whether the model would read positions 0, 1, 2 … from a buffer; other kinds work them out in each call."""
    table = _position_table(model)
    buffered = any(name.endswith("position_ids") for name, _ in model.named_buffers())
    return buffered and table is not None and _first_position(table) == 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars and load reports of transformers: what they would say is checked here."""
    logging = transformers.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
