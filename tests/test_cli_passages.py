"""Passages from the command line: how an index of them is built, and what a search shows of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Ended, Run, write_lines

ROW: dict[str, Any] = {
    "_id": "long",
    "title": "Wells",
    "text": "x x x x rain rain x x x",
    "metadata": {"lang": "de"},
}


@pytest.fixture
def build(run: Run, tmp_path: Path) -> Callable[..., Ended]:
    """Builds an index of a long and a short document."""
    corpus = write_lines(tmp_path / "corpus.jsonl", [ROW, {"_id": "short", "text": "a river"}])

    def build_index(*flags: object) -> Ended:
        what = ["--kind", "bm25", "--data", corpus, "--output", tmp_path / "index"]
        return run("index", "build", *what, *flags)

    return build_index


def test_a_search_shows_the_best_passage(build: Callable[..., Ended], run: Run, tmp_path: Path) -> None:
    assert build("--passages", 3, "--overlap", 0).status == 0
    (hit,) = run("search", tmp_path / "index", "rain", "-k", 1, "--json").json["hits"]
    assert (hit["id"], hit["text"], hit["passage"]) == ("long", ROW["text"], "rain rain")


def test_an_overlap_needs_passages(build: Callable[..., Ended]) -> None:
    ended = build("--overlap", 3)
    assert (ended.status, ended.fault) == (2, "--overlap needs --passages N")


def test_an_overlap_of_more_than_half_is_refused(build: Callable[..., Ended]) -> None:
    ended = build("--passages", 4, "--overlap", 3)
    message = "give a size of at least 1, and an overlap of at most half of it"
    assert (ended.status, message in ended.fault) == (1, True)
