"""The loop, on a model that is a table: what it learns, writes, keeps and refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import NOTHING, Table, letters

from sourcier.config import from_dict, read_yaml
from sourcier.data.collections import Collection, Corpus, Query
from sourcier.data.lines import ReadReport
from sourcier.train.standing import Standing, TrainingResult
from sourcier.train.step import TrainingStep
from sourcier.train.trainer import Trainer
from sourcier.types import Document, SourcierError

#: Stands for a collection where what is measured on it is scripted.
DEV: Any = object()


def train(
    output: Path,
    model: Table | None = None,
    *,
    dev: Collection | None = None,
    negatives: int = 0,
    **settings: Any,
) -> TrainingResult:
    config = Trainer.Config(
        output=str(output),
        negatives=negatives,
        progress=False,
        **{"batch_size": 4, "learning_rate": 0.05} | settings,
    )
    return config.build(model or Table(), letters(negatives=negatives), dev).run()


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> torch.Tensor:
    return torch.load(folder / "rows.pt")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the evaluations of a run, the one at step 0 among them, find the given values."""

    def script(*values: float) -> None:
        remaining: Iterator[float] = iter(values)

        class Scripted:
            def __init__(self, part: Any, metric: str) -> None:
                self.part = part

            def __call__(self, model: Table) -> float:
                return next(remaining)

        monkeypatch.setattr("sourcier.train.trainer.take_part", lambda dev, **settings: NOTHING)
        monkeypatch.setattr("sourcier.train.trainer.Validation", Scripted)

    return script


def test_the_loss_falls_to_nearly_nothing(tmp_path: Path) -> None:
    """Four documents by chance: ln 4 = 1.39 or more."""
    train(tmp_path, steps=80, log_every=1)
    losses = [line["loss"] for line in lines(tmp_path)]
    assert losses[0] > 1
    assert losses[-1] < 0.05


def test_two_runs_with_one_seed_end_in_equal_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tmp_path / name, steps=5)
    assert torch.equal(weights(tmp_path / "a" / "last"), weights(tmp_path / "b" / "last"))


def test_another_seed_takes_another_order(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        train(tmp_path / name, steps=5, seed=seed)
    assert not torch.equal(weights(tmp_path / "a" / "last"), weights(tmp_path / "b" / "last"))


def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path: Path) -> None:
    """The pairwise loss is a mean over rows, so two halves of an epoch's only batch average to the whole."""
    step = TrainingStep.Config(loss="pairwise")
    for name, batch_size, accumulation in (("whole", 8, 1), ("halves", 4, 2)):
        train(
            tmp_path / name, steps=3, negatives=2, step=step, batch_size=batch_size, accumulation=accumulation
        )
    whole, halves = weights(tmp_path / "whole" / "last"), weights(tmp_path / "halves" / "last")
    assert (whole - Table().rows).abs().max() > 0.01
    torch.testing.assert_close(halves, whole, rtol=0, atol=1e-12)


def test_steps_come_from_epochs_batches_and_accumulation(tmp_path: Path) -> None:
    """8 rows in batches of 4 are 2 batches an epoch, 6 in three epochs, 3 steps of two batches."""
    assert train(tmp_path, epochs=3, accumulation=2).steps == 3


def test_every_step_has_the_rate_of_the_schedule(tmp_path: Path) -> None:
    train(tmp_path, steps=5, warmup=0.4, learning_rate=1.0, log_every=1)
    assert [line["learning_rate"] for line in lines(tmp_path)] == pytest.approx([1 / 2, 1, 1, 2 / 3, 1 / 3])


def test_clipping_bounds_the_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = []

    def note(model: torch.nn.Module, step: Any) -> None:
        norms.append(float(model.rows.grad.norm()))

    original = torch.optim.AdamW.step
    model = Table()
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *rest: (note(model, self), original(self, *rest))[1]
    )
    train(tmp_path, model, steps=2, clip=0.01)
    assert norms == pytest.approx([0.01, 0.01], rel=1e-3)


def test_metrics_hold_loss_parts_rate_epoch_and_speed(tmp_path: Path) -> None:
    train(tmp_path, steps=4, log_every=2)
    expected = {
        "step",
        "loss",
        "ranking",
        "accuracy",
        "learning_rate",
        "epoch",
        "examples_per_second",
        "seconds",
    }
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]
    assert all(expected <= set(line) for line in lines(tmp_path))


