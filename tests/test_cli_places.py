"""Where commands write is looked at first: nothing else that they are given here exists, and none complains of that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run

from sourcier.cli.places import check_writable
from sourcier.types import SourcierError

FILES = {
    "--run": ["evaluate", "no-index", "--data", "no-data", "--run"],
    "--html": ["diagnose", "no-run", "--data", "no-data", "--html"],
    "--output": ["mine", "no-index", "--data", "no-data", "--output"],
}
FOLDERS = {
    "--output": ["index", "build", "--model", "no-model", "--data", "no-data", "--output"],
    "OUT": ["corpus", "python", "--packages", "no-package"],
}


def fault(run: Run, *arguments: object) -> str:
    """What a command says that fails."""
    ended = run(*arguments)
    assert ended.status == 1
    return ended.fault


@pytest.mark.parametrize(
    ("words", "there", "wanted"),
    [
        *((words, Path.mkdir, "is a folder: name a file") for words in FILES.values()),
        *((words, Path.touch, "is a file: name a folder") for words in FOLDERS.values()),
    ],
    ids=[*FILES, *(f"{flag}-folder" for flag in FOLDERS)],
)
def test_a_place_of_the_other_kind(
    tmp_path: Path, run: Run, words: list[str], there: Callable[[Path], None], wanted: str
) -> None:
    flag = words[-1] if words[-1].startswith("--") else "OUT"
    place = tmp_path / "taken.jsonl"
    there(place)
    assert fault(run, *words, place) == f"{flag} {place}: {wanted}"


@pytest.mark.parametrize("command", [*FILES.values(), *FOLDERS.values()], ids=lambda words: words[0])
def test_a_parent_that_is_a_file(tmp_path: Path, run: Run, command: list[str]) -> None:
    (tmp_path / "taken").touch()
    place = tmp_path / "taken" / "deeper" / "x.jsonl"
    assert f"{place}: {tmp_path / 'taken'} is a file" in fault(run, *command, place)


def test_a_page_has_its_place_in_the_run_where_none_is_named(tmp_path: Path, run: Run) -> None:
    (tmp_path / "diagnosis.html").mkdir()
    assert "--html" in fault(run, "diagnose", tmp_path, "--data", "no-data")


def test_an_index_is_not_built_among_other_files(tmp_path: Path, run: Run) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "holds other files and no index" in fault(run, *FOLDERS["--output"], tmp_path)


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (None, [], "--output {}: is a file: name a folder"),
        ("thesis.tex", [], "{}: output is not empty"),
        ("thesis.tex", ["--resume"], "{}: is not empty and holds no run"),
    ],
)
def test_a_run_is_refused_before_its_data_is_read(
    tmp_path: Path, run: Run, content: str | None, flags: list[str], message: str
) -> None:
    place = tmp_path / "run"
    if content is None:
        place.touch()
    else:
        place.mkdir()
        (place / content).touch()
    what = ["--family", "dense", "--base", "no-base", "--data", "no-data"]
    assert message.format(place) in fault(run, "train", *what, "--output", place, *flags)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_parents_that_are_missing_are_made_later(tmp_path: Path, kind: str) -> None:
    check_writable("--output", str(tmp_path / "a" / "b" / "c"), kind)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []  # the look leaves nothing behind


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match=r"--run .*: cannot be written \(File name too long\)"):
        check_writable("--run", str(tmp_path / ("x" * 250)), "file")


def test_a_device_is_not_overwritten() -> None:
    with pytest.raises(SourcierError, match=f"--run {os.devnull}: is neither a file nor a free name"):
        check_writable("--run", os.devnull, "file")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that not even root can write to")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_parent_that_cannot_be_written_to(kind: str) -> None:
    with pytest.raises(SourcierError, match="--output /proc/self/x: cannot be written"):
        check_writable("--output", "/proc/self/x", kind)  # type: ignore[arg-type]


def test_of_several_processes_only_the_one_that_writes_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    check_writable("--output", str(tmp_path), "file")
