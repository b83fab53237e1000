"""Kills at random points of each operation, while others search: what counts is always one whole version.

The points are drawn anew each time; `SOURCIER_CRASH_SEED`, which a failure tells, repeats them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import crash_worker as worker
from indexes import encoded

from sourcier.indexes import Version, open_version
from sourcier.retrieval.retriever import Retriever

pytestmark = pytest.mark.slow

READERS = 2
OPERATIONS = range(worker.ROUNDS * len(worker.WHAT))
#: Where an operation is killed in each round, in an order of chance: in a third of its changes of the disk, or where it
#: commits.
PLACES = ("first third", "second third", "last third", "right before the commit", "after the commit")
assert len(PLACES) == worker.ROUNDS


@pytest.mark.parametrize("kind", worker.FAMILIES)
def test_a_kill_at_any_point_leaves_a_whole_version(kind: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("SOURCIER_CRASH_SEED", random.SystemRandom().randrange(10**6)))
    print(f"SOURCIER_CRASH_SEED={seed}")
    root, straight = tmp_path / "index", tmp_path / "straight"
    undisturbed = _lines(_run("straight", kind, straight).stdout)
    for number, told in enumerate(undisturbed):
        _check_by_dictionary(kind, told["answer"], number)
    points = _points(random.Random(seed), undisturbed)
    committed: dict[str, set[bool]] = {what: set() for what in worker.WHAT}
    with _readers(kind, root, tmp_path) as logs:
        for number, (place, at) in zip(OPERATIONS, points, strict=True):
            turn, what = worker.operation(number)
            print(f"{what} of round {turn}: killed at call {at}, {place}")
            killed = _run("perform", kind, root, number, at, ends=-signal.SIGKILL)
            assert killed.stderr == ""
            done = _check_reopened(kind, root, number, undisturbed)
            committed[what].add(done)
            if done:
                _check_done_again(kind, root, tmp_path / f"again-{number}", number, undisturbed)
            else:
                worker.perform(kind, root, number)
                assert not (root / ".building").exists()
            _check_equal(kind, root, straight, number, undisturbed)
    assert committed == {what: {True, False} for what in worker.WHAT}
    for log in logs:
        _check_reader(_lines(log.read_text()), undisturbed)


def _points(chance: random.Random, undisturbed: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """For each operation the call at which it is killed, and where that is."""
    orders = {what: chance.sample(PLACES, len(PLACES)) for what in worker.WHAT}
    places = [orders[what][turn] for turn, what in map(worker.operation, OPERATIONS)]
    return [(place, _point(chance, place, told)) for place, told in zip(places, undisturbed, strict=True)]


def _point(chance: random.Random, place: str, told: dict[str, Any]) -> int:
    """A call between two changes of the disk, so that no change is passed over for the calls that compute."""
    changes, commit = [1, *told["changes"], told["calls"]], told["commit"] + 1
    last = len(changes) - 1
    first, stop = {
        "first third": (0, last // 3),
        "second third": (last // 3, 2 * last // 3),
        "last third": (2 * last // 3, last),
        "right before the commit": (commit - 2, commit),
        "after the commit": (commit, last),
    }[place]
    change = chance.randrange(first, stop)
    return chance.randint(changes[change] + 1, changes[change + 1])


def _check_reopened(kind: str, root: Path, number: int, undisturbed: list[dict[str, Any]]) -> bool:
    """See to it that the index is at the version before a killed operation, or after it; says whether after."""
    if number == 0 and not (root / "CURRENT").exists():
        return False
    version = open_version(root)
    assert int(version.name) in (number, number + 1)
    version.check_contents()
    assert _answer(kind, root) == undisturbed[int(version.name) - 1]["answer"]
    return int(version.name) == number + 1


def _check_done_again(
    kind: str, root: Path, copy: Path, number: int, undisturbed: list[dict[str, Any]]
) -> None:
    """See to it that who does not know that an operation was committed can do it again, and has the same then."""
    shutil.copytree(root, copy)
    worker.perform(kind, copy, number)
    version = open_version(copy)
    version.check_contents()
    expected, again = undisturbed[number]["answer"], _answer(kind, copy)
    for name in ("ids", "texts", "few"):
        assert [sorted(row) for row in again[name]] == [sorted(row) for row in expected[name]]
    what = worker.operation(number)[1]
    if what == "build":
        assert _contents(version) == _contents(open_version(root))
        assert again["scores"] == expected["scores"]
    if what in ("build", "add"):
        assert not (copy / "building").exists()
    else:
        assert int(version.name) == number + 1


def _check_equal(
    kind: str, root: Path, straight: Path, number: int, undisturbed: list[dict[str, Any]]
) -> None:
    """See to it that the index has the very files of one that was not disturbed."""
    version = open_version(root)
    manifest = version.folder.relative_to(root) / "manifest.json"
    assert (root / manifest).read_bytes() == (straight / manifest).read_bytes()
    version.check_contents()
    assert worker.names(root) == undisturbed[number]["names"]
    assert _answer(kind, root) == undisturbed[number]["answer"]


def _check_reader(told: list[dict[str, Any]], undisturbed: list[dict[str, Any]]) -> None:
    """See to it that each answer of a reader is that of the version which it names, to the last bit of a score."""
    *answers, end = told
    assert end["searches"] > len(OPERATIONS)
    for one in answers:
        assert one["answer"] == undisturbed[int(one["answer"]["version"]) - 1]["answer"]
    seen = [int(one["answer"]["version"]) for one in answers]
    assert seen == sorted(set(seen)), "each version is met once, and none after a later one"
    assert seen[-1] == len(OPERATIONS)
    assert len(seen) > len(OPERATIONS) // 2


def _check_by_dictionary(kind: str, answer: dict[str, Any], number: int) -> None:
    """See to it that an answer is what a dictionary of the documents gives, scored plainly pair by pair."""
    held = worker.held(number)
    assert answer["version"] == f"{number + 1:06d}"
    for ids, texts, few in zip(answer["ids"], answer["texts"], answer["few"], strict=True):
        assert dict(zip(ids, texts, strict=True)) == {key: one.text for key, one in held.items()}
        assert few == [key for key in ids if held[key].metadata["n"] < 33]
    model = worker.encoder(kind)
    if model is not None:
        scores_of = {"dense": encoded.dense_scores, "multivector": encoded.token_scores}[kind]
        documents = model.encode([one.text for one in held.values()], "document")
        scores: np.ndarray = scores_of(model.encode(worker.QUERIES, "query"), documents)  # type: ignore[operator]
        best = encoded.best_first(scores)
        assert answer["ids"] == np.array(list(held))[best].tolist()
        assert np.allclose(answer["scores"], np.take_along_axis(scores, best, axis=1), atol=1e-5)


def _answer(kind: str, root: Path) -> dict[str, Any]:
    with Retriever.open(root) as retriever:
        return worker.answer(kind, retriever)


def _contents(version: Version) -> dict[str, str]:
    """The checksum of each file of the only segment and of the model."""
    (segment,) = version.manifest.segments
    return {
        name.replace(f"segments/{segment.name}/", "segment/"): record.sha256
        for name, record in version.manifest.files.items()
    }


@contextmanager
def _readers(kind: str, root: Path, folder: Path) -> Iterator[list[Path]]:
    """Processes that search until the end; what each of them tells is in a file."""
    stop = folder / "stop"
    logs = [folder / f"reader-{number}" for number in range(READERS)]
    running = []
    try:
        for log in logs:
            with log.open("w") as out, log.with_suffix(".errors").open("w") as errors:
                command = _command("read", kind, root, stop)
                running.append(subprocess.Popen(command, env=_environment(), stdout=out, stderr=errors))
        yield logs
        stop.touch()
        for one, log in zip(running, logs, strict=True):
            assert one.wait(timeout=60) == 0, log.with_suffix(".errors").read_text()
    finally:
        for one in running:
            one.kill()
            one.wait()


def _run(*arguments: object, ends: int = 0) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(_command(*arguments), env=_environment(), capture_output=True, text=True)
    assert run.returncode == ends, run.stderr
    return run


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "indexes.crash_worker", *map(str, arguments)]


def _environment() -> dict[str, str]:
    tests = Path(__file__).resolve().parents[1]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tests.parent / "src", tests)))}


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
