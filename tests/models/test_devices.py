"""Devices that users name: those that are here pass, others are told apart."""

from __future__ import annotations

import pytest

from sourcier.models.devices import check_device
from sourcier.types import SourcierError


@pytest.mark.parametrize("name", [None, "cpu", "cpu:0"])
def test_the_cpu_is_always_here(name: str | None) -> None:
    check_device(name, given_as="--device")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "is no device of PyTorch: give cpu, cuda or cuda:1"),
        ("0", "is no device of PyTorch: give cpu, cuda or cuda:1"),
        ("meta", "is no device of PyTorch: give cpu, cuda or cuda:1"),
        ("cuda:99", "this machine has [0-9]+ of that kind: name another one"),
    ],
)
def test_what_is_not_here_is_one_line(name: str, message: str) -> None:
    with pytest.raises(SourcierError, match=f"^--device {name}: {message}$"):
        check_device(name, given_as=f"--device {name}")
