"""Mining anew while a model is trained: what is due at which step, what a resumed run sees, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import WORDS, tiny_model

from sourcier.data.collections import write_beir
from sourcier.data.examples import Example, Examples
from sourcier.models.dense import Dense
from sourcier.retrieval.retriever import Retriever
from sourcier.train import remining
from sourcier.train.mining import mine
from sourcier.train.negatives import Rules
from sourcier.train.remine import Task, remine
from sourcier.train.remining import Remining
from sourcier.types import Document, SourcierError

TEXTS = [f"{first} {second}" for first, second in zip(WORDS[8:20], WORDS[20:32], strict=True)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_beir(tmp_path / "docs", [Document(text[:5], text) for text in TEXTS], [], {})
    return tmp_path / "docs"


@pytest.fixture
def model(tmp_path: Path) -> Dense:
    return Dense.from_base(tiny_model("bert", tmp_path / "base"))


def examples() -> Examples:
    return Examples([Example(text.split()[0], text, ("old", "older")) for text in TEXTS[:6]])


def rules(**settings: Any) -> Rules:
    return Rules(**{"ranks": "1-12", "negatives": 2, "seed": 1} | settings)


class TestTask:
    @pytest.fixture
    def task(self, corpus: Path, model: Dense, tmp_path: Path) -> Task:
        work = tmp_path / "work"
        model.save_pretrained(work / "model")
        examples().to_jsonl(work / "rows.jsonl")
        return Task(
            model=str(work / "model"),
            corpus=str(corpus),
            examples=str(work / "rows.jsonl"),
            output=str(tmp_path / "mined.jsonl"),
            rules=rules(),
        )

    def test_json_and_back(self, task: Task) -> None:
        assert Task.from_json(task.to_json()) == task

    def test_its_file_holds_what_the_model_mines(
        self, task: Task, model: Dense, corpus: Path, tmp_path: Path
    ) -> None:
        remine(task)
        with Retriever.build(model, corpus, tmp_path / "index") as retriever:
            expected = mine(retriever, examples(), rules()).examples
        assert list(Examples.from_jsonl(task.output)) == list(expected)
        assert list(Path(task.model).parent.glob("index-*")) == []

    def test_a_row_with_too_few_keeps_what_it_has(self, task: Task) -> None:
        """Twelve documents, one of them the positive: eleven cannot be twelve."""
        remine(Task(**{**vars(task), "rules": rules(negatives=12)}))
        assert list(Examples.from_jsonl(task.output)) == list(examples())


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Has minings be done at once, in this process, with negatives that name the step; they are listed."""
    done: list[Task] = []

    class Done:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.stdin = self

        def write(self, text: str) -> None:
            task = Task.from_json(text)
            done.append(task)
            step = Path(task.output).stem.lstrip("0")
            rows = [Example(row.query, row.positive, (f"{step} a", f"{step} b")) for row in examples()]
            Examples(rows).to_jsonl(Path(task.output))

        def flush(self) -> None: ...

        def wait(self, timeout: float) -> int:
            return 0

        def poll(self) -> int:
            return 0

        def communicate(self) -> None: ...

        def kill(self) -> None: ...

    monkeypatch.setattr(remining.subprocess, "Popen", Done)
    return done


def schedule(folder: Path, *, every: int = 4, delay: int | None = None, steps: int = 100) -> Remining:
    config = Remining.Config(every=every, delay=delay, corpus="docs", ranks="1-12")
    return Remining(config, folder, examples(), negatives=2, seed=1, steps=steps, timeout=1.0)


def save(folder: Path) -> None:
    folder.mkdir()


def run(remining: Remining, first: int, last: int) -> dict[int, str]:
    """Goes through steps; the first negative of the rows after each change, by the step that sees it first."""
    changes = {}
    for step in range(first, last + 1):
        if remining.before_step(step, save):
            changes[step] = remining.examples[0].negatives[0]
    return changes


def test_negatives_come_in_at_fixed_steps(tmp_path: Path, tasks: list[Task]) -> None:
    """Mined after steps 4, 8 and 12; step 7 is the first that comes three steps after step 4."""
    assert run(schedule(tmp_path, delay=2), 1, 15) == {7: "4 a", 11: "8 a", 15: "12 a"}


def test_without_a_delay_they_come_in_when_the_next_mining_begins(tmp_path: Path, tasks: list[Task]) -> None:
    assert run(schedule(tmp_path), 1, 13) == {9: "4 a", 13: "8 a"}


def test_nothing_is_mined_that_no_step_would_see(tmp_path: Path, tasks: list[Task]) -> None:
    run(schedule(tmp_path, steps=12), 1, 12)
    assert [Path(task.output).stem for task in tasks] == ["000000004"]


def test_each_mining_draws_anew(tmp_path: Path, tasks: list[Task]) -> None:
    run(schedule(tmp_path), 1, 9)
    assert [task.rules.seed for task in tasks] == [5, 9]


