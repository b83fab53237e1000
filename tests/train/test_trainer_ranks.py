"""The trainer on two Gloo processes: the same weights as on one, the same decisions on both, and no rank left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Table
from trainer_worker import train

pytestmark = pytest.mark.slow
WORKER = Path(__file__).with_name("trainer_worker.py")


def launch(task: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return subprocess.run(
        [*command, str(WORKER), task, str(folder)], capture_output=True, text=True, timeout=180, check=False
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
    assert all("no batch has a row for each process" in rank["alone"] for rank in told(ranks))


def test_what_stops_the_main_process_stops_both(ranks: Path) -> None:
    assert all("not empty" in rank["refused"] for rank in told(ranks))


def test_a_process_that_fails_takes_the_others_with_it(tmp_path: Path) -> None:
    started = time.monotonic()
    finished = launch("fail", tmp_path)
    assert finished.returncode != 0
    assert "rank 1 has had enough" in finished.stderr
    assert time.monotonic() - started < 90
