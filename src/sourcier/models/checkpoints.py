"""A model as one folder.

    sourcier.json          format, family, every setting that changes a vector, the names of the other files and of
                           the heads' weights
    sourcier.safetensors   weights of the heads, in the families that have some
    config.json            the backbone, as transformers writes it: plain `AutoModel` reads the folder too
    model.safetensors      (`AutoModelForMaskedLM` for the sparse families)
    tokenizer.json, …      as the tokenizer writes them
    modules.json, …        by which sentence-transformers opens the folder too (foreign/st_writing.py)

The folder is written whole or not at all. What is missing in it or does not belong to it is an error that names it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sourcier.config import from_dict, to_dict, unknown, write_json
from sourcier.effects import refuse_idle
from sourcier.models import foreign
from sourcier.models.colbert import ColBERT
from sourcier.models.dense import Dense
from sourcier.models.encoder import SearchModel
from sourcier.models.foreign import hub, st_writing
from sourcier.models.foreign.found import Foreign
from sourcier.models.sparse_embed import SparseEmbed
from sourcier.models.splade import Splade
from sourcier.models.tokens import first_line, load_tokenizer
from sourcier.types import SourcierError

FAMILIES: dict[str, type[SearchModel]] = {
    family.family: family for family in (Dense, Splade, SparseEmbed, ColBERT)
}

FORMAT = 1
MANIFEST = "sourcier.json"
HEADS = "sourcier.safetensors"
_KEYS: dict[str, type] = {"format": int, "family": str, "config": dict, "files": list, "weights": list}

Model = TypeVar("Model", bound=SearchModel)


def load(folder: str | Path, device: torch.device | str | None = None) -> SearchModel:
    """The model in a folder, of whichever family it is, and whether we wrote it or a library that we can read."""
    path = Path(folder)
    if not (path / MANIFEST).is_file() and (found := foreign.find(path)) is not None:
        return adopt(FAMILIES[found.family], found.read(), {}).to(device).eval()
    family = _read_manifest(path)["family"]
    if family not in FAMILIES:
        raise SourcierError(f"{path / MANIFEST}: {unknown('family', str(family), FAMILIES)}")
    return restore(FAMILIES[family], path, device)


def restore(cls: type[Model], folder: str | Path, device: torch.device | str | None = None) -> Model:
    """The model of the family `cls` in a folder."""
    path = Path(folder)
    if not (path / MANIFEST).is_file() and (found := foreign.find(path, cls.family)) is not None:
        if found.family != cls.family:
            raise SourcierError(f"{path} holds a {found.family} model, not {cls.family}: use sourcier.load")
        return adopt(cls, found.read(), {}).to(device).eval()
    manifest = _read_manifest(path)
    if manifest["family"] != cls.family:
        raise SourcierError(
            f"{path / MANIFEST}: 'family' is '{manifest['family']}', not '{cls.family}': use sourcier.load"
        )
    for name in manifest["files"]:
        if not (path / name).is_file():
            raise SourcierError(f"{path / name} is missing: restore it, or save the model again")
    config = from_dict(cls.Config, manifest["config"], where=f"{path / MANIFEST}: config")
    # Heads are drawn at random before the stored ones replace them: no business of who loads a model.
    with torch.random.fork_rng(devices=[]):
        model = cls(cls.backbone_class.load(str(path)), load_tokenizer(str(path)), config)
    _load_heads(model, path, manifest["weights"])
    return model.to(device).eval()


def build(
    cls: type[Model], base: str | Path, settings: Mapping[str, Any], dtype: torch.dtype | None = None
) -> Model:
    """A new model on a Hugging Face checkpoint, or one that another library made for this family."""
    path = Path(base)
    if (path / MANIFEST).is_file():
        raise SourcierError(
            f"{base} is a model of Sourcier: from_pretrained loads it with its settings and all its weights"
        )
    found = foreign.find(hub.local(base), cls.family)
    if found is not None and found.family == cls.family:
        return adopt(cls, found.read(), settings, dtype)
    config = from_dict(cls.Config, settings, where=f"settings of {cls.family}")
    refuse_idle(config, cls.Config.idle, config)  # settings of a folder are not asked: nobody chose them now
    tokenizer = load_tokenizer(str(base))
    return cls(cls.backbone_class.load(str(base), dtype=dtype), tokenizer, config)


def adopt(
    cls: type[Model], found: Foreign, settings: Mapping[str, Any], dtype: torch.dtype | None = None
) -> Model:
    """A model of another library as one of ours; `settings` override what its folder says."""
    config = from_dict(cls.Config, {**found.settings, **settings}, where=f"settings of {found.origin}")
    source = str(found.backbone)
    tokenizer = found.prepare(load_tokenizer(source))
    with torch.random.fork_rng(devices=[]):
        model = cls(cls.backbone_class.load(source, dtype=dtype), tokenizer, config)
    _copy(found.heads, _heads(model), found.origin, "leave the setting out that changes it")
    return model


def save(model: SearchModel, folder: str | Path) -> None:
    """Writes a folder beside the final one and renames it; a folder that is no model of ours is left alone."""
    path = Path(os.path.abspath(folder))
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty and not (path / MANIFEST).is_file():
        raise SourcierError(f"{path} exists and is no model of Sourcier: choose another folder")
    if (name := not_finite(model)) is not None:
        raise SourcierError(
            f"{path}: weight '{name}' is not finite, so that nothing is written: train it anew"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    new, old = (path.with_name(f".{path.name}.{os.getpid()}.{part}") for part in ("new", "old"))
    try:
        _write(model, new)
        if path.exists():
            path.rename(old)
        new.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def not_finite(module: nn.Module) -> str | None:
    """The name of the first weight that holds infinity or what is no number; of a shared one, in this process' part."""
    for name, tensor in module.state_dict().items():
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        # The extremes are NaN where any number is; unlike `isfinite` they take no memory.
        if own.is_floating_point() and own.numel() and not torch.stack(own.aminmax()).isfinite().all():
            return name
    return None


