"""What the four families share: settings, tokenisation, encoding to numpy, saving and loading.

Shapes: B texts of the batch, L padded tokens.
"""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedTokenizerBase

from sourcier.config import setting, to_dict, unknown
from sourcier.effects import Idle
from sourcier.encodings import Encoding
from sourcier.models.backbone import Backbone
from sourcier.models.representations import Representation
from sourcier.models.tokens import Features, TokenRow, Tokens
from sourcier.ranges import check_ranges
from sourcier.types import Side, SourcierError

#: How many texts are sorted by length together, which bounds the memory that their token ids take.
WINDOW = 16_384

# Guards the switch between training and evaluation; one for all models, so that a model can be copied.
_LOCK = threading.Lock()


@dataclass(kw_only=True)
class EncoderConfig:
    """Settings that every family has; each changes the vectors."""

    query_prompt: str = setting("", "text put before each query")
    document_prompt: str = setting("", "text put before each document")
    query_suffix: str = setting("", "text put behind each query")
    document_suffix: str = setting("", "text put behind each document")
    query_length: int = setting(64, "longest query in tokens, with special ones", at_least=1)
    document_length: int = setting(256, "longest document in tokens, with special ones", at_least=1)

    #: Settings of the family that do nothing beside others of it.
    idle: ClassVar[tuple[Idle[Any], ...]] = ()

    def __post_init__(self) -> None:
        check_ranges(self)


