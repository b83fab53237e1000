"""A run that is stopped anywhere and resumed ends as the one that was never stopped: to the last bit. (Hazard A13.)"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from toy import NOTHING, Table, letters

from sourcier.data.examples import Examples
from sourcier.models.representations import TermWeightRepresentation
from sourcier.train.standing import Standing
from sourcier.train.state import RunState
from sourcier.train.step import TrainingStep
from sourcier.train.trainer import Trainer
from sourcier.train.validation import Part
from sourcier.types import Document, SourcierError

#: Figures that tell the time, which no two runs share.
CLOCK = ("seconds", "examples_per_second")


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


class Terms(Table):
    """Letters as weights of terms, some of them dropped; notes what it was given and what it gave."""

    weighs_terms = True

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[list[int], Tensor]] = []

    def forward(self, features: dict[str, Tensor], side: str) -> Any:
        weights = torch.nn.functional.dropout(self.rows[features["rows"]].relu(), 0.3, self.training)
        self.noted.append((features["rows"].tolist(), weights.detach()))
        return TermWeightRepresentation(weights)


def new_trainer(output: Path, examples: Examples | None = None, **settings: Any) -> Trainer:
    """15 steps: 10 rows in batches of 2, three times, with a regulariser that grows until step 12."""
    step = TrainingStep.Config(flops_document=0.1, sparsity_warmup=12)
    given = {
        "epochs": 3,
        "batch_size": 2,
        "learning_rate": 0.05,
        "log_every": 1,
        "progress": False,
        "step": step,
    }
    return Trainer.Config(output=str(output), **given | settings).build(Terms(), examples or letters(10))


def with_dev(output: Path, **settings: Any) -> Trainer:
    """For evaluations that `script_dev` tells what to find."""
    config = replace(new_trainer(output).config, **settings)
    return Trainer(config, Terms(), letters(10), dev=SimpleNamespace())  # type: ignore[arg-type]


def script_dev(monkeypatch: pytest.MonkeyPatch, found: dict[int, float], part: Part = NOTHING) -> None:
    """Has the evaluation after so many steps find that, and any other 0.2."""

    class Scripted:
        def __init__(self, part: Part, metric: str) -> None:
            self.part = part

        def __call__(self, model: Terms) -> float:
            return found.get(len(model.noted) // 2, 0.2)

    monkeypatch.setattr("sourcier.train.trainer.take_part", lambda dev, **settings: part)
    monkeypatch.setattr("sourcier.train.trainer.Validation", Scripted)


def kill_after(step: int, trainer: Trainer, *, resume: bool = False) -> None:
    """Runs a trainer until that step is made."""
    update = trainer._update

    def limited(number: int) -> None:
        if number > step:
            raise Killed
        update(number)

    trainer._update = limited  # type: ignore[method-assign]
    with pytest.raises(Killed):
        trainer.run(resume=resume)


def weights(run: Path, name: str = "last") -> Tensor:
    return torch.load(run / name / "rows.pt")


def told(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without what the clock says."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that is never stopped."""
    trainer = new_trainer(tmp_path_factory.mktemp("straight") / "run")
    trainer.run()
    return trainer


@pytest.mark.parametrize(("save_every", "goes_on_after"), [(1, 7), (3, 6), (5, 5), (None, 4)])
def test_rows_dropout_and_weights_after_a_stop_are_those_of_the_run_without(
    straight: Trainer, tmp_path: Path, save_every: int | None, goes_on_after: int
) -> None:
    """Each step encodes queries, then documents. Evaluations are at 0, 4, 8, 12 and 15."""
    kill_after(7, new_trainer(tmp_path, save_every=save_every))
    resumed = new_trainer(tmp_path, save_every=save_every)
    assert resumed.run(resume=True).steps == 15
    expected = straight.model.noted[2 * goes_on_after :]
    assert [rows for rows, _ in resumed.model.noted] == [rows for rows, _ in expected]
    assert all(torch.equal(a[1], b[1]) for a, b in zip(resumed.model.noted, expected, strict=True))
    assert torch.equal(weights(tmp_path), weights(straight.folder.path))