def _write(model: SearchModel, folder: Path) -> None:
    folder.mkdir()
    model.backbone.save(folder)
    model.tokenizer.save_pretrained(folder)
    heads = _heads(model)
    if heads:
        save_file({name: tensor.contiguous().cpu() for name, tensor in heads.items()}, folder / HEADS)
    st_writing.write(model, folder)
    manifest = {
        "format": FORMAT,
        "family": model.family,
        "config": to_dict(model.config),
        "files": sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()),
        "weights": sorted(heads),
    }
    write_json(folder / MANIFEST, manifest)


def _heads(model: SearchModel) -> dict[str, torch.Tensor]:
    """The weights that are not the backbone's."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("backbone.")}


def _load_heads(model: SearchModel, folder: Path, stored: list[str]) -> None:
    expected = _heads(model)
    if set(stored) != set(expected):
        odd = sorted(set(stored) ^ set(expected))[0]
        raise SourcierError(f"{folder / MANIFEST}: 'weights' is wrong about '{odd}': save the model again")
    if not expected:
        return
    try:
        weights = load_file(folder / HEADS)
    except (OSError, SafetensorError) as error:
        raise SourcierError(f"{folder / HEADS}: cannot be read: {first_line(error)}") from error
    _copy(weights, expected, folder / HEADS, "restore the file")


def _copy(weights: dict[str, torch.Tensor], heads: dict[str, torch.Tensor], where: Path, mend: str) -> None:
    """Stored weights into the heads of a model, which have to be the same ones."""
    for name in heads:
        if name not in weights:
            raise SourcierError(f"{where}: weight '{name}' is missing: {mend}")
    for name in weights:
        if name not in heads:
            raise SourcierError(f"{where}: weight '{name}' has no place in the model: {mend}")
    for name, tensor in heads.items():
        if weights[name].shape != tensor.shape:
            found, wanted = tuple(weights[name].shape), tuple(tensor.shape)
            raise SourcierError(f"{where}: weight '{name}' has the shape {found}, not {wanted}: {mend}")
        with torch.no_grad():
            tensor.copy_(weights[name])


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise SourcierError(f"{folder}: there is no such folder; check the path")
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourcierError(
            f"{path} is missing: not a model of Sourcier; from_base makes one of a Hugging Face model "
            "(on the command line: --family)"
        ) from error
    except (OSError, ValueError) as error:
        raise SourcierError(f"{path}: cannot be read: {first_line(error)}") from error
    if not isinstance(manifest, dict):
        raise SourcierError(f"{path}: expected keys with values: save the model again")
    version = manifest.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise SourcierError(f"{path}: 'format' is {version}, known up to {FORMAT}: install a newer Sourcier")
    for key, kind in _KEYS.items():
        if key not in manifest:
            raise SourcierError(f"{path}: missing key '{key}': save the model again")
        # True is a whole number to Python.
        if not isinstance(manifest[key], kind) or isinstance(manifest[key], bool):
            raise SourcierError(f"{path}: '{key}' is {manifest[key]!r}: save the model again")
    if version != FORMAT:
        raise SourcierError(f"{path}: 'format' is {version}, which never was: save the model again")
    for key in ("files", "weights"):
        for name in manifest[key]:
            if not isinstance(name, str):
                raise SourcierError(f"{path}: '{key}' lists {name!r}, which is no name: save the model again")
    for key in manifest:
        if key not in _KEYS:
            raise SourcierError(f"{path}: {unknown('key', key, _KEYS)}")
    return manifest
