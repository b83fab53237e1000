"""SPLADE, SparseEmbed and ColBERT of neural-cherche: a masked language model, `metadata.json`, and `linear.pt`.

Its prefixes are ordinary text, its sparse families put mask tokens behind each text, and what they keep of a text are
as many terms as it may have tokens. Its queries and documents are padded to their full length; the vectors of padding
are zeros there, and left out here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sourcier.models.foreign.found import Foreign, read_json, read_weight
from sourcier.models.tokens import load_tokenizer
from sourcier.types import SourcierError

_METADATA, _LINEAR = "metadata.json", "linear.pt"
_FAMILIES = ("splade", "sparse_embed", "colbert")
#: Where `metadata.json` of an earlier release lacks a key: the prefixes that its classes start with, and mask tokens.
_PREFIXES = {"colbert": ("[Q] ", "[D] "), "splade": ("", ""), "sparse_embed": ("", "")}
_MASKS = 3


def family_of(folder: Path, wanted: str | None) -> str | None:
    """The family of a folder that this file reads: `wanted`, or that which writes such files."""
    path = folder / _METADATA
    if not path.is_file() or not (folder / "config.json").is_file():
        return None
    metadata = read_json(path)
    if not {"max_length_query", "max_length_document"} <= set(metadata):
        return None
    if wanted in _FAMILIES:
        return wanted
    if not (folder / _LINEAR).is_file():
        return "splade"
    return "sparse_embed" if "n_mask_tokens" in metadata else "colbert"


def read(folder: Path, family: str) -> Foreign:
    path = folder / _METADATA
    metadata = read_json(path)
    for key in ("truncation", "add_special_tokens"):
        if metadata.get(key, True) is not True:
            raise SourcierError(f"{path}: '{key}' is {metadata[key]!r}, and only true is known: set it")
    query, document = _PREFIXES[family]
    lengths = {"query": metadata["max_length_query"], "document": metadata["max_length_document"]}
    settings: dict[str, Any] = {
        "query_prompt": metadata.get("query_prefix", query),
        "document_prompt": metadata.get("document_prefix", document),
        **{f"{side}_length": length for side, length in lengths.items()},
    }
    if family != "colbert":
        masks = _masks(folder, metadata.get("n_mask_tokens", _MASKS))
        settings |= {"query_suffix": masks, "document_suffix": masks}
        settings |= {f"{side}_terms": length for side, length in lengths.items()}
    if family == "splade":
        return Foreign(origin=folder, settings=settings, backbone=folder)
    weight = read_weight(folder / _LINEAR, "weight")
    settings["dimension"] = len(weight)
    if family == "sparse_embed":
        settings["attention"] = "terms"
    else:
        settings |= {
            "query_marker": "",
            "document_marker": "",
            "query_expansion": 0,
            "skip_punctuation": False,
        }
    return Foreign(origin=folder, settings=settings, backbone=folder, heads={"projection.weight": weight})


def _masks(folder: Path, count: int) -> str:
    """What is put behind each text: a space, and mask tokens."""
    return " " + " ".join([str(load_tokenizer(str(folder)).mask_token)] * count)