def test_the_table_is_no_longer_what_it_was(straight: Trainer) -> None:
    """What the tests here compare was trained, under dropout and a growing regulariser."""
    assert (weights(straight.folder.path) - Table().rows).abs().max() > 0.1
    lines = [line for line in told(straight.folder.path) if "loss" in line]
    penalties = [line["loss"] - line["ranking"] for line in lines]
    assert penalties[0] == 0
    assert penalties[1] > 0
    assert any((values == 0).any() for _, values in straight.model.noted)


@pytest.mark.parametrize("log_every", [1, 3])
def test_the_figures_after_a_stop_are_those_of_the_run_without(tmp_path: Path, log_every: int) -> None:
    """Rate, regulariser, epoch and means, also of steps before the stop; lines after the state are not there twice."""
    new_trainer(tmp_path / "straight", log_every=log_every).run()
    kill_after(7, new_trainer(tmp_path / "run", log_every=log_every, save_every=5))
    new_trainer(tmp_path / "run", log_every=log_every, save_every=5).run(resume=True)
    assert told(tmp_path / "run") == told(tmp_path / "straight")


def test_a_run_that_is_stopped_again_and_again(straight: Trainer, tmp_path: Path) -> None:
    kill_after(1, new_trainer(tmp_path, save_every=2))
    for stop in range(2, 15):
        kill_after(stop, new_trainer(tmp_path, save_every=2), resume=True)
    new_trainer(tmp_path, save_every=2).run(resume=True)
    assert torch.equal(weights(tmp_path), weights(straight.folder.path))
    assert told(tmp_path) == told(straight.folder.path)


def count_calls(monkeypatch: pytest.MonkeyPatch, kill_at: int) -> list[str]:
    """Has the call of that number, of those that write, rename or remove, be the last; gives the calls' names."""
    calls: list[str] = []

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == kill_at:
                raise Killed
            return original(*arguments, **options)

        return call

    for module, name in (
        (torch, "save"),
        (os, "fsync"),
        (os, "rename"),
        (os, "replace"),
        (os, "mkdir"),
        (os, "unlink"),
        (shutil, "rmtree"),
    ):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    return calls


def small(output: Path) -> Trainer:
    return new_trainer(output, epochs=1, steps=2, save_every=1, eval_every=2)


#: How many calls change a file in a run of `small`; each is a place to be killed at.
CALLS = 110


@pytest.mark.parametrize(
    "first", [pytest.param(0), *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))]
)
def test_killed_at_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """At calls that change a file: in states at 0, 1 and 2, of which two bring models, and at the end of the run."""
    straight = tmp_path / "straight"
    small(straight).run()
    for point in range(first + 1, CALLS, 8):
        run = tmp_path / f"run{point}"
        with monkeypatch.context() as patch:
            calls = count_calls(patch, point)
            with suppress(Killed):
                small(run).run()
        assert len(calls) <= CALLS
        assert small(run).run(resume=True).steps == 2, calls
        assert torch.equal(weights(run), weights(straight)), calls
        assert torch.equal(weights(run, "best"), weights(straight, "best")), calls
        assert told(run) == told(straight), calls
        assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in straight.iterdir())