def test_best_is_the_best_and_last_is_the_last(tmp_path: Path, scripted: Any) -> None:
    scripted(0.1, 0.5, 0.3)
    result = train(tmp_path / "long", dev=DEV, steps=4, eval_every=2)
    assert (result.best, result.best_step) == (0.5, 2)
    at_two, at_four = weights(result.best_folder), weights(result.last_folder)
    assert not torch.equal(at_two, at_four)
    assert [line["dev/nDCG@10"] for line in lines(tmp_path / "long") if "dev/nDCG@10" in line] == [
        0.1,
        0.5,
        0.3,
    ]


def test_a_run_that_makes_it_worse_keeps_the_model_as_it_came(tmp_path: Path, scripted: Any) -> None:
    scripted(0.9, 0.5)
    before = Table().rows.detach()
    result = train(tmp_path, dev=DEV, steps=2, eval_every=2)
    assert result.best_step == 0
    assert torch.equal(weights(result.best_folder), before)


def test_a_metric_that_nobody_knows_leaves_no_folder_behind(tmp_path: Path) -> None:
    dev = Collection(Corpus.of([Document("n", "n")]), {"a": Query("a", "a")}, {"a": {"n": 1}}, ReadReport())
    with pytest.raises(SourcierError, match="nDGC"):
        train(tmp_path / "run", dev=dev, metric="nDGC@10")
    assert not (tmp_path / "run").exists()


def test_without_dev_the_last_is_the_best(tmp_path: Path) -> None:
    result = train(tmp_path, steps=3)
    assert (result.metric, result.best, result.best_step) == (None, None, 3)
    assert torch.equal(weights(result.best_folder), weights(result.last_folder))


def test_stops_early_after_as_many_misses_as_patience_allows(tmp_path: Path, scripted: Any) -> None:
    scripted(0.1, 0.5, 0.4, 0.5)
    result = train(tmp_path, dev=DEV, steps=10, eval_every=1, patience=2)
    assert (result.steps, result.stopped_early, result.best_step) == (3, True, 1)


def test_an_equal_value_is_no_better_one() -> None:
    assert Standing(0.5, 4, 1).after(8, 0.5) == Standing(0.5, 4, 2)
    assert Standing(0.5, 4, 2).after(8, 0.6) == Standing(0.6, 8, 0)


def test_a_run_evaluates_before_it_begins_and_four_times(tmp_path: Path, scripted: Any) -> None:
    scripted(0.0, 0.1, 0.2, 0.3, 0.4)
    train(tmp_path, dev=DEV, steps=10)
    assert [line["step"] for line in lines(tmp_path) if "dev/nDCG@10" in line] == [0, 3, 6, 9, 10]


class FailsLater(Table):
    """From one forward on, of which a step has two, what it computes is no number."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.left = first - 1

    def forward(self, features: dict[str, torch.Tensor], side: str) -> Any:
        self.left -= 1
        with torch.no_grad():
            self.rows[13] = math.nan if self.left < 0 else self.rows[13]
        return super().forward(features, side)


class FallsApart(Table):
    """After so many steps the gradient is infinite, though the loss is not."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.rows.register_hook(self.gradient)

    def gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        self.steps -= 1
        return gradient if self.steps >= 0 else gradient * math.inf


def test_a_loss_that_is_no_number_names_step_and_rows(tmp_path: Path) -> None:
    """The letter `n` answers the query in row 0 alone."""
    said = (
        r"loss is nan at step 3 \(rows 0, .*\); .*state holds the finite state of step 2: lower learning_rate"
    )
    with pytest.raises(SourcierError, match=said):
        train(tmp_path, FailsLater(5), steps=5, batch_size=8, save_every=1)


def test_a_model_that_fell_apart_is_not_saved(tmp_path: Path) -> None:
    said = (
        r"weight 'rows' is not finite after step 3, which is not saved; .* the finite state of step 2: lower"
    )
    with pytest.raises(SourcierError, match=said):
        train(tmp_path, FallsApart(2), steps=3, eval_every=1, log_every=1)
    assert weights(tmp_path / "best").isfinite().all()
    assert weights(tmp_path / "last").isfinite().all()
    assert (tmp_path / "state" / "CURRENT").read_text().strip() == "step-000000002"