class SearchModel(nn.Module, ABC):
    """A model that turns texts into representations of its family."""

    family: ClassVar[str]
    Config: ClassVar[type[EncoderConfig]]
    backbone_class: ClassVar[type[Backbone]] = Backbone
    #: Whether its representations have activations, which FLOPS and L1 read.
    weighs_terms: ClassVar[bool] = False

    config: Any  # the family's Config
    backbone: Any  # a `backbone_class`

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, config: EncoderConfig) -> None:
        super().__init__()
        _check_vocabulary(tokenizer, backbone)
        self.backbone = backbone
        self.config = _within(config, backbone)
        self.tokens = Tokens(
            tokenizer,
            prompts={"query": config.query_prompt, "document": config.document_prompt},
            suffixes={"query": config.query_suffix, "document": config.document_suffix},
            lengths={"query": self.config.query_length, "document": self.config.document_length},
            markers=self._markers(tokenizer),
        )
        self._users = 0  # how many threads encode now
        self._trained: list[nn.Module] = []  # the modules that were in training mode before the first of them

    @classmethod
    def from_base(
        cls,
        base: str | Path,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **settings: Any,
    ) -> Self:
        """A new model on a Hugging Face checkpoint, from a folder or the hub; `settings` are those of its Config.

        The folder of another library's model of this family gives its settings and heads too; `settings` override.
        Heads that the base does not have are drawn from torch's random numbers: seed them first.
        """
        from sourcier.models import checkpoints

        return checkpoints.build(cls, base, settings, dtype).to(device).eval()

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str | None = None) -> Self:
        """The model that `save_pretrained` wrote, or one of this family from a library that we can read."""
        from sourcier.models import checkpoints

        return checkpoints.restore(cls, folder, device)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the model as one folder, whole or not at all; an earlier model of that name is replaced."""
        from sourcier.models import checkpoints

        checkpoints.save(self, folder)

    @property
    @abstractmethod
    def default_temperature(self) -> float:
        """What divides scores in a contrastive loss where the user names nothing."""

    @abstractmethod
    def forward(self, features: Features, side: Side) -> Representation:
        """Encodes a tokenised batch."""

    def _markers(self, tokenizer: PreTrainedTokenizerBase) -> dict[Side, int] | None:
        """The tokens that tell the sides apart, in a family that has them. The backbone is there by now."""
        return None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.tokens.tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tokenize(self, texts: Sequence[str], side: Side) -> Features:
        """A batch of texts with prompts and markers, padded to the longest, on the CPU. Safe from many threads."""
        return self.collate(self.tokens.rows(texts, side), side)

    def collate(self, rows: Sequence[TokenRow], side: Side) -> Features:
        """Rows of token ids as one batch."""
        return self.tokens.pad(rows)

    def token_starts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The characters at which the tokens of each text start. Nothing is cut: see `room`."""
        return self.tokens.starts(texts)

    def room(self, side: Side) -> int:
        """How many tokens of a text of that side are read."""
        return self.tokens.room(side)

    def encode(
        self, texts: Sequence[str], side: Side, *, batch_size: int = 32, progress: bool = False
    ) -> Encoding:
        """Encodes any number of texts, in their order; what a text becomes does not depend on the others.

        `batch_size` counts texts of full length; of shorter ones more go together.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        if side not in self.tokens.lengths:
            raise ValueError(unknown("side of a search", str(side), self.tokens.lengths))
        if not len(texts):
            return self.encode([""], side)[0:0]
        budget = batch_size * self.tokens.lengths[side]
        parts: list[Any] = []
        with self._evaluating(), _progress(len(texts), f"encoding {side} texts", progress) as advance:
            for start in range(0, len(texts), WINDOW):
                rows = self.tokens.rows(texts[start : start + WINDOW], side)
                parts.append(self._encode_rows(rows, side, budget, 4 * batch_size, advance))
        return type(parts[0]).concatenate(parts)

    def fingerprint(self) -> str:
        """A hash of weights and settings: the same after saving and loading, another after a step."""
        settings = json.dumps({"family": self.family, **to_dict(self.config)}, sort_keys=True)
        return hashlib.sha256(f"{self._weights_digest()}{settings}".encode()).hexdigest()

    def set_dropout(self, probability: float) -> None:
        """Sets every dropout of the model; without any, attention takes its fast path on the CPU."""
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability
            elif isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = probability  # type: ignore[assignment]

    def checkpoint_activations(self) -> None:
        """Trades time for memory in training: the backbone's layers are computed again in the backward."""
        model, layers = self.backbone.model, self.backbone.layers
        if model.supports_gradient_checkpointing:
            # The second name is the one that transformers had before.
            enable = (
                getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            )
            enable({"use_reentrant": False})
        elif len(layers):  # a kind that transformers does not do it for
            for layer in layers:
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        else:
            raise SourcierError(
                f"'{model.config.model_type}' has no list of layers to compute again: leave out gradient_checkpointing"
            )

    def _encode_rows(
        self, rows: list[TokenRow], side: Side, budget: int, most: int, advance: Callable[[int], None]
    ) -> Encoding:
        order = np.argsort([-len(row) for row in rows], kind="stable")
        parts: list[Any] = []
        for batch in _batches([len(rows[number]) for number in order], budget, most):
            features = self.collate([rows[number] for number in order[batch]], side)
            with torch.inference_mode():
                encoded = self({name: tensor.to(self.device) for name, tensor in features.items()}, side)
                parts.append(encoded.encoding())
            advance(batch.stop - batch.start)
        return type(parts[0]).concatenate(parts).take(np.argsort(order))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode, until the last of the threads that encode is done."""
        with _LOCK:
            if self._users == 0:
                self._trained = [module for module in self.modules() if module.training]
                self.eval()
            self._users += 1
        try:
            yield
        finally:
            with _LOCK:
                self._users -= 1
                if self._users == 0:
                    for module in self._trained:
                        module.training = True

    def _weights_digest(self) -> str:
        """A hash of all weights, worked out again only when one was written to since."""
        state = self.state_dict()
        # torch counts the writes to a tensor in `_version`; every optimizer and `load_state_dict` moves it.
        key = tuple((name, tensor.data_ptr(), tensor._version) for name, tensor in state.items())
        cached = self.__dict__.get("_digest")
        if cached is None or cached[0] != key:
            digest = hashlib.sha256()
            for name, tensor in state.items():
                plain = tensor.detach().cpu().contiguous()
                digest.update(f"{name} {plain.dtype} {tuple(plain.shape)} ".encode())
                digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
            cached = self.__dict__["_digest"] = (key, digest.hexdigest())
        return cached[1]


def text_mask(features: Features) -> Tensor:
    """Where a text has a token. [B, L] bool"""
    return features["attention_mask"].bool()


def _within(config: EncoderConfig, backbone: Backbone) -> EncoderConfig:
    """The configuration with lengths that the backbone has positions for; one warning where it was cut."""
    limit = backbone.position_limit
    lengths = {"query_length": config.query_length, "document_length": config.document_length}
    longer = {name: value for name, value in lengths.items() if limit is not None and value > limit}
    if limit is None or not longer:
        return config
    named = " and ".join(f"{name}={value}" for name, value in longer.items())
    kind = backbone.config.model_type
    warnings.warn(
        f"{named}: '{kind}' has positions for {limit} tokens; longer texts are cut to {limit}", stacklevel=5
    )
    cut: dict[str, Any] = dict.fromkeys(longer, limit)
    return replace(config, **cut)


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, backbone: Backbone) -> None:
    """Refuses a tokenizer that is not the model's: where files are missing, transformers makes an empty one."""
    known, rows = len(tokenizer), backbone.vocabulary
    if not rows / 2 <= known <= rows:
        raise SourcierError(
            f"{backbone.model.name_or_path}: the tokenizer has {known} tokens, the model {rows}: "
            "restore the tokenizer's files (tokenizer.json)"
        )


def _batches(lengths: Sequence[int], budget: int, most: int) -> Iterator[slice]:
    """Slices of texts that are sorted by falling length: at most `most` texts and, padded, `budget` tokens each."""
    start = 0
    while start < len(lengths):
        stop = start + max(1, min(most, budget // lengths[start]))
        yield slice(start, min(stop, len(lengths)))
        start = stop


@contextmanager
def _progress(total: int, description: str, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, as a function to call with the number of texts that are done."""
    if not shown:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)