def test_the_model_of_the_best_evaluation_outlives_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dev is best at step 4; what is left of an evaluation after the state does not count."""

    script_dev(monkeypatch, {0: 0.1, 4: 0.9})
    kill_after(7, with_dev(tmp_path))
    at_four = weights(tmp_path, "best")
    result = with_dev(tmp_path).run(resume=True)
    assert (result.best, result.best_step) == (0.9, 4)
    assert torch.equal(weights(tmp_path, "best"), at_four)


def test_patience_that_had_run_out_is_not_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_dev(monkeypatch, {})
    trainer = with_dev(tmp_path, patience=2)
    trainer._standing = Standing(0.5, 0, 2)
    monkeypatch.setattr(trainer, "_evaluate", lambda step, model: Standing(0.5, 0, 2))
    monkeypatch.setattr(trainer, "_summarise", _killed)
    with pytest.raises(Killed):
        trainer.run()
    result = with_dev(tmp_path, patience=2).run(resume=True)
    assert (result.steps, result.stopped_early) == (0, True)


def _killed(*ignored: Any) -> None:
    raise Killed


class TestWhatIsRefused:
    @pytest.fixture
    def stopped(self, tmp_path: Path) -> Path:
        kill_after(5, new_trainer(tmp_path))
        return tmp_path

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"learning_rate": 0.04}, "config.yaml: the run began with learning_rate=0.05, not 0.04"),
            ({"epochs": 4}, "began with epochs=3.0, not 4"),
            ({"step": TrainingStep.Config(flops_document=0.2)}, "began with flops_document=0.1, not 0.2"),
        ],
    )
    def test_other_settings(self, stopped: Path, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(SourcierError, match=message):
            new_trainer(stopped, **settings).run(resume=True)

    def test_other_examples(self, stopped: Path) -> None:
        with pytest.raises(SourcierError, match="not those that the run began with"):
            new_trainer(stopped, Examples(list(letters(10))[::-1])).run(resume=True)

    def test_a_folder_that_holds_no_run(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(SourcierError, match="holds no run"):
            new_trainer(tmp_path).run(resume=True)

    @pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt", "run.pt"])
    @pytest.mark.parametrize("damage", ["cut", "flipped"])
    def test_a_damaged_state(self, stopped: Path, name: str, damage: str) -> None:
        (path,) = stopped.glob(f"state/step-*/{name}")
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = bytes([whole[middle] ^ 1])
        path.write_bytes(whole[:-1] if damage == "cut" else whole[:middle] + flipped + whole[middle + 1 :])
        with pytest.raises(SourcierError, match=re.escape(name) + ": is damaged"):
            new_trainer(stopped).run(resume=True)

    def test_a_state_whose_sums_are_cut_short(self, stopped: Path) -> None:
        (path,) = stopped.glob("state/step-*/sums.json")
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(SourcierError, match=r"sums\.json: is damaged"):
            new_trainer(stopped).run(resume=True)

    @pytest.mark.parametrize("pointer", [None, "", "step-000000009\n", "../../elsewhere\n", "\udcff"])
    def test_a_pointer_that_is_damaged_or_lost_costs_no_state(
        self, stopped: Path, pointer: str | None
    ) -> None:
        current = stopped / "state" / "CURRENT"
        expected = current.read_text()
        before = sorted(stopped.rglob("*"))
        if pointer is None:
            current.unlink()
        else:
            current.write_text(pointer, errors="surrogateescape")
        with pytest.raises(SourcierError, match=rf"CURRENT: .* \({expected.strip()}\)"):
            new_trainer(stopped).run(resume=True)
        current.write_text(expected)
        assert sorted(stopped.rglob("*")) == before
        assert new_trainer(stopped).run(resume=True).steps == 15

    def test_another_dev(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Figures on one part cannot be compared with figures on another."""
        script_dev(monkeypatch, {}, NOTHING)
        kill_after(5, with_dev(tmp_path))
        script_dev(monkeypatch, {}, replace(NOTHING, documents=[Document("d1", "water")]))
        with pytest.raises(SourcierError, match="dev is not what the run was measured on"):
            with_dev(tmp_path).run(resume=True)

    def test_without_resume_the_message_names_it(self, stopped: Path) -> None:
        with pytest.raises(SourcierError, match="--resume"):
            new_trainer(stopped).run()


def test_what_changes_nothing_may_be_another(straight: Trainer, tmp_path: Path) -> None:
    kill_after(5, new_trainer(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    new_trainer(tmp_path / "there", save_every=2, timeout=3.0).run(resume=True)
    assert torch.equal(weights(tmp_path / "there"), weights(straight.folder.path))


@pytest.mark.slow
def test_with_workers_that_prepare_batches_ahead(tmp_path: Path) -> None:
    """What a worker has prepared and nobody has taken is not passed over."""
    new_trainer(tmp_path / "straight", workers=1).run()
    kill_after(7, new_trainer(tmp_path / "run", workers=1, save_every=3))
    new_trainer(tmp_path / "run", workers=1, save_every=3).run(resume=True)
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "straight"))


