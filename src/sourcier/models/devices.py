"""Devices, by the names that users give them."""

from __future__ import annotations

import torch

from sourcier.types import SourcierError


def check_device(name: str | None, *, given_as: str) -> None:
    """Refuses a device that is none, or that this machine lacks; without a name it is the CPU.

    `given_as` is what an error says before it: the flag or setting, with the name.
    """
    try:
        device = torch.device(name or "cpu")
        module = None if device.type == "cpu" else torch.get_device_module(device)
    except RuntimeError as error:
        raise SourcierError(f"{given_as}: is no device of PyTorch: give cpu, cuda or cuda:1") from error
    if module is not None and (device.index or 0) >= (count := module.device_count()):
        raise SourcierError(f"{given_as}: this machine has {count} of that kind: name another one")
