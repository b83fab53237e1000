"""`SparseEncoder` folders: a masked-language model with SpladePooling, for both sides or for documents alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from sourcier.models.foreign.found import Foreign, read_optional_json, read_weight
from sourcier.models.foreign.st_modules import (
    CONFIG,
    MODEL_TYPES,
    Module,
    expect,
    model_type,
    read_modules,
    route_modules,
)
from sourcier.models.foreign.st_text import longest, lowers, read_lengths, read_prompts, read_transformer
from sourcier.models.tokens import load_tokenizer
from sourcier.types import SourcierError


def family_of(folder: Path, wanted: str | None) -> str | None:
    """ "splade" for a folder that this file reads."""
    return "splade" if model_type(folder) == MODEL_TYPES["splade"] else None


def read(folder: Path, family: str) -> Foreign:
    modules = read_modules(folder)
    first = expect(modules, 0, "Transformer", "MLMTransformer", "Router")
    settings = read_prompts(folder) | _read_config(folder)
    heads: dict[str, torch.Tensor] = {}
    lookup: Module | None = None
    if first.kind == "Router":
        if len(modules) > 1:
            raise modules[1].refuse()
        modules, lookup = _routes(first)
    transformer = expect(modules, 0, "Transformer", "MLMTransformer")
    pooling = expect(modules, 1, "SpladePooling")
    if len(modules) > 2:
        raise modules[2].refuse()
    config = read_transformer(transformer, "fill-mask")
    settings |= read_lengths(transformer, config) | _read_pooling(pooling)
    if lookup is not None:
        lengths_and_weights, heads = _read_lookup(lookup)
        settings |= lengths_and_weights
    return Foreign(
        origin=folder, settings=settings, backbone=transformer.folder, heads=heads, lower=lowers(config)
    )


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_optional_json(folder / CONFIG)
    similarity = config.get("similarity_fn_name") or "dot"
    if similarity != "dot":
        raise SourcierError(
            f"{folder / CONFIG}: 'similarity_fn_name' is '{similarity}', not dot: remove the key"
        )
    kept = config.get("max_active_dims")
    return {"query_terms": kept, "document_terms": kept}


def _read_pooling(module: Module) -> dict[str, Any]:
    config = module.config()
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum"):
        raise module.refuse(f"pools by '{pooling}'")
    if activation not in ("relu", "log1p_relu"):
        raise module.refuse(f"has the activation '{activation}'")
    return {"pooling": pooling, "log_twice": activation == "log1p_relu"}


def _routes(router: Module) -> tuple[list[Module], Module]:
    """The modules of documents, and the table that stands for a model of queries."""
    routes = route_modules(router)
    queries, documents = routes.get("query", []), routes.get("document", [])
    if len(routes) != 2 or not queries or not documents:
        raise router.refuse("has other routes than 'query' and 'document'")
    expect(queries, 0, "SparseStaticEmbedding")
    if len(queries) > 1:
        raise queries[1].refuse()
    return documents, queries[0]


def _read_lookup(module: Module) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Queries that are looked up token by token, with the weight of each."""
    if "path" in module.config():
        raise module.refuse("keeps its weights in a JSON file")
    tokenizer = load_tokenizer(str(module.folder))
    weights = read_weight(module.folder, "weight")
    if len(weights) < len(tokenizer):
        raise module.refuse(f"has weights of {len(weights)} tokens, and its tokenizer {len(tokenizer)}")
    # They are looked up without the special tokens that frame a text, which count in our lengths.
    frame = tokenizer("")["input_ids"]
    length = longest(module.folder, {}) + len(frame)
    settings: dict[str, Any] = {"document_only": True, "query_length": length}
    if torch.equal(weights, own_weights(tokenizer, len(weights))):
        return settings, {}
    weights = weights.float()
    weights[frame] = 0
    return settings | {"token_weights": True}, {"query_weights": weights}


def own_weights(tokenizer: PreTrainedTokenizerBase, size: int) -> torch.Tensor:
    """What our models of documents alone give to the tokens of a query: 1 for each but the special ones. [V]"""
    weights = torch.ones(size)
    weights[tokenizer.all_special_ids] = 0
    return weights
