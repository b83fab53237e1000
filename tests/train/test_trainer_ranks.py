"""The trainer on two Gloo processes: the same weights as on one, the same decisions on both, and no rank left alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model
from toy import Table
from trainer_worker import parts, train

from sourcier.models.checkpoints import load

pytestmark = pytest.mark.slow
WORKER = Path(__file__).with_name("trainer_worker.py")


def launch(task: str, folder: Path, *rest: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return subprocess.run(
        [*launcher, f"--max-restarts={restarts}", str(WORKER), task, str(folder), *rest],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    finished = launch("agree", folder)
    assert finished.returncode == 0, finished.stderr
    return folder


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_two_processes_end_in_the_weights_of_one(ranks: Path, tmp_path: Path) -> None:
    train(tmp_path / "one")
    one, two = (torch.load(run / "last" / "rows.pt") for run in (tmp_path / "one", ranks / "ranks"))
    assert (one - Table().rows).abs().max() > 0.01
    torch.testing.assert_close(two, one, rtol=0, atol=1e-9)


def test_both_processes_report_the_loss_of_the_whole_batch(ranks: Path, tmp_path: Path) -> None:
    train(tmp_path / "one")
    one, two = (
        json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        for run in (tmp_path / "one", ranks / "ranks")
    )
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-9)


def test_both_processes_stop_at_the_same_step(ranks: Path) -> None:
    assert [rank["stopped"] for rank in told(ranks)] == [2, 2]


def test_both_processes_come_to_the_end_where_most_rows_share_a_positive(ranks: Path) -> None:
    """60 of 100 rows, in batches of 8: a sampler that promises more than it yields hangs here. (Hazard A11.)"""
    first, second = (rank["crowded"] for rank in told(ranks))
    assert first == second > 0


def test_both_processes_refuse_rows_that_cannot_be_shared_out(ranks: Path) -> None:
    assert all("no batch has 2 rows" in rank["alone"] for rank in told(ranks))


def test_both_processes_refuse_to_train_with_other_settings_each(ranks: Path) -> None:
    expected = (
        "process 1 was started with learning_rate=1.05, process 0 with learning_rate=0.05: start all alike"
    )
    assert [rank["other rate"] for rank in told(ranks)] == [expected, f"the main process stopped: {expected}"]


def test_both_processes_refuse_to_train_on_other_rows_each(ranks: Path) -> None:
    assert all("process 1 has other examples than process 0" in rank["other rows"] for rank in told(ranks))


def test_processes_that_are_unlike_leave_no_folder_behind(ranks: Path) -> None:
    assert not any(rank["unlike"] for rank in told(ranks))


def test_what_stops_the_main_process_stops_both(ranks: Path) -> None:
    assert all("not empty" in rank["refused"] for rank in told(ranks))


def test_a_process_that_fails_takes_the_others_with_it(tmp_path: Path) -> None:
    started = time.monotonic()
    finished = launch("fail", tmp_path)
    assert finished.returncode != 0
    assert "rank 1 has had enough" in finished.stderr
    assert time.monotonic() - started < 90


def test_a_loss_that_is_no_number_stops_both_processes_at_its_step(tmp_path: Path) -> None:
    """The rows are those of both: 4 and 3 or 4 of the two batches of a step."""
    finished = launch("nan", tmp_path)
    assert finished.returncode == 0, finished.stderr
    said = sorted((json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)), key=len)
    assert said[1].endswith(f"stopped: {said[0]}")
    found = re.match(
        r"the loss is nan at step 2 \(rows ([0-9, ]+) of the examples\); .* step 0: lower", said[0]
    )
    assert found is not None
    assert len(found[1].split(", ")) in (7, 8)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Of a run whose wait for a process that is gone would take five minutes."""
    tiny_model("bert", tmp_path / "base")
    rows = [{"query": f"water {n}", "positive": f"lake {n}", "negatives": [f"file {n}"]} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    what = ["--family", "dense", "--base", str(tmp_path / "base"), "--data", str(tmp_path / "rows.jsonl")]
    how = ["--steps", "6", "--batch-size", "4", "--save-every", "1", "--timeout", "5", "--no-progress"]
    return ["train", *what, *how, "--output", str(tmp_path / "run")]


@pytest.mark.parametrize("where", ["forward", "batch"])
def test_what_fails_in_one_process_is_told_once(where: str, arguments: list[str], tmp_path: Path) -> None:
    """The other process does not add what its connection has to say."""
    started = time.monotonic()
    finished = launch("command", tmp_path, where, *arguments)
    told = [line for line in finished.stderr.splitlines() if line.startswith("sourcier:")]
    assert finished.returncode != 0
    assert told == ["sourcier: unexpected RuntimeError: rank 1 has had enough (--debug shows where)"]
    assert time.monotonic() - started < 120


def test_a_launcher_that_restarts_goes_on_with_the_run(arguments: list[str], tmp_path: Path) -> None:
    """`--resume` begins a run that is not there, so one command does for the first start and for the next."""
    finished = launch("command", tmp_path, "forward", *arguments, "--resume", restarts=1)
    assert finished.returncode == 0, finished.stderr
    assert "has had enough" in finished.stderr
    assert json.loads((tmp_path / "run" / "training.json").read_text())["steps"] == 6


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes trained parts of a tiny model, and left the names of the threads that they ended with."""
    folder = tmp_path_factory.mktemp("together")
    tiny_model("bert", folder / "base")
    finished = launch("parts", folder)
    assert finished.returncode == 0, finished.stderr
    return folder


def test_two_processes_train_a_part_of_a_model_as_one_does(together: Path, tmp_path: Path) -> None:
    """Nobody waits for the gradient of what is frozen."""
    tiny_model("bert", tmp_path / "base")
    parts(tmp_path)
    for name in ("adapters", "layers"):
        one, two = (load(folder / name / "last").state_dict() for folder in (tmp_path, together))
        for weight, value in one.items():
            torch.testing.assert_close(two[weight], value, rtol=0, atol=1e-7, msg=f"{name}: {weight}")


@pytest.mark.skipif(sys.platform != "linux", reason="the names of threads are read from /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_script_that_ends_has_ended_its_group(rank: int, together: Path) -> None:
    """A thread of Gloo's that outlives the interpreter may abort a process whose work is done."""
    assert "gloo" not in (together / f"threads{rank}").read_text()
