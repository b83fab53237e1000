"""Documents come back as they were, by row and by id, from a mapped file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sourcier.indexes.documents import FILE, DocumentStore, DocumentWriter, as_batch
from sourcier.types import DataError, Document


def store(folder: Path, documents: list[Document], chunk: int = 700) -> DocumentStore:
    with DocumentWriter(folder) as writer:
        for start in range(0, len(documents), chunk):
            writer.add(as_batch(documents[start : start + chunk]))
        writer.finish()
    return DocumentStore(folder)


def test_documents_come_back(tmp_path: Path) -> None:
    documents = [
        Document("a", "text\twith\ntabs\r\n\u2028 and \U0001f4a7", title="Ä"),
        Document("b", "", metadata={"lang": "de", "pages": [1, 2]}),
    ]
    kept = store(tmp_path, documents)
    assert [kept[row] for row in range(2)] == documents


def test_rows_of_many_batches(tmp_path: Path) -> None:
    kept = store(tmp_path, [Document(f"d{number}", f"text {number}") for number in range(2500)])
    assert len(kept) == 2500
    assert [kept[row].text for row in (0, 1023, 1024, 2047, 2499)] == [
        f"text {row}" for row in (0, 1023, 1024, 2047, 2499)
    ]


def test_batches_of_some_rows(tmp_path: Path) -> None:
    kept = store(tmp_path, [Document(one, one.upper()) for one in "abcd"], chunk=3)
    found = [batch["id"].to_pylist() for batch in kept.batches(np.array([True, False, True, False]))]
    assert found == [["a", "c"], []]


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_that_is_not_there(tmp_path: Path, row: int) -> None:
    with pytest.raises(IndexError):
        store(tmp_path, [Document("a", "text")])[row]


def test_the_file_is_mapped_not_read(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    kept = store(tmp_path, [Document(f"d{number}", "x" * 10_000) for number in range(1000)])
    assert kept[999].text == "x" * 10_000
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_anyone_can_read_the_file_with_arrow(tmp_path: Path) -> None:
    store(tmp_path, [Document("a", "text", title="title", metadata={"n": 1})])
    with pa.OSFile(str(tmp_path / FILE)) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.to_pylist() == [{"id": "a", "title": "title", "text": "text", "metadata": '{"n": 1}'}]


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_metadata_that_is_no_json_names_the_document(tmp_path: Path, value: object) -> None:
    with pytest.raises(DataError, match="document 'a': its metadata"):
        store(tmp_path, [Document("a", "text", metadata={"x": value})])


def test_half_a_surrogate_pair_names_the_document(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="document 'a': its text"):
        store(tmp_path, [Document("a", "\ud800")])
