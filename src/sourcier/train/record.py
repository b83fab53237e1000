"""What a run was made of, as config.yaml says it: enough to repeat it, and to build its model as it was at step 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from sourcier.config import from_dict, read_yaml, to_dict
from sourcier.models.checkpoints import FAMILIES, MANIFEST
from sourcier.models.encoder import SearchModel
from sourcier.train.settings import Settings
from sourcier.types import SourcierError

#: What changes nothing in what is learned, so that it may be another after a stop.
FREE = ("output", "progress", "log_with", "workers", "timeout", "save_every", "sharded")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a model is made of and what it is trained on, as the command line names it."""

    base: str | None = None
    data: str | None = None
    split: str | None = None
    dev: str | None = None
    dev_split: str | None = None
    lenient: bool = False


@dataclass(frozen=True, kw_only=True)
class RunRecord(Origin):
    """What the file holds; `--config` reads the same keys, of which it needs none."""

    family: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, origin: Origin, model: SearchModel, settings: Settings) -> RunRecord:
        """The record of a run."""
        named = {item.name: getattr(origin, item.name) for item in fields(Origin)}
        return cls(**named, family=model.family, model=to_dict(model.config), train=to_dict(settings))

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        return from_dict(cls, read_yaml(path), where=str(path))

    def check_same(self, now: RunRecord, *, where: Path) -> None:
        """Refuses to go on with other settings than these, which stand in the file `where`."""
        began = to_dict(self) | {"train": to_dict(from_dict(Settings, self.train, where=f"{where}: train"))}
        for name, before, value in _differences(began, to_dict(now)):
            raise SourcierError(
                f"{where}: the run began with {name}={before}, not {value}: leave it as it was, or start a new run"
            )


def check_alike(records: Sequence[RunRecord], examples: Sequence[str]) -> None:
    """Refuses processes of one run that were not started alike, or whose examples differ (a digest of each is given).

    Where data and base lie may differ by machine.
    """
    first, *others = ({"model": record.model, "train": record.train} for record in records)
    for process, other in enumerate(others, start=1):
        for name, value, found in _differences(first, other):
            raise SourcierError(
                f"process {process} was started with {name}={found}, process 0 with {name}={value}: start all alike"
            )
    for process, digest in enumerate(examples):
        if digest != examples[0]:
            raise SourcierError(
                f"process {process} has other examples than process 0: give all of them the same file"
            )


def new_model(family: str, base: str, settings: Mapping[str, Any], *, seed: int) -> SearchModel:
    """A model on a Hugging Face base, or one of ours that is trained on and keeps its settings."""
    if family not in FAMILIES:
        raise SourcierError(f"family={family} must be one of {', '.join(FAMILIES)}")
    if (Path(base) / MANIFEST).is_file():
        model = FAMILIES[family].from_pretrained(base)
        own = to_dict(model.config)
        other = [name for name, value in settings.items() if own.get(name) != value]
        if other:
            raise SourcierError(f"{base} has settings of its own: leave out {', '.join(other)}")
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for the heads that the base does not have
        return FAMILIES[family].from_base(base, **settings)


def model_at_start(run: str | Path) -> SearchModel:
    """The model of a run as it was before the first step."""
    path = Path(run) / "config.yaml"
    record = RunRecord.read(path)
    if record.family is None or record.base is None:
        raise SourcierError(
            f"{path}: does not say what base the model was made of: add the keys family and base"
        )
    settings = from_dict(Settings, record.train, where=f"{path}: train")
    return new_model(record.family, record.base, record.model, seed=settings.seed)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The settings in `now` that decide what is learned and are not as in `before`: name, value before, value now."""
    known = dict(_leaves(before))
    for path, value in _leaves(now):
        free = path[0] == "train" and path[1] in FREE
        if not free and known.get(path) != value:
            yield path[-1], known.get(path), value


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The settings of all sections, each with the names that lead to it."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value
