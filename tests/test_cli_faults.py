"""The command line on what people really give it: each fault is one line, and nothing else is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sourcier.cli import entry, main
from sourcier.cli.command import Command, Output


def _one_line(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The status and the only line of a command that fails."""
    status = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n"), printed.err[:10]) == ("", 1, "sourcier: ")
    return status, printed.err


def test_a_fault_in_the_corpus_leaves_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "a", "text": "one"}\n{"_id": "b", "te\n')
    status, line = _one_line(
        capsys, "index", "build", "--kind", "bm25", "--data", corpus, "--output", tmp_path / "index"
    )
    assert (status, f"{corpus}:2: is not JSON" in line) == (1, True)


def test_a_query_of_stray_bytes_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = _one_line(capsys, "search", tmp_path, os.fsdecode(b"\xff water"))
    assert (status, "the query is not valid UTF-8" in line) == (2, True)


def test_a_section_of_the_wrong_type_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  step: 3\n")
    arguments = ["--family", "dense", "--base", "b", "--data", "d", "--output", tmp_path / "run"]
    status, line = _one_line(capsys, "train", *arguments, "--config", file)
    assert (status, line) == (1, f"sourcier: {file}: train: step: expected keys with values, found 3\n")


def test_an_error_of_the_system_without_a_file_is_in_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: object) -> Output:
        raise OSError(28, "No space left on device")

    command = Command(summary="fail", example="", add_flags=lambda *_: None, run=full)
    monkeypatch.setitem(entry.COMMANDS, "fail", command)
    assert _one_line(capsys, "fail") == (1, "sourcier: No space left on device\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "sourcier", "--help"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")
