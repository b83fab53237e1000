"""The command line on what people really give it: each fault is one line, and nothing else is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run

from sourcier.cli import entry
from sourcier.cli.command import Command, Output
from sourcier.data.collections import Query, write_beir
from sourcier.types import Document


def test_a_fault_in_the_corpus_leaves_no_bar(tmp_path: Path, run: Run) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "a", "text": "one"}\n{"_id": "b", "te\n')
    ended = run("index", "build", "--kind", "bm25", "--data", corpus, "--output", tmp_path / "index")
    assert (ended.status, f"{corpus}:2: is not JSON" in ended.fault) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "no-index", "--data"],
        ["diagnose", "no-run", "--data"],
        [
            "train",
            "--family",
            "dense",
            "--base",
            "no-base",
            "--data",
            "{beir}",
            "--output",
            "no-run",
            "--dev",
        ],
    ],
    ids=["evaluate", "diagnose", "train"],
)
def test_a_file_where_a_folder_is_wanted(tmp_path: Path, run: Run, beir: Path, arguments: list[str]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("how deep is a well?\t30 metres\n")
    said = run(*(word.format(beir=beir) for word in arguments), file).err.splitlines()
    assert said[-1].startswith(f"sourcier: {file} is a file; give a BEIR folder, with corpus.jsonl")


REMINING = "--negatives 1 --remine-every 1 --remine-corpus no-corpus --remine-device"


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("mine no-index --data no-data --output {}/mined.jsonl --device", "--device "),
        (f"train --family dense --base b --data no-data --output {{}}/run {REMINING}", "remine.device="),
    ],
    ids=["mine", "train"],
)
def test_a_device_that_is_not_here_is_told_before_anything_is_read(
    tmp_path: Path, run: Run, line: str, named: str, device: str
) -> None:
    ended = run(*line.format(tmp_path).split(), device)
    assert (ended.status, ended.fault.startswith(f"{named}{device}: ")) == (1, True)


@pytest.mark.parametrize(
    ("document", "query", "message"),
    [
        (
            "a well",
            "q1",
            "document id 'a well' of {index} is empty or holds white space, which a TREC run cannot: "
            "rename it in the corpus and build the index again, or leave --run out",
        ),
        (
            "well",
            "q\u00a01",
            "query id 'q\\xa01' of {data}/queries.jsonl is empty or holds white space, which a TREC run cannot: "
            "rename it there and in the qrels, or leave --run out",
        ),
    ],
    ids=["document", "query"],
)
def test_an_id_that_a_run_cannot_hold_is_told_before_the_search(
    tmp_path: Path, run: Run, document: str, query: str, message: str
) -> None:
    data, index, file = tmp_path / "docs", tmp_path / "index", tmp_path / "ours.run"
    documents, queries = [Document(document, "water in the ground")], [Query(query, "water")]
    write_beir(data, documents, queries, {"test": {query: {document: 1}}})
    assert run("index", "build", "--kind", "bm25", "--data", data, "--output", index).status == 0
    assert run("evaluate", index, "--data", data).status == 0
    ended = run("evaluate", index, "--data", data, "--run", file)
    assert (ended.status, ended.fault) == (1, f"{file}: {message.format(data=data, index=index)}")


def test_a_query_of_stray_bytes_is_wrong_use(tmp_path: Path, run: Run) -> None:
    ended = run("search", tmp_path, os.fsdecode(b"\xff water"))
    assert (ended.status, "the query is not valid UTF-8" in ended.fault) == (2, True)


def test_a_section_of_the_wrong_type_is_named(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  step: 3\n")
    arguments = ["--family", "dense", "--base", "b", "--data", "d", "--output", tmp_path / "run"]
    ended = run("train", *arguments, "--config", file)
    assert (ended.status, ended.fault) == (1, f"{file}: train: step: expected keys with values, found 3")


def test_an_error_of_the_system_without_a_file_is_in_its_words(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def full(_: object) -> Output:
        raise OSError(28, "No space left on device")

    command = Command(summary="fail", example="", add_flags=lambda *_: None, run=full)
    monkeypatch.setitem(entry.COMMANDS, "fail", command)
    ended = run("fail")
    assert (ended.status, ended.fault) == (1, "No space left on device")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "sourcier", "--help"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")
