"""Ids come back as the user gave them, and no id stands for two documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sourcier.encodings import DenseVectors
from sourcier.indexes import create, extend, open_version
from sourcier.indexes.changes import delete
from sourcier.indexes.ids import IdTable, IdWriter, document_ids
from sourcier.types import DataError


def write(folder: Path, *chunks: list[str]) -> IdTable:
    writer = IdWriter(folder)
    for chunk in chunks:
        writer.add(chunk)
    writer.finish()
    return IdTable(folder)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), unique=True, max_size=30),
    st.integers(1, 7),
)
def test_any_ids_come_back(tmp_path: Path, ids: list[str], size: int) -> None:
    table = write(tmp_path, *(ids[start : start + size] for start in range(0, len(ids), size)))
    rows = np.arange(len(ids))
    assert len(table) == len(ids)
    assert table.names(rows).tolist() == ids
    assert table.rows(ids).tolist() == rows.tolist()


def test_the_ids_of_a_version_are_those_of_documents_that_are_not_deleted(tmp_path: Path) -> None:
    with create("dense", tmp_path) as writer:
        writer.add(["a", "b", "c"], DenseVectors(np.ones((3, 2), dtype=np.float32)))
        writer.finish()
    with extend(tmp_path) as writer:
        writer.add(["b", "d"], DenseVectors(np.ones((2, 2), dtype=np.float32)))
        writer.finish()
    delete(tmp_path, ["c"])
    assert list(document_ids(open_version(tmp_path))) == ["a", "b", "d"]


def test_an_unknown_id_has_no_row(tmp_path: Path) -> None:
    assert write(tmp_path, ["a", "b"]).rows(["c", "b", ""]).tolist() == [-1, 1, -1]


def test_names_keep_the_shape_of_the_rows(tmp_path: Path) -> None:
    assert write(tmp_path, ["a", "b"]).names(np.array([[1, 0], [0, 1]])).tolist() == [["b", "a"], ["a", "b"]]


def test_many_names_are_those_of_few(tmp_path: Path) -> None:
    ids = [f"Nr. {number} – ü" for number in range(300)]
    table = write(tmp_path, ids)
    backward = np.arange(300)[::-1]
    assert table.names(backward).tolist() == ids[::-1]
    assert [table.names(backward[place : place + 1])[0] for place in range(300)] == ids[::-1]


def test_a_duplicate_in_one_chunk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2: its id 'a' came before"):
        write(tmp_path, ["a", "b", "a"])


def test_a_duplicate_of_any_earlier_chunk_is_refused(tmp_path: Path) -> None:
    chunks = [[f"{number}-{place}" for place in range(3)] for number in range(9)]
    for number in range(9):
        with pytest.raises(DataError, match=f"row 27: its id '{number}-1'"):
            write(tmp_path, *chunks, [f"{number}-1"])


@pytest.mark.parametrize("identifier", [1, None, "\ud800"])
def test_what_is_no_text_is_refused(tmp_path: Path, identifier: object) -> None:
    with pytest.raises(DataError, match="row 1"):
        write(tmp_path, ["a", identifier])  # type: ignore[list-item]


@pytest.mark.parametrize("identifier", ["", " \t"])
def test_an_empty_id_is_refused(tmp_path: Path, identifier: str) -> None:
    with pytest.raises(DataError, match=r"document in row 1: its id '.*' is empty: give each document one"):
        write(tmp_path, ["a", identifier])
