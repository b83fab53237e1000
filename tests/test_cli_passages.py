"""Passages from the command line: how an index of them is built, and what a search shows of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sourcier.cli.entry import main

ROW = {"_id": "long", "title": "Wells", "text": "x x x x rain rain x x x", "metadata": {"lang": "de"}}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({"_id": "short", "text": "a river"}) + "\n")
    return path


def test_a_search_shows_the_best_passage(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = str(tmp_path / "index")
    build = ["index", "build", "--kind", "bm25", "--data", str(corpus), "--output", index]
    assert main([*build, "--passages", "3", "--overlap", "0"]) == 0
    capsys.readouterr()
    assert main(["search", index, "rain", "-k", "1", "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert (hit["id"], hit["text"], hit["passage"]) == ("long", ROW["text"], "rain rain")


def test_an_overlap_needs_passages(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["index", "build", "--kind", "bm25", "--data", str(corpus), "--output", str(tmp_path / "index")]
    assert main([*build, "--overlap", "3"]) == 2
    assert capsys.readouterr().err == "sourcier: --overlap needs --passages N\n"


def test_an_overlap_of_more_than_half_is_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ["index", "build", "--kind", "bm25", "--data", str(corpus), "--output", str(tmp_path / "index")]
    assert main([*build, "--passages", "4", "--overlap", "3"]) == 1
    assert "give a size of at least 1, and an overlap of at most half of it" in capsys.readouterr().err
