"""`SentenceTransformer` folders: a Transformer, a Pooling, any number of Dense, and a Normalize or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sourcier.models.foreign.found import Foreign, read_json, read_optional_json
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
from sourcier.models.foreign.st_text import lowers, read_lengths, read_prompts, read_transformer
from sourcier.types import SourcierError

#: Our names of the ways to pool, and theirs, in the order in which folders of old put them side by side.
POOLING = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean",
    "last": "lasttoken",
}
_OF_OLD = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_SOURCE = "sentence_embedding"


def family_of(folder: Path, wanted: str | None) -> str | None:
    """ "dense" for a folder that this file reads."""
    kind = model_type(folder)
    if kind is not None and kind not in MODEL_TYPES.values():
        raise SourcierError(f"{folder}: is a {kind} of sentence-transformers: give the folder of an encoder")
    return "dense" if kind == MODEL_TYPES["dense"] else None


def read(folder: Path, family: str) -> Foreign:
    modules = read_modules(folder)
    transformer = expect(modules, 0, "Transformer")
    pooling = expect(modules, 1, "Pooling")
    rest = modules[2:]
    normalized = bool(rest) and rest[-1].kind == "Normalize"
    if normalized:
        check_normalize(rest[-1], _SOURCE)
    dense = rest[:-1] if normalized else rest
    for place in range(len(dense)):
        expect(dense, place, "Dense")
    layers, heads = read_layers(dense, _SOURCE)
    config = read_transformer(transformer)
    settings = (
        read_prompts(folder) | read_lengths(transformer, config) | _read_pooling(pooling) | layers
    ) | _read_similarity(folder, normalized)
    return Foreign(
        origin=folder, settings=settings, backbone=transformer.folder, heads=heads, lower=lowers(config)
    )


def _read_pooling(module: Module) -> dict[str, Any]:
    config = read_json(module.folder / "config.json")
    ways = _named_ways(module, config) if "pooling_mode" in config else _flagged_ways(module, config)
    if not ways:
        raise module.refuse("turns no way to pool on")
    return {"pooling": ways, "pool_prompt": config.get("include_prompt", True)}


def _named_ways(module: Module, config: dict[str, Any]) -> list[str]:
    given = config["pooling_mode"]
    ours = {theirs: name for name, theirs in POOLING.items()}
    named = given if isinstance(given, list) else [given]
    for name in named:
        if not isinstance(name, str) or name not in ours:
            raise module.refuse(f"pools by {name!r}")
    return [ours[name] for name in named]


def _flagged_ways(module: Module, config: dict[str, Any]) -> list[str]:
    """Folders of old turn each way on or off, and mean the mean where they say nothing of it."""
    flags = {"pooling_mode_mean_tokens": not any(config.get(key) for key in _OF_OLD)} | {
        key: on for key, on in config.items() if key.startswith("pooling_mode_")
    }
    for key, on in flags.items():
        if on and key not in _OF_OLD:
            raise module.refuse(f"sets '{key}'")
    return [name for key, name in _OF_OLD.items() if flags.get(key)]


def _read_similarity(folder: Path, normalized: bool) -> dict[str, Any]:
    config = read_optional_json(folder / CONFIG)
    if config.get("truncate_dim") is not None:
        raise SourcierError(
            f"{folder / CONFIG}: 'truncate_dim' cuts vectors, which Sourcier does not: remove the key"
        )
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in ("cosine", "dot"):
        raise SourcierError(f"{folder / CONFIG}: 'similarity_fn_name' is '{similarity}', not cosine or dot")
    # The scores of vectors of length 1 are the same by either name.
    return {
        "similarity": "cosine" if normalized else similarity,
        "normalize": normalized or similarity == "dot",
    }