def test_the_examples_that_were_given_stay_as_they_are(tmp_path: Path, tasks: list[Task]) -> None:
    given = examples()
    config = Remining.Config(every=1, corpus="docs", ranks="1-12")
    changing = Remining(config, tmp_path, given, negatives=2, seed=1, steps=9)
    run(changing, 1, 4)
    assert changing.examples[0].negatives == ("2 a", "2 b")
    assert list(given) == list(examples())


def test_what_has_come_in_leaves_its_file_alone(tmp_path: Path, tasks: list[Task]) -> None:
    run(schedule(tmp_path, delay=2), 1, 7)
    assert [path.name for path in tmp_path.iterdir()] == ["000000004.jsonl"]


@pytest.mark.parametrize("stopped", range(4, 16))
def test_a_resumed_run_sees_the_same(tmp_path: Path, tasks: list[Task], stopped: int) -> None:
    whole = run(schedule(tmp_path / "whole", delay=2), 1, 20)
    before = schedule(tmp_path / "run", delay=2)
    seen = run(before, 1, stopped)
    state = json.loads(json.dumps(before.state_dict()))
    run(before, stopped + 1, stopped + 3)  # a kill comes later than the checkpoint
    after = schedule(tmp_path / "run", delay=2)
    after.load_state_dict(state)
    in_force = [negative for step, negative in whole.items() if step <= stopped]
    assert after.examples[0].negatives[0] == (in_force[-1] if in_force else "old")
    assert seen | run(after, stopped + 1, 20) == whole


def test_what_was_under_way_is_mined_again_with_the_same_copy(tmp_path: Path, tasks: list[Task]) -> None:
    before = schedule(tmp_path)
    run(before, 1, 5)
    (tmp_path / "000000004.jsonl").unlink()
    after = schedule(tmp_path)
    after.load_state_dict(before.state_dict())
    assert tasks[1] == tasks[0]


def test_without_the_copy_a_run_cannot_go_on(tmp_path: Path, tasks: list[Task]) -> None:
    before = schedule(tmp_path)
    run(before, 1, 5)
    (tmp_path / "000000004.jsonl").unlink()
    (tmp_path / "000000004" / "model").rmdir()
    with pytest.raises(SourcierError, match="model: is missing, with which negatives were being mined"):
        schedule(tmp_path).load_state_dict(before.state_dict())


def test_the_file_of_another_run_is_refused(tmp_path: Path, tasks: list[Task]) -> None:
    before = schedule(tmp_path)
    run(before, 1, 9)
    Examples([Example("other", "positive", ("n", "m"))]).to_jsonl(tmp_path / "000000004.jsonl")
    with pytest.raises(SourcierError, match="holds other examples than this run"):
        schedule(tmp_path).load_state_dict(before.state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0, "corpus": "docs"}, "every=0 must be at least 1"),
        ({"every": 4, "delay": 5, "corpus": "docs"}, "delay=5 must be at most every=4"),
        ({"every": 4}, "corpus is missing"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SourcierError, match=message):
        Remining.Config(**settings)


def test_nothing_to_mine_is_an_error(tmp_path: Path) -> None:
    config = Remining.Config(every=4, corpus="docs")
    with pytest.raises(SourcierError, match="negatives=0 leaves nothing to mine"):
        Remining(config, tmp_path, examples(), negatives=0, seed=1, steps=9)


@pytest.mark.parametrize(("every", "delay", "steps"), [(4, None, 8), (4, 1, 5), (9, 1, 4)])
def test_minings_that_no_step_would_see_are_refused(
    tmp_path: Path, every: int, delay: int | None, steps: int
) -> None:
    with pytest.raises(SourcierError, match=f"every={every}, .*: no new negatives .* last of {steps} steps"):
        schedule(tmp_path, every=every, delay=delay, steps=steps)


@pytest.mark.parametrize(("every", "delay", "steps"), [(4, None, 9), (4, 1, 6)])
def test_a_single_mining_that_a_step_sees_is_one(
    tmp_path: Path, tasks: list[Task], every: int, delay: int | None, steps: int
) -> None:
    assert run(schedule(tmp_path, every=every, delay=delay, steps=steps), 1, steps) == {steps: "4 a"}


class TestCheck:
    """Before the first step."""

    def check(self, corpus: Path, **settings: Any) -> None:
        config = Remining.Config(**{"every": 4, "corpus": str(corpus), "ranks": "1-12"} | settings)
        Remining(config, corpus, examples(), negatives=1, seed=1, steps=100).check()

    def test_what_is_there_is_taken(self, corpus: Path) -> None:
        self.check(corpus, device="cpu")

    def test_the_corpus_is_read_to_its_end(self, corpus: Path) -> None:
        with (corpus / "corpus.jsonl").open("a") as file:
            file.write("{broken\n")
        with pytest.raises(SourcierError, match=r"corpus\.jsonl:13: is not JSON"):
            self.check(corpus)

    def test_a_corpus_without_a_document_at_the_first_rank_is_named(self, corpus: Path) -> None:
        with pytest.raises(SourcierError, match="holds 12 documents, and hits are chosen from rank 13 on"):
            self.check(corpus, ranks="13-20")

    def test_a_device_that_is_not_there_is_named(self, corpus: Path) -> None:
        with pytest.raises(SourcierError, match=r"remine\.device=cuda:99: this machine has [0-9]+ of"):
            self.check(corpus, device="cuda:99")


