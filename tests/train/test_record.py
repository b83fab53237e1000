"""What a run's config.yaml remembers: enough to build its model as it was before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model

from sourcier.config import write_yaml
from sourcier.models.dense import Dense
from sourcier.train.record import Origin, RunRecord, check_alike, model_at_start, new_model
from sourcier.train.settings import Settings
from sourcier.types import SourcierError


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(tiny_model("bert", tmp_path / "base"))


def record(model: Dense, base: str | None) -> RunRecord:
    return RunRecord.of(Origin(base=base, data="docs"), model, Settings(output="run", seed=3))


def run_of(model: Dense, data: str = "docs", **settings: Any) -> RunRecord:
    return RunRecord.of(Origin(base=None, data=data), model, Settings(**{"output": "run"} | settings))


def test_processes_of_one_run_have_the_same_settings(base: str) -> None:
    model = new_model("dense", base, {}, seed=0)
    with pytest.raises(SourcierError, match=r"process 1 was started with learning_rate=0.5, process 0 with"):
        check_alike([run_of(model), run_of(model, learning_rate=0.5)], "ee")


def test_processes_of_one_run_have_the_same_model(base: str) -> None:
    model, other = (new_model("dense", base, {"dimension": size}, seed=0) for size in (4, 8))
    with pytest.raises(
        SourcierError, match="process 2 was started with dimension=8, process 0 with dimension=4"
    ):
        check_alike([run_of(model), run_of(model), run_of(other)], "eee")


def test_processes_of_one_run_may_have_other_paths(base: str) -> None:
    model = new_model("dense", base, {}, seed=0)
    check_alike([run_of(model), run_of(model, data="/mnt/docs", output="/mnt/run")], "ee")


def test_the_model_at_the_start_has_the_head_that_was_drawn(base: str, tmp_path: Path) -> None:
    torch.manual_seed(99)  # what happened before does not matter
    model = new_model("dense", base, {"dimension": 4}, seed=3)
    write_yaml(tmp_path / "config.yaml", record(model, base))
    torch.manual_seed(1)
    assert model_at_start(tmp_path).fingerprint() == model.fingerprint()


def test_drawing_a_head_leaves_the_random_numbers_as_they_were(base: str) -> None:
    state = torch.get_rng_state()
    new_model("dense", base, {"dimension": 4}, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_record_reads_back_as_it_was_written(base: str, tmp_path: Path) -> None:
    written = record(new_model("dense", base, {}, seed=3), base)
    write_yaml(tmp_path / "config.yaml", written)
    assert RunRecord.read(tmp_path / "config.yaml") == written


def test_a_run_of_an_unnamed_base_cannot_be_built_again(base: str, tmp_path: Path) -> None:
    write_yaml(tmp_path / "config.yaml", record(new_model("dense", base, {}, seed=3), None))
    with pytest.raises(SourcierError, match=r"config\.yaml: does not say what base"):
        model_at_start(tmp_path)


def test_a_model_of_ours_keeps_its_settings(base: str, tmp_path: Path) -> None:
    new_model("dense", base, {"dimension": 4}, seed=3).save_pretrained(tmp_path / "model")
    ours = str(tmp_path / "model")
    assert new_model("dense", ours, {"dimension": 4}, seed=0).config.dimension == 4
    with pytest.raises(SourcierError, match="has settings of its own: leave out dimension"):
        new_model("dense", ours, {"dimension": 8}, seed=0)


def test_an_unknown_family_is_an_error() -> None:
    with pytest.raises(SourcierError, match="family=colbret must be one of dense"):
        new_model("colbret", "base", {}, seed=0)
