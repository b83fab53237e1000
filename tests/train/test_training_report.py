"""What a run writes while it goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sourcier.train.health import HealthRule
from sourcier.train.report import Averages, Report, clock, to_numbers


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append((step, values))


def loss(value: float) -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(value)}


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(path: Path, losses: list[float], **settings: Any) -> list[dict[str, Any]]:
    with Report(path, steps=len(losses), show=False, **settings) as report:
        for step, value in enumerate(losses, start=1):
            report.step(step, loss(value), examples=4, epoch=step / 2, learning_rate=0.1)
    return written(path)


def test_a_line_holds_the_mean_since_the_last_one(tmp_path: Path) -> None:
    lines = run(tmp_path / "metrics.jsonl", [1.0, 3.0, 5.0, 9.0], log_every=2)
    assert [(line["step"], line["loss"]) for line in lines] == [(2, 2.0), (4, 7.0)]


def test_the_last_step_is_written_whatever_its_number(tmp_path: Path) -> None:
    lines = run(tmp_path / "metrics.jsonl", [1.0, 3.0, 5.0], log_every=2)
    assert [(line["step"], line["loss"]) for line in lines] == [(2, 2.0), (3, 5.0)]


def test_a_line_holds_rate_epoch_speed_and_time(tmp_path: Path) -> None:
    (line,) = run(tmp_path / "metrics.jsonl", [1.0, 1.0], log_every=2)
    assert (line["learning_rate"], line["epoch"]) == (0.1, 1.0)
    assert line["examples_per_second"] > 0
    assert line["seconds"] >= 0


def test_a_figure_that_json_cannot_hold_is_null(tmp_path: Path) -> None:
    (line,) = run(tmp_path / "metrics.jsonl", [float("inf")], log_every=1)
    assert line["loss"] is None


def test_pauses_do_not_count_for_the_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight examples, 2 s of training around 100 s of evaluation: 4 a second."""
    times = iter([0.0, 1.0, 101.0, 102.0, 102.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    path = tmp_path / "metrics.jsonl"
    with Report(path, steps=2, log_every=2, show=False) as report:
        report.step(1, loss(1.0), examples=4, epoch=1.0, learning_rate=0.1)
        with report.paused():
            pass
        report.step(2, loss(1.0), examples=4, epoch=2.0, learning_rate=0.1)
    assert written(path)[0]["examples_per_second"] == 4.0


def test_trackers_get_the_same_figures(tmp_path: Path) -> None:
    recorder = Recorder()
    (line,) = run(tmp_path / "metrics.jsonl", [2.0], log_every=1, tracker=recorder)
    ((step, values),) = recorder.calls
    assert step == 1
    assert values == {name: value for name, value in line.items() if name not in ("step", "seconds")}


def test_evaluations_stand_among_the_steps_and_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    with Report(path, steps=1, log_every=1) as report:
        report.evaluation(0, {"dev/nDCG@10": 0.5}, "step 0: dev nDCG@10 0.5")
        report.step(1, loss(1.0), examples=4, epoch=1.0, learning_rate=0.1)
    assert written(path)[0]["dev/nDCG@10"] == 0.5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "step 0: dev nDCG@10 0.5"
    assert captured.err.splitlines()[1].startswith("step 1/1 · loss 1 · ")
    assert captured.err.splitlines()[1].endswith(" examples/s · 0:00 left")


def test_averages_start_anew_after_they_are_taken() -> None:
    averages = Averages()
    for value in (1.0, 2.0):
        averages.add(loss(value))
    assert to_numbers(averages.take()) == {"loss": 1.5}
    averages.add(loss(7.0))
    assert to_numbers(averages.take()) == {"loss": 7.0}


def test_time_left_as_people_read_it() -> None:
    assert [clock(seconds) for seconds in (4.6, 65, 7200)] == ["0:05", "1:05", "2:00:00"]


def test_a_figure_of_some_steps_is_their_mean() -> None:
    averages = Averages()
    averages.add({"loss": torch.tensor(1.0)})
    averages.add({"loss": torch.tensor(3.0), "health/margin": torch.tensor(5.0)})
    assert to_numbers(averages.take()) == {"loss": 2.0, "health/margin": 5.0}


FLAT = {"margin": 1.0, "separation": 3.0, "mean_cosine": 0.4, "random": 0.3, "score_spread": 0.01}


def warned(path: Path, steps: range, state: Any = None) -> tuple[list[str], Any]:
    """The warnings in the file after steps whose scores a temperature of 1 hides, and the report's state."""
    figures = {f"health/{name}": torch.tensor(value) for name, value in FLAT.items()}
    rule = HealthRule(family="dense", loss="contrastive", temperature=1.0, learning_rate=0.1, warmup_steps=0)
    with Report(path, steps=20, log_every=1, show=False, rule=rule) as report:
        if state:
            report.load_state_dict(state)
        for step in steps:
            report.step(step, loss(1.0) | figures, examples=1, epoch=0.0, learning_rate=0.1)
        return [line["warning"] for line in written(path) if "warning" in line], report.state_dict()


def test_what_the_rule_says_is_written_once_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines, _ = warned(tmp_path / "metrics.jsonl", range(1, 11))
    assert len(lines) == 1
    assert lines == [record.getMessage() for record in caplog.records]


def test_a_resumed_report_does_not_warn_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    _, state = warned(path, range(1, 6))
    lines, _ = warned(path, range(6, 11), state)
    assert len(lines) == 1
