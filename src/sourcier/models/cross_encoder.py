"""A cross-encoder: it reads a query and a document together and gives the pair one score.

    scores = CrossEncoder("path/or/hub-id").scores([("what is a well?", "A hole that gives water."), ...])

Any `AutoModelForSequenceClassification` with one label will do. Its score is the logit, without an activation: losses
compare differences of scores, which a sigmoid would squeeze.

Shapes: P pairs, B pairs of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification

from sourcier.models.backbone import Backbone
from sourcier.models.loading import check_encoder, missing_of_head
from sourcier.models.tokens import first_line, load_tokenizer
from sourcier.types import SourcierError

#: Pairs that are sorted by length together.
WINDOW = 16_384


class CrossEncoder:
    """Scores pairs of texts."""

    def __init__(
        self, source: str | Path, *, device: torch.device | str | None = None, batch_size: int = 32
    ) -> None:
        self.batch_size = batch_size
        self.device = torch.device(device or "cpu")
        self._model = _load(str(source)).to(self.device).eval()
        self._tokenizer = load_tokenizer(str(source))
        self.limit = _limit(self._model, self._tokenizer)

    def scores(self, pairs: Sequence[tuple[str, str]], *, progress: bool = False) -> np.ndarray:
        """The score of each (query, document). [P] float32"""
        # Neighbours of similar length are padded little; the longest come first, so memory that suffices once suffices.
        longest = np.array([-len(query) - len(document) for query, document in pairs])
        window_of = np.arange(len(pairs)) // WINDOW
        order = np.lexsort((longest, window_of))
        scores = np.empty(len(pairs), dtype=np.float32)
        starts = range(0, len(pairs), self.batch_size)
        for start in track(starts, "scoring pairs", console=Console(stderr=True), disable=not progress):
            batch = order[start : start + self.batch_size]
            scores[batch] = self._batch_scores([pairs[number] for number in batch])
        return scores

    @torch.inference_mode()
    def _batch_scores(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """[B] float32"""
        queries, documents = zip(*pairs, strict=True)
        features = self._tokenizer(
            list(queries),
            list(documents),
            padding=True,
            truncation=True,
            max_length=self.limit,
            return_tensors="pt",
        )
        logits = self._model(**features.to(self.device)).logits
        return logits[:, 0].float().cpu().numpy()


def _load(source: str) -> Any:
    """The model with all its weights: a base without the classifier would score at random."""
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise SourcierError(f"{source}: cannot be loaded as a cross-encoder: {first_line(error)}") from error
    if missing := missing_of_head(model, info):
        raise SourcierError(
            f"{source}: weight '{missing[0]}' is missing: choose a cross-encoder, which has a trained classifier"
        )
    check_encoder(source, model, info)
    if model.config.num_labels != 1:
        raise SourcierError(
            f"{source}: gives {model.config.num_labels} labels: choose a cross-encoder with a single score"
        )
    return model


def _limit(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase) -> int:
    """The longest pair in tokens, special ones included, that both model and tokenizer allow."""
    positions = Backbone(model).position_limit
    return min(tokenizer.model_max_length, positions or tokenizer.model_max_length)
