"""`verify` says of equal courses that they are equal, of others what differs first, and when nothing was compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model
from toy import Table, letters
from verify_worker import rows

from sourcier.cli.entry import main
from sourcier.train import launch
from sourcier.train.step import Collator, TrainingStep
from sourcier.train.verify import STEPS, Comparison, Course, Verdict, compare, follow
from sourcier.types import SourcierError

WORKER = Path(__file__).with_name("verify_worker.py")

COURSE = Course(
    loss=2.0,
    gradients={"first": torch.tensor([0.5, 0.0]), "second": torch.tensor([-4.0])},
    weights={"first": torch.tensor([1.0, 1.0]), "second": torch.tensor([3.0])},
    way=0.01,
)


def with_gradient(name: str, *values: float) -> Course:
    return replace(COURSE, gradients={**COURSE.gradients, name: torch.tensor(values)})


def verdict(found: Comparison, processes: int = 2) -> Verdict:
    return Verdict(processes, 5, "float64", found)


def test_a_course_is_equal_to_itself() -> None:
    found = compare(COURSE, COURSE)
    assert (found.loss, found.gradient, found.largest, found.weight, found.different) == (0, 0, 4.0, 0, None)
    assert verdict(found).holds


def test_what_is_equal_is_said_in_one_line() -> None:
    assert str(verdict(compare(COURSE, COURSE))) == (
        "2 processes = 1 on 5 rows in float64: loss differs by 0e+00, gradients by 0e+00 (largest 4), "
        f"weights after {STEPS} steps by 0e+00 (they moved by 1e-02): equal"
    )


def test_rounding_is_no_difference() -> None:
    """The tolerance is a fraction of the largest gradient, 4."""
    assert compare(COURSE, with_gradient("first", 0.5 + 3e-6, 0.0)).different is None


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (with_gradient("second", -4.1), "the gradient of 'second'"),
        (with_gradient("first", 0.5, float("nan")), "the gradient of 'first'"),
        (replace(COURSE, loss=2.1), "the loss (2 and 2.1)"),
        (replace(COURSE, loss=float("nan")), "the loss (2 and nan)"),
        (replace(COURSE, weights={**COURSE.weights, "second": torch.tensor([3.001])}), "'second'"),
    ],
    ids=["gradient", "gradient that is no number", "loss", "loss that is no number", "weight"],
)
def test_the_first_difference_is_named(other: Course, named: str) -> None:
    found = verdict(compare(COURSE, other))
    assert not found.holds
    assert str(found).endswith(f"NOT EQUAL, first in {named}")
    assert "2 processes ≠ 1" in str(found)


def test_zero_gradients_compare_nothing() -> None:
    zero = replace(COURSE, gradients={name: value * 0 for name, value in COURSE.gradients.items()})
    found = verdict(compare(zero, zero))
    assert (found.holds, str(found)) == (False, "nothing compared: all gradients are zero")


def test_one_process_compares_nothing() -> None:
    found = verdict(compare(COURSE, COURSE), processes=1)
    assert (found.holds, str(found)) == (False, "nothing compared: there is 1 process")


def test_weights_are_left_out_in_single_precision() -> None:
    """A gradient that is rounding alone takes AdamW anywhere."""
    other = replace(COURSE, weights={name: value + 1 for name, value in COURSE.weights.items()})
    assert compare(COURSE, other, dtype="float32").different is None


def test_a_course_holds_the_first_gradients_and_the_last_weights() -> None:
    model = Table()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before, steps = model.rows.detach().clone(), []

    def update() -> None:
        assert model.rows.grad is not None
        steps.append(model.rows.grad.clone())
        optimizer.step()
        optimizer.zero_grad()

    step = TrainingStep.Config().build(model)  # type: ignore[arg-type]
    batch = Collator(model, 2)(letters(4, negatives=2)[:4])  # type: ignore[arg-type]
    course = follow(step, model, batch, update)
    assert len(steps) == STEPS
    assert torch.equal(course.gradients["rows"], steps[0])
    torch.testing.assert_close(course.weights["rows"], before - 0.5 * sum(steps))
    assert course.way == pytest.approx((0.5 * sum(steps)).abs().max().item())


def test_a_parameter_without_gradient_is_named() -> None:
    model = Table()
    model.unused = torch.nn.Parameter(torch.zeros(1))
    step = TrainingStep.Config().build(model)  # type: ignore[arg-type]
    batch = Collator(model)(letters(2)[:2])  # type: ignore[arg-type]
    with pytest.raises(SourcierError, match="'unused' gets no gradient"):
        follow(step, model, batch, lambda: None)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("bert", tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture
def command(base: Path, tmp_path: Path) -> list[str]:
    """What the user types, behind `sourcier`."""
    data = tmp_path / "rows.jsonl"
    rows().to_jsonl(data)
    return ["verify", "--family", "dense", "--base", str(base), "--data", str(data), "--negatives", "1"]


def test_what_is_unequal_is_a_failure(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unequal = verdict(compare(COURSE, replace(COURSE, loss=3.0)))
    monkeypatch.setattr(launch, "in_processes", lambda work, *arguments, processes: unequal)
    assert main(command) == 1
    assert "NOT EQUAL, first in the loss" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_starts_the_processes_itself(command: list[str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "sourcier", *command, "--processes", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
    )
    assert finished.returncode == 0, finished.stderr
    values = json.loads(finished.stdout)
    assert (values["processes"], values["rows"], values["equal"]) == (2, 5, True)
    assert values["gradient"] < 1e-9 < values["largest_gradient"]


@pytest.mark.slow
def test_an_error_in_the_processes_is_one_line(command: list[str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "sourcier", *command, "--negatives", "3"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("sourcier: ")
    assert "negatives" in finished.stderr.splitlines()[-1]


def told(base: Path, folder: Path, fault: str) -> dict[str, Any]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    finished = subprocess.run(
        [*launcher, str(WORKER), str(base), str(folder / "told.json"), fault],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return dict(json.loads((folder / "told.json").read_text()))


@pytest.mark.slow
def test_documents_that_come_without_gradients_are_found(base: Path, tmp_path: Path) -> None:
    found = told(base, tmp_path, "gather")
    assert (found["holds"], found["different"].startswith("the gradient of 'backbone.")) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "sharded"])
def test_two_processes_of_a_launcher_are_equal_to_one(base: Path, tmp_path: Path, fault: str) -> None:
    assert told(base, tmp_path, fault)["holds"]
