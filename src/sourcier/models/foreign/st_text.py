"""How a sentence-transformers folder treats texts before the model: prompts, lengths, lower case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sourcier.models.foreign.found import read_optional_json
from sourcier.models.foreign.st_modules import CONFIG, Module

#: Texts of a tokenizer that knows no limit are cut here.
_ENDLESS = 1_000_000
_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
_OUTPUTS = {"feature-extraction": "last_hidden_state", "fill-mask": "logits"}
#: Options that change how vectors are computed, not which: of the model, and of the tokenizer.
_HARMLESS = {"attn_implementation", "padding_side", "model_max_length", "use_fast"}
_OPTIONS = (
    "model_kwargs",
    "model_args",
    "config_kwargs",
    "config_args",
    "processor_kwargs",
    "tokenizer_args",
)


def read_prompts(folder: Path) -> dict[str, str]:
    """Prompts as `encode_query` and `encode_document` put them before texts; others have to be asked for by name."""
    prompts = read_optional_json(folder / CONFIG).get("prompts") or {}
    return {f"{side}_prompt": prompts.get(side) or "" for side in ("query", "document")}


def read_transformer(module: Module, task: str = "feature-extraction") -> dict[str, Any]:
    """The settings of a `Transformer` module, which has to give what a family reads."""
    files = [module.folder / name for name in _FILES if (module.folder / name).is_file()]
    config = read_optional_json(files[0]) if files else {}
    given = config.get("transformer_task", task if module.kind == "MLMTransformer" else "feature-extraction")
    if given != task:
        raise module.refuse(f"has the task '{given}'")
    for name in _OPTIONS:
        odd = sorted(set(config.get(name) or {}) - _HARMLESS)
        if odd:
            raise module.refuse(f"sets {name}: {odd[0]}")
    if config.get("processing_kwargs"):
        raise module.refuse("sets processing_kwargs")
    ways = config.get("modality_config") or {}
    if "message" in ways:
        raise module.refuse("writes texts into a chat template")
    output = ways.get("text", {}).get("method_output_name", _OUTPUTS[task])
    if output not in (_OUTPUTS[task], [_OUTPUTS[task]]):
        raise module.refuse(f"gives '{output}'")
    return config


def read_lengths(module: Module, config: dict[str, Any]) -> dict[str, int]:
    """The longest query and document in tokens."""
    limit = longest(module.folder, config)
    return {name: config.get(name) or limit for name in ("query_length", "document_length")}


def longest(folder: Path, config: dict[str, Any]) -> int:
    """How many tokens of a text are read where nothing is said of its side."""
    options = config.get("processor_kwargs") or config.get("tokenizer_args") or {}
    for said in (options.get("model_max_length"), config.get("max_seq_length")):
        if said is not None:
            return int(said)
    limits = (
        read_optional_json(folder / "tokenizer_config.json").get("model_max_length"),
        read_optional_json(folder / "config.json").get("max_position_embeddings"),
    )
    return min([_ENDLESS, *(int(limit) for limit in limits if limit is not None and limit > 0)])


def lowers(config: dict[str, Any]) -> bool:
    """Whether texts are made lower case first."""
    return bool(config.get("do_lower_case"))
