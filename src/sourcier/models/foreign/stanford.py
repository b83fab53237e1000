"""ColBERT as Stanford's library writes it: `linear.weight` beside the backbone's weights, settings in
`artifact.metadata`, or that library's defaults where the file is missing."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from sourcier.models.foreign.found import Foreign, has_weight, read_optional_json, read_weights
from sourcier.models.tokens import load_tokenizer
from sourcier.types import SourcierError

_METADATA = "artifact.metadata"
_WEIGHT = "linear.weight"


def family_of(folder: Path, wanted: str | None) -> str | None:
    """ "colbert" for a folder that this file reads."""
    if not (folder / "config.json").is_file():
        return None
    marked = "HF_ColBERT" in (read_optional_json(folder / "config.json").get("architectures") or [])
    return "colbert" if marked or has_weight(folder, _WEIGHT) else None


def read(folder: Path, family: str) -> Foreign:
    weights = read_weights(folder)
    if _WEIGHT not in weights:
        raise SourcierError(
            f"{folder}: weight '{_WEIGHT}' of ColBERT is missing: restore the file of weights"
        )
    metadata = read_optional_json(folder / _METADATA)
    metadata = metadata.get("config") or metadata
    for key, known in (("similarity", "cosine"), ("interaction", "colbert")):
        if (metadata.get(key) or known) != known:
            raise SourcierError(
                f"{folder / _METADATA}: '{key}' is '{metadata[key]}', and only '{known}' is known"
            )
    dimension = len(weights[_WEIGHT])
    if (metadata.get("dim") or dimension) != dimension:
        raise SourcierError(
            f"{folder / _METADATA}: 'dim' is {metadata['dim']}, and '{_WEIGHT}' has {dimension} rows: restore it"
        )
    length = metadata.get("query_maxlen") or 32
    settings: dict[str, Any] = {
        "dimension": dimension,
        "query_marker": metadata.get("query_token_id") or "[unused0]",
        "document_marker": metadata.get("doc_token_id") or "[unused1]",
        "query_length": length,
        "document_length": metadata.get("doc_maxlen") or 220,
        "query_expansion": length,
        "attend_to_expansion": bool(metadata.get("attend_to_mask_tokens")),
        "skip_punctuation": False,
        "skip_tokens": _first_tokens(folder) if metadata.get("mask_punctuation", True) else [],
    }
    return Foreign(
        origin=folder, settings=settings, backbone=folder, heads={"projection.weight": weights[_WEIGHT]}
    )


def _first_tokens(folder: Path) -> list[str]:
    """The first token of each punctuation mark, which is what that library skips."""
    tokenizer = load_tokenizer(str(folder))
    rows = [tokenizer(mark, add_special_tokens=False)["input_ids"] for mark in string.punctuation]
    return [str(tokenizer.convert_ids_to_tokens(number)) for number in sorted({row[0] for row in rows})]
