"""What a foreign folder is read into, and the readers of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from tokenizers import normalizers
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from sourcier.models.tokens import first_line
from sourcier.types import SourcierError

_SAFE, _PICKLED = "model.safetensors", "pytorch_model.bin"


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A model of another library in our words."""

    #: What is named in errors about its settings.
    origin: Path
    settings: dict[str, Any]
    #: The folder of the Hugging Face model.
    backbone: Path
    #: Weights that are not the backbone's, under the names that they have in our model.
    heads: dict[str, Tensor] = field(default_factory=dict)
    #: Texts are made lower case before the tokenizer's own work.
    lower: bool = False

    def prepare(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """The tokenizer as the other library uses it."""
        if self.lower:
            backend: Any = tokenizer._tokenizer
            steps = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
            backend.normalizer = normalizers.Sequence(steps)
        return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """The keys and values of a JSON file."""
    values = _read(path)
    if not isinstance(values, dict):
        raise SourcierError(f"{path}: expected keys with values: restore the file")
    return values


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """The entries of a JSON file that is a list of keys with values."""
    values = _read(path)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise SourcierError(f"{path}: expected a list of keys with values: restore the file")
    return values


def read_optional_json(path: Path) -> dict[str, Any]:
    """The same, empty where there is no such file."""
    return read_json(path) if path.is_file() else {}


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a file, pickled or not; or those of a folder, in whichever of the two it has them."""
    if path.is_dir():
        path = path / (_SAFE if (path / _SAFE).is_file() else _PICKLED)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise SourcierError(f"{path}: cannot be read: {first_line(error)}") from error
    return weights


def read_weight(path: Path, name: str) -> Tensor:
    """One of the weights of a file or a folder, which has to be there."""
    weights = read_weights(path)
    if name not in weights:
        raise SourcierError(f"{path}: weight '{name}' is missing: restore it")
    return weights[name]


def has_weight(folder: Path, name: str) -> bool:
    """Whether a folder's weights hold one of that name, read from the head of the file where it has one."""
    if not (folder / _SAFE).is_file():
        return (folder / _PICKLED).is_file() and name in read_weights(folder / _PICKLED)
    try:
        with safe_open(folder / _SAFE, framework="pt") as file:
            return name in file.keys()  # noqa: SIM118 - not a dictionary
    except (OSError, SafetensorError) as error:
        raise SourcierError(f"{folder / _SAFE}: cannot be read: {first_line(error)}") from error


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourcierError(f"{path}: cannot be read: {first_line(error)}") from error