@pytest.mark.slow
class TestProcess:
    """With the process that mines."""

    @pytest.fixture
    def remining(self, corpus: Path, tmp_path: Path) -> Callable[..., Remining]:
        def make(every: int = 1, **settings: Any) -> Remining:
            config = Remining.Config(every=every, corpus=str(corpus), ranks="1-12")
            return Remining(
                config,
                tmp_path / "negatives",
                examples(),
                **{"negatives": 2, "seed": 1, "steps": 9} | settings,
            )

        return make

    def test_it_mines_what_a_call_would_and_again_the_same(
        self, remining: Callable[..., Remining], model: Dense, corpus: Path, tmp_path: Path
    ) -> None:
        model.save_pretrained(tmp_path / "copy")
        first = remining()
        first.before_step(2, model.save_pretrained)
        state = first.state_dict()
        first.close()  # as a kill would
        resumed = remining()
        resumed.load_state_dict(state)
        with torch.no_grad():
            next(model.parameters()).add_(1.0)  # training went on; the copy did not
        assert resumed.before_step(3, model.save_pretrained)
        resumed.close()
        with Retriever.build(tmp_path / "copy", corpus, tmp_path / "index") as retriever:
            expected = mine(retriever, examples(), rules(seed=2)).examples
        assert list(resumed.examples) == list(expected)

    def test_its_failure_is_told_when_its_work_is_due(
        self, remining: Callable[..., Remining], model: Dense, corpus: Path
    ) -> None:
        (corpus / "corpus.jsonl").write_text("{broken\n")
        failing = remining()
        failing.before_step(2, model.save_pretrained)
        with pytest.raises(SourcierError, match=r"model of step 1 failed: .*corpus\.jsonl:1: is not JSON"):
            failing.before_step(3, model.save_pretrained)

    def test_its_failure_is_told_before_its_work_is_due(
        self, remining: Callable[..., Remining], model: Dense, corpus: Path
    ) -> None:
        """Due after step 200, and begun after step 100."""
        (corpus / "corpus.jsonl").write_text("{broken\n")
        failing = remining(every=100, steps=1000)
        failing.before_step(101, model.save_pretrained)
        with pytest.raises(SourcierError, match=r"model of step 100 failed: .*corpus\.jsonl:1: is not JSON"):
            _step_until(failing, 102, 200)

    def test_a_kill_is_told_before_its_work_is_due(
        self, remining: Callable[..., Remining], model: Dense
    ) -> None:
        killed = remining(every=100, steps=1000)
        killed.before_step(101, model.save_pretrained)
        assert killed._process is not None
        os.kill(killed._process.pid, signal.SIGKILL)
        with pytest.raises(SourcierError, match=r"model of step 100 failed: SIGKILL ended it, .* memory"):
            _step_until(killed, 102, 200)

    def test_it_is_waited_for_no_longer_than_allowed(
        self, remining: Callable[..., Remining], model: Dense
    ) -> None:
        slow = remining(timeout=0.001)
        slow.before_step(2, model.save_pretrained)
        with pytest.raises(SourcierError, match=r"not done 0\.001 minutes after it was needed"):
            slow.before_step(3, model.save_pretrained)

    def test_it_ends_with_its_parent(self, tmp_path: Path) -> None:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(folder=str(tmp_path))], stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 30
        while _lives(child):
            assert time.monotonic() < deadline
            time.sleep(0.1)


#: Starts a mining that never ends, since its rows are a pipe that nobody writes to, and tells its process.
PARENT = """
import os, time
from pathlib import Path
from sourcier.data.examples import Example, Examples
from sourcier.train.remining import Remining

def save(folder):
    folder.mkdir()
    rows = folder.parent / "rows.jsonl"
    rows.unlink()
    os.mkfifo(rows)

config = Remining.Config(every=1, corpus="docs")
remining = Remining(config, Path({folder!r}), Examples([Example("q", "p")]), negatives=1, seed=1, steps=9)
remining.before_step(2, save)
print(remining._process.pid, flush=True)
time.sleep(60)
"""


def _step_until(remining: Remining, first: int, last: int) -> None:
    """Steps of a second each, in none of which anything is due."""
    for step in range(first, last):
        time.sleep(1)
        assert not remining.before_step(step, save)


def _lives(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()
