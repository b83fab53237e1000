"""FSDP2 on two Gloo processes does what one process does, and leaves what one leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sharding_worker import CASES, train
from tiny import WORDS, tiny_model

from sourcier.train.sharding import sharding_plugin
from sourcier.types import SourcierError

WORKER = Path(__file__).with_name("sharding_worker.py")


def test_the_first_fsdp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(SourcierError, match="--fsdp_version 2"):
        sharding_plugin(False)


def test_nothing_is_sharded_where_nobody_asks() -> None:
    assert sharding_plugin(False) is None


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    for kind in ("bert", "mpnet"):
        tiny_model(kind, folder / kind)
    beir = folder / "beir"
    (beir / "qrels").mkdir(parents=True)
    texts = [" ".join(WORDS[2 * row : 2 * row + 3 + row % 3]) for row in range(12)]
    documents = [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(texts)]
    queries = [{"_id": f"q{row}", "text": text.split()[1]} for row, text in enumerate(texts)]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (beir / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    judgments = "".join(f"q{row}\td{row}\t1\n" for row in range(12))
    (beir / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgments)
    return folder


@pytest.fixture(scope="module")
def found(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it in one launch."""
    folder = tmp_path_factory.mktemp("sharded")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    finished = subprocess.run(
        [*launcher, str(WORKER), str(base), str(folder)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def one(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("one") / "run"
    train(base, run)
    return run


def cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "cases.json").read_text())
    assert len(found) == len(CASES)
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{file.name} {name}": value for file in files for name, value in load_file(file).items()}


def apart(one: Path, other: Path) -> float:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.slow
def test_the_comparison_compares_something(found: Path) -> None:
    assert all(case["largest"] > 1e-4 and case["way"] > 1e-4 for case in cases(found))
    assert {case["case"]["family"] for case in cases(found)} == {"dense", "splade", "sparse_embed", "colbert"}


@pytest.mark.slow
def test_each_layer_and_the_step_are_sharded(found: Path) -> None:
    assert {tuple(case["wrapped"]) for case in cases(found)} == {
        ("FSDPTrainingStep", "FSDPBertLayer", "FSDPBertLayer"),
        ("FSDPTrainingStep", "FSDPMPNetLayer", "FSDPMPNetLayer"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", ["loss", "gradient", "weight"])
def test_sharded_steps_are_those_of_one_process(found: Path, what: str) -> None:
    assert [case for case in cases(found) if not case[what] < 1e-6] == []


@pytest.mark.slow
def test_saved_weights_are_those_that_training_ended_with(found: Path) -> None:
    assert [case for case in cases(found) if case["saved"] != 0.0] == []


@pytest.mark.slow
def test_a_sharded_run_ends_as_a_run_of_one_process(found: Path, one: Path) -> None:
    assert apart(one / "last", found / "straight" / "last") < 1e-6
    summaries = [json.loads((run / "training.json").read_text()) for run in (one, found / "straight")]
    assert summaries[0]["best"] == summaries[1]["best"]
    assert [summary["processes"] for summary in summaries] == [1, 2]


@pytest.mark.slow
def test_a_sharded_run_that_was_stopped_ends_as_one_that_was_not(found: Path) -> None:
    assert apart(found / "straight" / "last", found / "stopped" / "last") == 0.0


@pytest.mark.slow
def test_adapters_are_merged_into_what_a_sharded_run_saves(found: Path, base: Path, one: Path) -> None:
    assert apart(one / "last", found / "adapted" / "last") > 1e-5
