"""`MultiVectorEncoder` folders of sentence-transformers 6, and PyLate's, from which they came.

A MultiVectorEncoder is a Transformer, any number of Dense, a MultiVectorMask and a Normalize; its markers are ordinary
prompts. PyLate lists Transformer and Dense alone: it inserts its markers as token ids, masks and normalises by itself.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sourcier.models.foreign.found import Foreign, read_optional_json
from sourcier.models.foreign.st_modules import (
    CONFIG,
    MODEL_TYPES,
    Module,
    check_normalize,
    expect,
    model_type,
    read_layers,
    read_modules,
)
from sourcier.models.foreign.st_text import longest, lowers, read_prompts, read_transformer
from sourcier.models.tokens import load_tokenizer
from sourcier.types import SourcierError

_SOURCE = "token_embeddings"
_PYLATE = (
    "query_prefix",
    "document_prefix",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "skiplist_words",
)


def family_of(folder: Path, wanted: str | None) -> str | None:
    """ "colbert" for a folder that this file reads."""
    return "colbert" if model_type(folder) == MODEL_TYPES["colbert"] else None


def read(folder: Path, family: str) -> Foreign:
    modules, config = read_modules(folder), read_optional_json(folder / CONFIG)
    transformer = expect(modules, 0, "Transformer")
    text = read_transformer(transformer)
    pylate = config.get("model_type") == "ColBERT" or any(key in config for key in _PYLATE)
    if pylate:
        settings, heads = _read_pylate(folder, transformer, modules[1:], config)
    else:
        settings, heads = _read_steps(transformer, modules[1:])
        settings |= read_prompts(folder) | _read_text(transformer, text)
        settings |= {"query_marker": "", "document_marker": ""}
    settings |= {"skip_punctuation": False}
    return Foreign(
        origin=folder, settings=settings, backbone=transformer.folder, heads=heads, lower=lowers(text)
    )


def known_tokens(folder: Path, words: Sequence[str]) -> list[str]:
    """Those of the words that are tokens, as the two libraries look them up."""
    vocabulary = load_tokenizer(str(folder)).get_vocab()
    return [word for word in words if word in vocabulary]


def _read_steps(transformer: Module, modules: Sequence[Module]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is behind the Transformer: Dense, then MultiVectorMask and Normalize in either order."""
    dense = [module for module in modules if module.kind == "Dense"]
    settings, heads = read_layers(dense, _SOURCE)
    settings |= {"normalize": False, "skip_tokens": []}
    masked = False
    for module in modules[len(dense) :]:
        if module.kind == "MultiVectorMask" and not masked:
            masked = True
            settings |= _read_mask(transformer, module)
        elif module.kind == "Normalize" and not settings["normalize"]:
            check_normalize(module, _SOURCE)
            settings |= {"normalize": True}
        else:
            raise module.refuse()
    for module in modules[: len(dense)]:
        if module.kind != "Dense":
            raise module.refuse("stands before a Dense")
    return settings, heads


def _read_mask(transformer: Module, module: Module) -> dict[str, Any]:
    config = module.config()
    if config.get("keep_only_token_ids"):
        raise module.refuse("sets keep_only_token_ids")
    words, sides = config.get("skiplist_words") or [], config.get("skiplist_tasks") or ["document"]
    if words and sides != ["document"]:
        raise module.refuse(f"skips words of {' and '.join(sides)}")
    return {"skip_tokens": known_tokens(transformer.folder, words)}


def _read_text(module: Module, config: dict[str, Any]) -> dict[str, Any]:
    """Lengths, and how queries are filled up."""
    limit = longest(module.folder, config)
    lengths = {name: config.get(name) or limit for name in ("query_length", "document_length")}
    expansion = config.get("query_expansion")
    if expansion is None:
        return lengths | {"query_expansion": 0, "attend_to_expansion": False}
    length, token = expansion["length"], expansion.get("token")
    mask = load_tokenizer(str(module.folder)).mask_token
    if mask is None or token not in (None, mask):
        raise module.refuse(f"fills queries up with {token or 'another token than the mask token'!r}")
    if expansion["strategy"] == "fixed":
        lengths["query_length"] = length
    lengths["query_length"] = max(lengths["query_length"], length)
    return lengths | {"query_expansion": length, "attend_to_expansion": bool(expansion.get("attend"))}


def _read_pylate(
    folder: Path, transformer: Module, modules: Sequence[Module], config: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for place in range(len(modules)):
        expect(modules, place, "Dense")
    settings, heads = read_layers(modules, _SOURCE)
    if not modules:
        raise SourcierError(f"{folder}: has no Dense module, and PyLate would make one up: train it first")
    length = config.get("query_length") or 32
    expands = config.get("do_query_expansion") is not False
    words = config.get("skiplist_words")
    settings |= {
        "normalize": True,
        "query_length": length,
        "document_length": config.get("document_length") or 180,
        "query_expansion": length if expands else 0,
        "attend_to_expansion": expands and bool(config.get("attend_to_expansion_tokens")),
        "skip_tokens": known_tokens(transformer.folder, list(string.punctuation) if words is None else words),
    }
    for side, default in (("query", "[Q] "), ("document", "[D] ")):
        marker = config.get(f"{side}_prefix")
        marker = default if marker is None else marker
        prompt = (config.get("prompts") or {}).get(side) or ""
        settings |= {f"{side}_marker": marker, f"{side}_prompt": prompt.removeprefix(marker)}
    return settings, heads