def test_from_the_last_finite_state_a_run_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="after step 3"):
        train(tmp_path, FallsApart(2), steps=3, eval_every=1)
    given = {"steps": 3, "eval_every": 1, "batch_size": 4, "learning_rate": 0.05, "progress": False}
    Trainer.Config(output=str(tmp_path), **given).build(Table(), letters()).run(resume=True)
    assert weights(tmp_path / "last").isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_comes_with_a_weight_that_is_none_is_refused(tmp_path: Path, value: float) -> None:
    model = Table()
    with torch.no_grad():
        model.rows[13, 0] = value
    with pytest.raises(
        SourcierError, match="weight 'rows' is not finite before the first step: choose another"
    ):
        train(tmp_path, model, steps=5)


def test_what_was_trained_before_is_not_written_over(tmp_path: Path) -> None:
    train(tmp_path, steps=1)
    with pytest.raises(SourcierError, match="not empty"):
        train(tmp_path, steps=1)


def test_the_settings_of_a_run_can_be_read_back(tmp_path: Path) -> None:
    step = TrainingStep.Config(temperature=0.5)
    train(tmp_path, steps=2, eval_every=1, step=step)
    path = tmp_path / "config.yaml"
    config = from_dict(Trainer.Config, read_yaml(path)["train"], where=str(path))
    assert (config.steps, config.eval_every, config.step) == (2, 1, step)


def test_tensorboard_gets_its_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path, steps=2, log_every=1, log_with=("tensorboard",))
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_the_summary_says_how_the_run_ended(tmp_path: Path) -> None:
    train(tmp_path, steps=2)
    summary = json.loads((tmp_path / "training.json").read_text())
    assert summary["steps"] == 2
    assert (summary["processes"], summary["precision"], summary["device"]) == (1, "fp32", "cpu")
    assert summary["parameters"] == 26 * 8


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("batch_size", 0),
        ("steps", 0),
        ("epochs", 0.0),
        ("warmup", 1.0),
        ("negatives", -1),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("epochs", math.inf),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, value: float) -> None:
    with pytest.raises(SourcierError, match=f"{setting}={value} must be"):
        Trainer.Config(output="run", **{setting: value})


@pytest.mark.parametrize(
    ("loss", "negatives", "mend"),
    [
        ("contrastive", 0, "set batch_size=2 or more, or negatives=1 or more"),
        ("symmetric", 0, "set batch_size=2 or more"),
        ("symmetric", 1, "set batch_size=2 or more"),
    ],
)
def test_a_row_that_has_nothing_to_be_compared_with_is_refused(loss: Any, negatives: int, mend: str) -> None:
    step = TrainingStep.Config(loss=loss)
    with pytest.raises(SourcierError, match=f"batch_size=1: loss={loss} compares .* batch: {mend}$"):
        Trainer.Config(output="run", batch_size=1, negatives=negatives, step=step)


@pytest.mark.parametrize("loss", ["contrastive", "pairwise"])
def test_a_row_with_negatives_is_a_batch(loss: Any, tmp_path: Path) -> None:
    step = TrainingStep.Config(loss=loss)
    train(tmp_path, Table(), negatives=1, batch_size=1, epochs=1, step=step)
    assert all(line["loss"] > 0 for line in lines(tmp_path))


def test_a_last_batch_of_one_row_is_left_out(tmp_path: Path) -> None:
    """Eight rows by three: 3, 3 and 2; by seven: 7, and one that is left alone."""
    assert train(tmp_path / "threes", batch_size=3).steps == 3
    assert train(tmp_path / "sevens", batch_size=7).steps == 1


def test_a_single_example_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    config = Trainer.Config(output=str(tmp_path), progress=False)
    with pytest.raises(SourcierError, match=r"1 examples, .* no batch has 2 rows, .*: add examples"):
        config.build(Table(), letters(1))


@pytest.mark.parametrize("loss", ["pairwise", "kl", "margin_mse"])
def test_a_loss_of_own_negatives_needs_some(loss: Any) -> None:
    with pytest.raises(SourcierError, match=f"negatives=0: loss={loss}"):
        Trainer.Config(output="run", step=TrainingStep.Config(loss=loss))
