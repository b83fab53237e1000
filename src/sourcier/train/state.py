"""What a run has to remember so that it goes on as if it had never stopped.

A state is a folder:

    weights.safetensors   what is trained, as it is: adapters are not merged
    optimizer.pt          what the optimizer knows of each weight
    run.pt                step and standing, the states of the run's parts, and the random numbers of each process
    sums.json             a hash of each of these files: a damaged one would be trained on without a word

The learning rate, the weight of a regulariser and the order of rows need no room: they follow from the step, the epoch
and the settings.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from sourcier.config import write_json
from sourcier.train.sharding import part_of, whole, whole_tree
from sourcier.types import SourcierError

WEIGHTS, OPTIMIZER, RUN, SUMS = "weights.safetensors", "optimizer.pt", "run.pt", "sums.json"


class Stateful(Protocol):
    """A part of a run that remembers something: plain values, lists and dictionaries of them, and tensors."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> object: ...


class RandomNumbers(TypedDict):
    """Where the random number generators of a process stand."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor
    device: Tensor | None  # None on the CPU


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment, as its main process can write it."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    random_numbers: list[RandomNumbers]
    frozen: str  # a hash


@dataclass
class RunState:
    """Writes and reads the state of a run.

    Every process has the module and the optimizer; `parts` may be other ones on the main process, which is the one
    that writes. What it says of a part is what all processes that have the part are told.
    """

    accelerator: Accelerator
    module: nn.Module
    optimizer: Optimizer
    parts: dict[str, Stateful]

    def collect(self) -> Snapshot:
        """What `write` needs of all processes, which all have to call this."""
        weights = {name: whole(tensor.detach()) for name, tensor in _trained(self.module).items()}
        optimizer = whole_tree(self.optimizer.state_dict())
        random_numbers = gather_object([_random_numbers(self.accelerator.device)])
        return Snapshot(weights, optimizer, random_numbers, self._frozen)

    def write(self, folder: Path, snapshot: Snapshot, **values: Any) -> None:
        """Fills the folder; `values` are given back by `read`."""
        weights = {name: tensor.cpu().contiguous() for name, tensor in snapshot.weights.items()}
        save_file(weights, folder / WEIGHTS)
        torch.save(snapshot.optimizer, folder / OPTIMIZER)
        scaler = self.accelerator.scaler
        run = {
            "values": values,
            "parts": {name: dict(part.state_dict()) for name, part in self.parts.items()},
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": snapshot.random_numbers,
            "frozen": snapshot.frozen,
        }
        torch.save(run, folder / RUN)
        write_json(folder / SUMS, {name: _sum(folder / name) for name in (WEIGHTS, OPTIMIZER, RUN)})

    def read(self, folder: Path) -> dict[str, Any]:
        """Brings the run to where it was; gives the values that were written. Random numbers come last of all."""
        _check_sums(folder)
        run = _load(folder / RUN)
        if run["frozen"] != self._frozen:
            raise SourcierError(
                f"{folder}: the weights that are not trained differ from those of the run: restore its base"
            )
        _fill(_trained(self.module), folder / WEIGHTS)
        self._remember(_load(folder / OPTIMIZER))
        for name, part in self.parts.items():
            if name not in run["parts"]:
                raise SourcierError(f"{folder / RUN}: knows nothing of '{name}': start a new run")
            part.load_state_dict(run["parts"][name])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(run["scaler"])
        if len(run["random"]) == self.accelerator.num_processes:
            _set_random_numbers(run["random"][self.accelerator.process_index], self.accelerator.device)
        values: dict[str, Any] = run["values"]
        return values | {"processes": len(run["random"])}

    def _remember(self, state: dict[str, Any]) -> None:
        """Gives the optimizer what it knew, of which each process may keep a part."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            known = state["state"].get(number, {})
            for name, value in known.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    known[name] = part_of(value, parameter)
        self.optimizer.load_state_dict(state)

    @cached_property
    def _frozen(self) -> str:
        """A hash of the parameters that are not trained, and so are not in the state."""
        digest = hashlib.blake2b(digest_size=16)
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                digest.update(name.encode())
                digest.update(
                    whole(parameter.detach()).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
                )
        return digest.hexdigest()


def _check_sums(folder: Path) -> None:
    """Refuses a state whose files are not, byte for byte, those that were written."""
    path = folder / SUMS
    try:
        sums = json.loads(path.read_bytes())
        for name in (WEIGHTS, OPTIMIZER, RUN):
            path = folder / name
            if _sum(path) != sums[name]:
                raise SourcierError(f"{path}: is damaged: restore it, or start a new run")
    except OSError as error:
        raise SourcierError(
            f"{path}: cannot be read ({error.strerror}): every process must see it"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise SourcierError(f"{folder / SUMS}: is damaged: restore it, or start a new run") from error


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _trained(module: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters and buffers that count, each under one name."""
    kept = module.state_dict().keys()
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    return trained | {name: value for name, value in module.named_buffers() if name in kept}


def _fill(wanted: dict[str, Tensor], path: Path) -> None:
    """Copies the tensors of a file into those of a module, all of them or none."""
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise SourcierError(f"{path}: cannot be read ({error}): every process must see it") from error
    for name in sorted(stored.keys() ^ wanted.keys()):
        raise SourcierError(
            f"{path}: weight '{name}' is not in the state and in the model alike: start a new run"
        )
    for name, tensor in wanted.items():
        if stored[name].shape != tensor.shape:
            found, asked = tuple(stored[name].shape), tuple(tensor.shape)
            raise SourcierError(
                f"{path}: weight '{name}' has the shape {found}, not {asked}: start a new run"
            )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(part_of(stored[name], tensor))


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds: archive, pickle, file
        raise SourcierError(
            f"{path}: cannot be read ({type(error).__name__}): every process must see it, whole"
        ) from error


def _random_numbers(device: torch.device) -> RandomNumbers:
    own: dict[str, Any] = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": own
        | {"state": own["state"] | {"key": torch.from_numpy(own["state"]["key"].astype(np.int64))}},
        "torch": torch.get_rng_state(),
        "device": None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(),
    }


def _set_random_numbers(numbers: RandomNumbers, device: torch.device) -> None:
    random.setstate(numbers["python"])
    own = numbers["numpy"]
    key = own["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state(own | {"state": own["state"] | {"key": key}})
    torch.set_rng_state(numbers["torch"])
    if numbers["device"] is not None and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(numbers["device"])
