"""`import sourcier` is quick and light; its public names are all there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sourcier

HEAVY = ["torch", "faiss", "ray", "transformers", "numba", "datasets", "accelerate", "ir_measures", "pyarrow"]

# What a script sees in a fresh process; the time is the least of a few, since other work shares the machine.
PROBE = """
import sys, time
start = time.perf_counter()
import sourcier
seconds = time.perf_counter() - start
sourcier.Document("1", "text"), sourcier.Hits, dir(sourcier)
print(seconds, [name for name in {heavy} if name in sys.modules])
"""


def test_import_loads_no_heavy_library_and_is_quick() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROBE.format(heavy=HEAVY)], capture_output=True, text=True, check=True
        ).stdout.split(" ", 1)
        for _ in range(3)
    ]
    assert {loaded.strip() for _, loaded in outputs} == {"[]"}
    assert min(float(seconds) for seconds, _ in outputs) < 0.3


@pytest.mark.parametrize("name", sourcier.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    pytest.importorskip("torch")
    assert getattr(sourcier, name).__name__ == name


def test_dir_holds_the_public_names() -> None:
    assert set(sourcier.__all__) <= set(dir(sourcier))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sourcier' has no attribute 'Trainr'"):
        _ = sourcier.Trainr
