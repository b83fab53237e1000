"""The files by which sentence-transformers opens a folder of ours, with the same vectors.

They stand beside our own and share the backbone's and the tokenizer's files; where its library has no setting for
one of ours, none are written: no folder says what is not so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from sourcier.config import write_json
from sourcier.models.colbert import ColBERT
from sourcier.models.dense import Dense
from sourcier.models.encoder import SearchModel
from sourcier.models.foreign.st_dense import POOLING
from sourcier.models.foreign.st_modules import ACTIVATIONS, CONFIG, MODEL_TYPES, MODULES
from sourcier.models.foreign.st_sparse import own_weights
from sourcier.models.projection import Layer, ProjectionLayer
from sourcier.models.splade import Splade
from sourcier.types import Side

_PACKAGE = "sentence_transformers"
_CLASSES = {
    "Transformer": f"{_PACKAGE}.base.modules.transformer.Transformer",
    "Dense": f"{_PACKAGE}.base.modules.dense.Dense",
    "Normalize": f"{_PACKAGE}.base.modules.normalize.Normalize",
    "Router": f"{_PACKAGE}.base.modules.router.Router",
    "Pooling": f"{_PACKAGE}.sentence_transformer.modules.pooling.Pooling",
    "SpladePooling": f"{_PACKAGE}.sparse_encoder.modules.splade_pooling.SpladePooling",
    "SparseStaticEmbedding": f"{_PACKAGE}.sparse_encoder.modules.sparse_static_embedding.SparseStaticEmbedding",
    "MultiVectorMask": f"{_PACKAGE}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
}
#: Texts on which a marker that is put before them has to give the tokens that inserting its id gives.
_PROBES = ("find a well", "Water, 2 springs", " it rains", "(a)", "")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One module with its settings and weights."""

    kind: str
    config: dict[str, Any]
    weights: dict[str, Tensor] = field(default_factory=dict)


def write(model: SearchModel, folder: Path) -> None:
    """Adds the files to a folder with the backbone and the tokenizer, if that library can be told all settings."""
    config = model.config
    if config.query_suffix or config.document_suffix:
        return
    if isinstance(model, Dense):
        _write_steps(folder, model, _dense_steps(model))
    elif isinstance(model, ColBERT):
        markers = {side: _marker_text(model, side) for side in model.tokens.lengths}
        if None not in markers.values():
            _write_steps(
                folder, model, _colbert_steps(model), markers={k: v or "" for k, v in markers.items()}
            )
    elif isinstance(model, Splade) and config.query_terms == config.document_terms:
        if not config.document_only:
            _write_steps(folder, model, [_splade_pooling(model)])
        elif model.backbone.vocabulary == len(model.tokenizer):
            _write_routes(folder, model)


def _dense_steps(model: Dense) -> list[Step]:
    config = model.config
    ways = (config.pooling,) if isinstance(config.pooling, str) else config.pooling
    named = [POOLING[way] for way in ways]
    pooling = {
        "embedding_dimension": model.backbone.hidden_size,
        "pooling_mode": named[0] if len(named) == 1 else named,
        "include_prompt": config.pool_prompt,
    }
    steps = [Step(kind="Pooling", config=pooling), *_projection_steps(model.projection, "sentence_embedding")]
    if config.similarity == "cosine" and config.normalize:
        steps.append(_normalize("sentence_embedding"))
    return steps


def _colbert_steps(model: ColBERT) -> list[Step]:
    skipped = [str(token) for token in model.tokenizer.convert_ids_to_tokens(model.skipped.tolist())]
    mask = {"skiplist_words": skipped, "skiplist_tasks": ["document"], "keep_only_token_ids": None}
    steps = _projection_steps(model.projection, "token_embeddings")
    steps.append(Step(kind="MultiVectorMask", config=mask))
    if model.config.normalize:
        steps.append(_normalize("token_embeddings"))
    return steps


def _splade_pooling(model: Splade) -> Step:
    config = {
        "pooling_strategy": model.config.pooling,
        "activation_function": "log1p_relu" if model.config.log_twice else "relu",
        "embedding_dimension": model.backbone.vocabulary,
    }
    return Step(kind="SpladePooling", config=config)


def _projection_steps(projection: nn.Linear | nn.Sequential | None, source: str) -> list[Step]:
    if projection is None:
        return []
    if isinstance(projection, nn.Linear):
        size, dimension = projection.in_features, projection.out_features
        weights = {"linear.weight": projection.weight}
        return [_dense(size, Layer(dimension=dimension), weights, source)]
    return [_projection_step(layer, source) for layer in projection if isinstance(layer, ProjectionLayer)]


def _projection_step(layer: ProjectionLayer, source: str) -> Step:
    named = {name.replace("shortcut.", "residual."): tensor for name, tensor in layer.state_dict().items()}
    return _dense(layer.linear.in_features, layer.described, named, source)


