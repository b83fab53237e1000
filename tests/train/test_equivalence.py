"""Two and three Gloo processes give the loss and the gradient of one: every family on every kind of base."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from equivalence_worker import KINDS
from tiny import tiny_model

WORKER = Path(__file__).with_name("equivalence_worker.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 3])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All cases in one launch."""
    folder = tmp_path_factory.mktemp("equivalence")
    for kind in ("bert", *KINDS):
        tiny_model(kind, folder / kind)
    result = folder / "result.json"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(request.param),
    ]
    finished = subprocess.run(
        [*command, str(WORKER), str(folder), str(result)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return list(json.loads(result.read_text()))


def test_the_comparison_compares_something(results: list[dict[str, Any]]) -> None:
    assert all(case["norm"] > 1e-4 for case in results)
    assert {case["negatives"] for case in results} == {0, 1, 2}
    assert {case["family"] for case in results} == {"dense", "splade", "sparse_embed", "colbert"}
    assert {case["kind"] for case in results if case["checkpointed"]} == {"bert", *KINDS}


def test_losses_are_equal(results: list[dict[str, Any]]) -> None:
    assert [case for case in results if not case["loss"] < 1e-6] == []


def test_gradients_are_equal(results: list[dict[str, Any]]) -> None:
    assert [case for case in results if not case["gradient"] < 1e-6] == []
