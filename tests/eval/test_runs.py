"""TREC run files: nothing is lost on the way out and in, and what cannot be held is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourcier.eval.runs import from_hits, ranking, read_trec, write_trec
from sourcier.types import DataError, Hits

identifiers = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"]), min_size=1)
scores = st.floats(width=32, allow_nan=False, allow_infinity=False)
runs = st.dictionaries(identifiers, st.dictionaries(identifiers, scores, min_size=1))


@given(runs)
def test_a_run_comes_back_with_its_scores_and_ranks(
    tmp_path_factory: pytest.TempPathFactory, run: dict[str, dict[str, float]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.run"
    write_trec(path, run)
    again = read_trec(path)
    assert again == run
    assert {query: list(found) for query, found in again.items()} == {
        query: ranking(found) for query, found in run.items()
    }


def test_columns_are_those_of_trec(tmp_path: Path) -> None:
    write_trec(tmp_path / "a.run", {"q": {"low": 0.25, "high": 1.5}}, tag="mine")
    assert (tmp_path / "a.run").read_text() == "q Q0 high 1 1.5 mine\nq Q0 low 2 0.25 mine\n"


def test_equal_scores_keep_their_order() -> None:
    assert ranking({"z": 1.0, "a": 1.0, "m": 2.0}) == ["m", "z", "a"]


def test_hits_become_a_run_with_float32_scores_in_full() -> None:
    hits = Hits.from_rows([[("a", 0.1), ("b", 0.1)], []])
    assert from_hits(["q1", "q2"], hits) == {
        "q1": {"a": float(np.float32(0.1)), "b": float(np.float32(0.1))},
        "q2": {},
    }


@pytest.mark.parametrize("identifier", ["a b", "a\tb", "a\nb", "a\u00a0b", ""])
def test_an_id_that_a_run_cannot_hold_is_named(tmp_path: Path, identifier: str) -> None:
    with pytest.raises(DataError) as caught:
        write_trec(tmp_path / "a.run", {"q": {identifier: 1.0}})
    assert f"document id {identifier!r}" in str(caught.value)
    assert not (tmp_path / "a.run").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 0.5", ":2: 5 columns where a run has 6"),
        ("q Q0 d 1 high tag", ":2: score 'high' is not a number"),
        ("q Q0 d 1 nan tag", ":2: score 'nan' is not a number"),
        ("q Q0 first 2 0.1 tag", ":2: document 'first' stands twice under query 'q'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.run"
    path.write_text(f"q Q0 first 1 0.9 tag\n{line}\n")
    with pytest.raises(DataError) as caught:
        read_trec(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_other_writers_are_understood(tmp_path: Path) -> None:
    """Tabs, several spaces, CRLF, a byte order mark, blank lines, lines out of order."""
    content = "\ufeffq\tQ0\tb\t2\t0.5\ttag\r\n\r\nq  Q0 a   1 1e0 tag\r\n"
    (tmp_path / "a.run").write_bytes(content.encode())
    assert list(read_trec(tmp_path / "a.run")["q"].items()) == [("a", 1.0), ("b", 0.5)]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.run: cannot be read"):
        read_trec(tmp_path / "absent.run")
