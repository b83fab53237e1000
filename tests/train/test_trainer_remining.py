"""A run whose negatives are mined anew: they come in at the fixed step, and a run that was stopped ends the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import WORDS, tiny_model

from sourcier.data.collections import write_beir
from sourcier.data.examples import Example, Examples
from sourcier.models.dense import Dense
from sourcier.train.remining import Remining
from sourcier.train.settings import Settings
from sourcier.train.step import Collator, TrainingStep
from sourcier.train.trainer import Trainer
from sourcier.types import Document, SourcierError

TEXTS = [f"{first} {second}" for first, second in zip(WORDS[8:20], WORDS[20:32], strict=True)]
OLD = ("the old one", "the older one")


def run(folder: Path, name: str, *, resume: bool = False, **settings: Any) -> dict[str, torch.Tensor]:
    """Twelve steps of four rows, mined anew after steps 4 and 8, in force two steps later; the last weights."""
    model = Dense.from_base(folder / "base")
    examples = Examples([Example(text.split()[0], text, OLD) for text in TEXTS[:8]])
    config = Trainer.Config(
        output=str(folder / name),
        steps=12,
        batch_size=4,
        negatives=2,
        learning_rate=1e-3,
        dropout=0.1,
        progress=False,
        save_every=5,
        remine=Remining.Config(every=4, delay=2, corpus=str(folder / "docs"), ranks="1-12"),
        **settings,
    )
    config.build(model, examples).run(resume=resume)
    return load_file(folder / name / "last" / "model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remining")
    write_beir(folder / "docs", [Document(text.split()[0], text) for text in TEXTS], [], {})
    tiny_model("bert", folder / "base")
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> tuple[dict[str, torch.Tensor], list[set[tuple[str, ...]]]]:
    """The weights of a run that was not stopped, and the negatives of each of its batches."""
    seen = []
    collate = Collator.__call__

    def noted(self: Collator, examples: Sequence[Example]) -> Any:
        seen.append({example.negatives for example in examples})
        return collate(self, examples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collator, "__call__", noted)
        return run(folder, "whole"), seen


@pytest.mark.slow
def test_new_negatives_are_in_the_batches_from_the_fixed_step_on(folder: Path, whole: Any) -> None:
    _, seen = whole
    assert all(negatives == {OLD} for negatives in seen[:6])
    assert all(OLD not in negatives for negatives in seen[6:])
    lines = [json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()]
    came = [(line["step"], line["negatives_of_step"]) for line in lines if "negatives_of_step" in line]
    assert came == [(6, 4.0), (10, 8.0)]


@pytest.mark.slow
def test_the_folder_keeps_the_negatives_and_no_copy_of_the_model(folder: Path, whole: Any) -> None:
    kept = sorted(path.name for path in (folder / "whole" / "negatives").iterdir())
    assert kept == ["000000004.jsonl", "000000008.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [6, 9])
def test_a_run_that_was_stopped_ends_in_the_same_weights(
    folder: Path, whole: Any, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Before step 6 the last state is that of step 5, with a mining under way; before step 9 that of step 6.

    The run goes on with two workers, which have prepared batches of the old negatives when the new ones come in.
    """
    weights, _ = whole
    update = Trainer._update

    def stopping(self: Trainer, step: int) -> None:
        if step == stop:
            raise KeyboardInterrupt
        update(self, step)

    monkeypatch.setattr(Trainer, "_update", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(folder, f"stopped{stop}")
    monkeypatch.setattr(Trainer, "_update", update)
    resumed = run(folder, f"stopped{stop}", resume=True, workers=2)
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"corpus": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"teacher": "nowhere"}, "nowhere: cannot be loaded as a cross-encoder"),
    ],
)
def test_what_a_mining_needs_is_tried_before_the_first_step(
    folder: Path, tmp_path: Path, named: dict[str, str], message: str
) -> None:
    remine = Remining.Config(**{"every": 4, "corpus": str(folder / "docs"), **named})  # type: ignore[arg-type]
    step = TrainingStep.Config(loss="kl" if remine.teacher else "contrastive")
    config = Trainer.Config(
        output=str(tmp_path / "run"),
        steps=12,
        batch_size=4,
        negatives=2,
        progress=False,
        step=step,
        remine=remine,
    )
    examples = Examples([Example(text.split()[0], text, OLD, (1.0, 0.0, 0.0)) for text in TEXTS[:8]])
    with pytest.raises(SourcierError, match=message):
        config.build(Dense.from_base(folder / "base"), examples).run()
    assert not (tmp_path / "run").exists()


def test_a_loss_that_needs_a_teacher_needs_one_for_new_negatives() -> None:
    remine = Remining.Config(every=4, corpus="docs")
    with pytest.raises(SourcierError, match="loss=kl learns from a teacher's scores"):
        Settings(output="run", negatives=1, step=TrainingStep.Config(loss="kl"), remine=remine)