class TestARunThatIsOver:
    @pytest.fixture
    def over(self, tmp_path: Path) -> Path:
        new_trainer(tmp_path, steps=1).run()
        return tmp_path

    def test_is_not_another_run(self, over: Path) -> None:
        with pytest.raises(SourcierError, match=r"the run began with learning_rate=0.05, not 0.04"):
            new_trainer(over, steps=1, learning_rate=0.04).run(resume=True)

    @pytest.mark.parametrize("name", ["best", "last"])
    def test_has_its_models(self, over: Path, name: str) -> None:
        shutil.rmtree(over / name)
        with pytest.raises(SourcierError, match=f"{name}: is missing"):
            new_trainer(over, steps=1).run(resume=True)


def test_a_run_that_never_began_may_have_other_settings(tmp_path: Path) -> None:
    """As after a mistake that is found in the first batch."""
    with pytest.raises(Killed):
        _stopped_at_once(tmp_path)
    assert new_trainer(tmp_path, steps=1, learning_rate=0.04).run(resume=True).steps == 1
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["train"]["learning_rate"] == 0.04


def _stopped_at_once(output: Path) -> None:
    trainer = new_trainer(output)
    trainer._train = _killed  # type: ignore[method-assign]
    trainer.run()


def test_nothing_to_resume_from_begins_at_the_beginning(straight: Trainer, tmp_path: Path) -> None:
    new_trainer(tmp_path / "run").run(resume=True)
    assert torch.equal(weights(tmp_path / "run"), weights(straight.folder.path))


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    result = new_trainer(tmp_path).run()
    again = new_trainer(tmp_path)
    assert again.run(resume=True) == result
    assert not again.model.noted


def test_a_finished_run_keeps_no_state(tmp_path: Path) -> None:
    new_trainer(tmp_path).run()
    assert {path.name for path in tmp_path.iterdir()} == {
        "best",
        "last",
        "config.yaml",
        "metrics.jsonl",
        "training.json",
    }


@contextmanager
def rewritten(folder: Path) -> Iterator[dict[str, Any]]:
    """What `run.pt` of a stopped run remembers, to be changed."""
    (path,) = folder.glob("state/step-*/run.pt")
    run = torch.load(path, weights_only=True)
    yield run
    torch.save(run, path)
    sums = json.loads((path.parent / "sums.json").read_text())
    sums["run.pt"] = hashlib.blake2b(path.read_bytes()).hexdigest()
    (path.parent / "sums.json").write_text(json.dumps(sums))


def test_seconds_are_those_of_all_sittings(tmp_path: Path) -> None:
    kill_after(7, new_trainer(tmp_path))
    with rewritten(tmp_path) as run:
        run["values"]["seconds"] = 1000.0
    assert new_trainer(tmp_path).run(resume=True).seconds > 1000


def test_another_number_of_processes_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kill_after(7, new_trainer(tmp_path))
    with rewritten(tmp_path) as run:
        run["random"] *= 2
    assert new_trainer(tmp_path).run(resume=True).steps == 15
    assert "began with 2 processes and goes on with 1" in caplog.text


def test_the_scaler_of_half_precision_goes_on(tmp_path: Path) -> None:
    """It halves its scale where a step overflows: that must not be learned again."""
    accelerator: Any = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, process_index=0, scaler=torch.amp.GradScaler("cpu")
    )
    model = Table()
    state = RunState(accelerator, model, torch.optim.AdamW(model.parameters()), {})
    accelerator.scaler.scale(torch.ones(1))  # which makes it take up its first scale
    accelerator.scaler.update(128.0)
    state.write(tmp_path, state.collect())
    accelerator.scaler = torch.amp.GradScaler("cpu")
    state.read(tmp_path)
    assert accelerator.scaler.get_scale() == 128.0


def test_random_numbers_of_every_kind_go_on(tmp_path: Path) -> None:
    accelerator: Any = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, process_index=0, scaler=None
    )
    model = Table()
    state = RunState(accelerator, model, torch.optim.AdamW(model.parameters()), {})
    np.random.normal()  # of which numpy draws two and keeps one
    state.write(tmp_path, state.collect())
    drawn = [(random.random(), np.random.normal(), float(torch.rand(()))) for _ in range(3)]
    state.read(tmp_path)
    assert [(random.random(), np.random.normal(), float(torch.rand(()))) for _ in range(3)] == drawn
