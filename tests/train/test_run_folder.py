"""The folder of a run: it is nobody else's, and what a kill leaves in it is put in order."""

import subprocess
import sys
from pathlib import Path

import pytest

from sourcier.train.checkpoint import RunFolder
from sourcier.types import SourcierError


def test_a_missing_or_empty_folder_is_taken(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a" / "b").create()
    RunFolder(tmp_path / "a" / "b").create()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(SourcierError, match="not empty"):
        RunFolder(tmp_path).create()


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(SourcierError, match="is a file"):
        RunFolder(tmp_path / "run").create()


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "state").mkdir()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", hold, str(tmp_path / "state" / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(SourcierError, match="another process trains there"):
            RunFolder(tmp_path).reopen()
        other.communicate("\n")
    RunFolder(tmp_path).reopen()


def write_state(folder: RunFolder, step: int) -> None:
    with folder.new_state(step) as state:
        (state / "last").mkdir()
        (state / "last" / "model").write_text(str(step))


def test_a_state_replaces_the_one_before_and_brings_its_model(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        write_state(folder, step)
    assert folder.state() == tmp_path / "state" / "step-000000002"
    assert sorted(path.name for path in folder.states.iterdir()) == ["CURRENT", "step-000000002"]
    assert (folder.last / "model").read_text() == "2"


def test_a_state_whose_writing_fails_does_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_state(folder, 1)
    with pytest.raises(ZeroDivisionError), folder.new_state(2):
        raise ZeroDivisionError
    assert folder.state() == tmp_path / "state" / "step-000000001"


def test_litter_goes_and_a_model_on_its_way_arrives(tmp_path: Path) -> None:
    """As after a kill between the two renames that replace a model, while the next state was begun."""
    folder = RunFolder(tmp_path)
    folder.config.touch()
    write_state(folder, 1)
    folder.last.rename(tmp_path / ".last.old")
    (folder.states / "step-000000001" / "last").mkdir()
    (folder.states / "step-000000001" / "last" / "model").write_text("new")
    (folder.states / ".step-000000002").mkdir()
    (tmp_path / ".config.yaml.123").touch()
    RunFolder(tmp_path).reopen()
    assert (folder.last / "model").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "last", "state"]
    assert sorted(path.name for path in folder.states.iterdir()) == ["CURRENT", "lock", "step-000000001"]
