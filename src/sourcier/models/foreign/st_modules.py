"""The modules of a sentence-transformers folder: `modules.json`, and what each keeps in its own folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from torch import Tensor

from sourcier.models.foreign.found import read_json, read_json_list, read_optional_json, read_weights
from sourcier.models.projection import Layer
from sourcier.types import SourcierError

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"
MODEL_TYPES = {
    "dense": "SentenceTransformer",
    "splade": "SparseEncoder",
    "colbert": "MultiVectorEncoder",
}
#: The classes of torch by which a `Dense` module names its activation.
ACTIVATIONS = {
    "none": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "silu": "torch.nn.modules.activation.SiLU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
#: Our names of the weights of a `Dense`.
_LAYER_NAMES = {
    "linear.weight": "linear.weight",
    "linear.bias": "linear.bias",
    "residual.weight": "shortcut.weight",
}
_OWN = ("sentence_transformers.", "pylate.")


@dataclass(frozen=True)
class Module:
    """One step of a model: its class without the package, its folder, and where it is listed."""

    kind: str
    folder: Path
    listed: Path

    def config(self) -> dict[str, Any]:
        return read_optional_json(self.folder / "config.json")

    def refuse(self, why: str = "does something that Sourcier has no setting for") -> SourcierError:
        return SourcierError(
            f"{self.listed}: module {self.kind} in '{self.folder.name}' {why}: give the folder of the Hugging Face "
            "model under it as a base, or use sentence-transformers"
        )


def model_type(folder: Path) -> str | None:
    """What kind of model a folder of sentence-transformers or PyLate holds; None where it is no such folder."""
    if not (folder / MODULES).is_file():
        return None
    config = read_optional_json(folder / CONFIG)
    if config.get("model_type") == "ColBERT" or "query_prefix" in config:
        return MODEL_TYPES["colbert"]  # PyLate's
    return str(config.get("model_type") or MODEL_TYPES["dense"])


def read_modules(folder: Path) -> list[Module]:
    """The steps of a model that do something when it encodes."""
    path = folder / MODULES
    entries = [(entry.get("type"), entry.get("path")) for entry in read_json_list(path)]
    modules = [_module(folder, path, kind, where) for kind, where in entries]
    # Dropout does nothing outside of training.
    modules = [module for module in modules if module.kind != "Dropout"]
    if not modules:
        raise SourcierError(f"{path}: lists no modules: restore it")
    return modules


def route_modules(router: Module) -> dict[str, list[Module]]:
    """The steps on each route of a `Router`."""
    path = router.folder / "router_config.json"
    config = read_json(path)
    try:
        modules = {name: _module(router.folder, path, kind, name) for name, kind in config["types"].items()}
        return {route: [modules[name] for name in names] for route, names in config["structure"].items()}
    except (KeyError, AttributeError, TypeError) as error:
        raise SourcierError(
            f"{path}: expected 'types' and the 'structure' of their names: restore it"
        ) from error


def expect(modules: Sequence[Module], place: int, *kinds: str) -> Module:
    """The module at a place, refused where it is of another kind."""
    if place >= len(modules):
        raise SourcierError(f"{modules[-1].listed}: module {kinds[0]} is missing: restore it")
    if modules[place].kind not in kinds:
        raise modules[place].refuse()
    return modules[place]


def read_layers(modules: Sequence[Module], source: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`Dense` modules one behind the other as the settings of a projection, and its weights.

    `source` is what they have to read: vectors of texts or of tokens.
    """
    layers, heads = [], {}
    for number, module in enumerate(modules):
        layer, weights = _read_layer(module, source)
        layers.append(layer)
        heads.update({f"projection.{number}.{name}": weight for name, weight in weights.items()})
    if not layers:
        return {"dimension": None}, {}
    if len(layers) == 1 and layers[0].is_plain:
        weight = heads["projection.0.linear.weight"]
        return {"dimension": layers[0].dimension}, {"projection.weight": weight}
    return {"dimension": layers[-1].dimension, "layers": [asdict(layer) for layer in layers]}, heads


def check_normalize(module: Module, source: str) -> None:
    """Refuses a `Normalize` that works on something else than the vectors that the model gives."""
    config = module.config()
    where = config.get("module_input_name", "sentence_embedding")
    if source not in (where, config.get("module_output_name") or where) or where != source:
        raise module.refuse(f"normalises '{where}'")


def _read_layer(module: Module, source: str) -> tuple[Layer, dict[str, Tensor]]:
    config = read_json(module.folder / "config.json")
    for key in ("in_features", "out_features"):
        if key not in config:
            raise SourcierError(f"{module.folder / 'config.json'}: missing key '{key}': restore the file")
    where = config.get("module_input_name") or source
    if where != source or (config.get("module_output_name") or where) != source:
        raise module.refuse(f"reads '{where}'")
    class_of = config.get("activation_function", ACTIVATIONS["tanh"])
    activations = [
        name for name, path in ACTIVATIONS.items() if path.rsplit(".", 1)[1] == class_of.rsplit(".", 1)[-1]
    ]
    if not activations or not class_of.startswith("torch."):
        raise module.refuse(f"has the activation '{class_of}'")
    weights = read_weights(module.folder)
    _check_layer(module, config, weights)
    layer = Layer(
        dimension=len(weights["linear.weight"]),
        bias="linear.bias" in weights,
        activation=activations[0],  # type: ignore[arg-type]
        residual=bool(config.get("use_residual", False)),
    )
    return layer, {_LAYER_NAMES[name]: weight for name, weight in weights.items()}


def _check_layer(module: Module, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Refuses a `Dense` whose weights are not those of its configuration."""
    out, size = config["out_features"], config["in_features"]
    wanted: dict[str, tuple[int, ...]] = {"linear.weight": (out, size)}
    if config.get("bias", True):
        wanted["linear.bias"] = (out,)
    if config.get("use_residual") and out != size:
        wanted["residual.weight"] = (out, size)
    for name, shape in wanted.items():
        if name not in weights:
            raise SourcierError(f"{module.folder}: weight '{name}' is missing: restore the folder")
        if tuple(weights[name].shape) != shape:
            raise SourcierError(
                f"{module.folder}: weight '{name}' has the shape {tuple(weights[name].shape)}, and config.json says "
                f"{shape}: restore the folder"
            )
    for name in weights:
        if name not in wanted:
            raise SourcierError(
                f"{module.folder}: weight '{name}' has no place by config.json: restore the folder"
            )


def _module(folder: Path, listed: Path, kind: Any, where: Any) -> Module:
    if not isinstance(kind, str) or not isinstance(where, str):
        raise SourcierError(f"{listed}: expected a 'type' and a 'path' of each module: restore it")
    if PureWindowsPath(where).anchor or ".." in PureWindowsPath(where).parts:
        raise SourcierError(f"{listed}: the path '{where}' leads out of the folder: restore it")
    module = Module(kind.rsplit(".", 1)[-1], folder / where, listed)
    if not kind.startswith(_OWN):
        raise module.refuse(f"is code of its own ({kind})")
    return module
