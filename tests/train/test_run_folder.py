"""The folder of a run: it is nobody else's."""

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