def _dense(size: int, layer: Layer, weights: dict[str, Tensor], source: str) -> Step:
    config: dict[str, Any] = {
        "in_features": size,
        "out_features": layer.dimension,
        "bias": layer.bias,
        "activation_function": ACTIVATIONS[layer.activation],
        "module_input_name": source,
        "module_output_name": source,
    }
    return Step(
        kind="Dense", config=config | ({"use_residual": True} if layer.residual else {}), weights=weights
    )


def _normalize(source: str) -> Step:
    return Step(kind="Normalize", config={"module_input_name": source, "module_output_name": source})


def _marker_text(model: ColBERT, side: Side) -> str | None:
    """What put before a text makes its marker of it; None where no text does."""
    tokens, marker = model.tokens, str(getattr(model.config, f"{side}_marker"))
    if not marker:
        return ""
    prompted = [tokens.prompts[side] + text for text in _PROBES]
    expected = [row.tolist() for row in tokens.rows(_PROBES, side)]
    for text in (marker, marker + " "):
        texts = [text + one for one in prompted]
        found = tokens.tokenizer(texts, truncation=True, max_length=tokens.lengths[side])["input_ids"]
        if found == expected:
            return text
    return None


def _write_steps(
    folder: Path, model: SearchModel, steps: Sequence[Step], markers: dict[Side, str] | None = None
) -> None:
    """A model as modules one behind the other, the backbone at the root."""
    write_json(folder / "sentence_bert_config.json", _transformer_config(model))
    listed = [("Transformer", "")]
    for number, step in enumerate(steps, start=1):
        _write_step(folder / f"{number}_{step.kind}", step)
        listed.append((step.kind, f"{number}_{step.kind}"))
    _write_model(folder, model, listed, markers or {})


def _write_routes(folder: Path, model: Splade) -> None:
    """A model of documents beside a table for the tokens of queries; the backbone stays at the root."""
    write_json(folder / "sentence_bert_config.json", _transformer_config(model))
    lookup, pooling = "query_0_SparseStaticEmbedding", "document_1_SpladePooling"
    weights = model.query_weights
    if weights is None:
        weights = own_weights(model.tokenizer, model.backbone.vocabulary)
    _write_step(
        folder / lookup,
        Step(kind="SparseStaticEmbedding", config={"frozen": True}, weights={"weight": weights}),
    )
    tokenizer = model.tokenizer
    limit = tokenizer.model_max_length
    # Read without the tokens that frame a text.
    tokenizer.model_max_length = model.config.query_length - tokenizer.num_special_tokens_to_add()
    tokenizer.save_pretrained(folder / lookup)
    tokenizer.model_max_length = limit
    _write_step(folder / pooling, _splade_pooling(model))
    types = {lookup: "SparseStaticEmbedding", ".": "Transformer", pooling: "SpladePooling"}
    routes = {
        "types": {name: _CLASSES[kind] for name, kind in types.items()},
        "structure": {"query": [lookup], "document": [".", pooling]},
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }
    write_json(folder / "router_config.json", routes)
    _write_model(folder, model, [("Router", "")], {})


def _transformer_config(model: SearchModel) -> dict[str, Any]:
    """How texts become tokens and tokens vectors."""
    config, sparse = model.config, isinstance(model, Splade)
    written: dict[str, Any] = {
        "transformer_task": "fill-mask" if sparse else "feature-extraction",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "logits" if sparse else "last_hidden_state"}
        },
        "module_output_name": "token_embeddings",
        "max_seq_length": max(config.query_length, config.document_length),
        "query_length": config.query_length,
        "document_length": config.document_length,
    }
    if isinstance(model, ColBERT) and config.query_expansion:
        written["query_expansion"] = {
            "strategy": "min",
            "attend": config.attend_to_expansion,
            "token": None,
            "length": min(config.query_expansion, config.query_length),
        }
    return written


def _write_step(folder: Path, step: Step) -> None:
    folder.mkdir()
    write_json(folder / "config.json", step.config)
    if step.weights:
        # Copies: a file may not hold the memory of one tensor twice.
        weights = {name: weight.detach().clone().contiguous().cpu() for name, weight in step.weights.items()}
        save_file(weights, folder / "model.safetensors")


def _write_model(
    folder: Path, model: SearchModel, listed: Sequence[tuple[str, str]], markers: dict[Side, str]
) -> None:
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": _CLASSES[kind]}
        for number, (kind, path) in enumerate(listed)
    ]
    config = model.config
    described: dict[str, Any] = {
        "model_type": MODEL_TYPES[model.family],
        "prompts": {side: markers.get(side, "") + prompt for side, prompt in model.tokens.prompts.items()},
        "default_prompt_name": None,
        "similarity_fn_name": {"dense": getattr(config, "similarity", None), "splade": "dot"}.get(
            model.family, "maxsim"
        ),
    }
    if isinstance(model, Splade) and config.query_terms is not None:
        described["max_active_dims"] = config.query_terms
    write_json(folder / MODULES, modules)
    write_json(folder / CONFIG, described)
