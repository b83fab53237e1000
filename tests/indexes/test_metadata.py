"""Typed columns of metadata: what types they get, and that filters on several segments are those on one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sourcier.encodings import DenseVectors
from sourcier.indexes import changes, create, extend, open_index
from sourcier.indexes.documents import DocumentStore, DocumentWriter, as_batch
from sourcier.indexes.metadata import FILE, Metadata, joined, write_metadata
from sourcier.indexes.where import WrongFilter, parse
from sourcier.types import Document


def written(folder: Path, values: Sequence[dict[str, Any]], rows_of_a_batch: int = 2) -> Metadata:
    documents = [Document(f"d{row}", "text", f"title {row}", one) for row, one in enumerate(values)]
    batches = [
        as_batch(documents[start : start + rows_of_a_batch])
        for start in range(0, len(documents), rows_of_a_batch)
    ]
    with DocumentWriter(folder) as writer:
        for batch in batches:
            writer.add(batch)
        writer.finish()
    write_metadata(folder, batches, batches)
    return Metadata(folder / FILE if (folder / FILE).is_file() else None, DocumentStore(folder))


def found(metadata: Metadata, where: str, count: int) -> list[int]:
    return np.flatnonzero(metadata.passing(parse(where), count, metadata.types)).tolist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"], "string"),
        ([True, False], "bool"),
        ([1, 2], "int64"),
        ([1, 2.5], "double"),
        ([["a"], ["b", "c"]], "list<item: string>"),
        ([1, "a"], "string"),
        ([True, 1], "string"),
        ([["a"], [1]], "string"),
        ([{"deep": 1}], "string"),
        ([1, 2**63], "string"),
        ([None, 1, None], "int64"),
    ],
)
def test_a_field_has_the_type_that_holds_all(values: list[Any], kind: str, tmp_path: Path) -> None:
    assert str(written(tmp_path, [{"field": value} for value in values]).types["field"]) == kind


def test_a_mixture_is_texts_and_the_json_of_the_rest(tmp_path: Path) -> None:
    values = ["a", 1, True, {"deep": ["ü"]}, None]
    metadata = written(tmp_path, [{"field": value} for value in values])
    wanted = ["'a'", "'1'", "'true'", '\'{"deep": ["ü"]}\'']
    assert [found(metadata, f"field = {text}", 5) for text in wanted] == [[0], [1], [2], [3]]
    assert found(metadata, "field is null", 5) == [4]


def test_what_a_document_does_not_say_is_missing(tmp_path: Path) -> None:
    metadata = written(tmp_path, [{"lang": "de"}, {}, {"year": 2020}])
    assert found(metadata, "lang is null", 3) == [1, 2]
    assert found(metadata, "not year = 1999", 3) == [2]


def test_a_filter_can_ask_for_id_and_title(tmp_path: Path) -> None:
    metadata = written(tmp_path, [{"id": "another"}, {}, {}])
    assert found(metadata, "id in ('d0', 'd2')", 3) == [0, 2]
    assert found(metadata, "title like '%1' or title = 'title 2'", 3) == [1, 2]


def test_documents_without_metadata_need_no_file(tmp_path: Path) -> None:
    metadata = written(tmp_path, [{}, {}])
    assert not (tmp_path / FILE).exists()
    assert set(metadata.types) == {"id", "title"}


def test_a_field_has_in_an_index_the_type_that_all_its_segments_hold(tmp_path: Path) -> None:
    parts = []
    for name, values in (("numbers", [1, 2]), ("texts", ["1", "x"])):
        (tmp_path / name).mkdir()
        parts.append(written(tmp_path / name, [{"field": value} for value in values]))
    types = joined(part.types for part in parts)
    assert [part.passing(parse("field = '1'"), 2, types).tolist() for part in parts] == [[True, False]] * 2
    with pytest.raises(WrongFilter, match="field holds texts"):
        parts[0].passing(parse("field = 1"), 2, types)


scalars = st.none() | st.integers(0, 3) | st.sampled_from([0.5, 2.0, "1", "x", True])
FILTERS = [
    "f = 1",
    "f = '1'",
    "f > 0.6",
    "f is null",
    "not f = 2",
    "f like '_'",
    "f = true",
    "g = 2",
    "id != 'd1'",
]


@settings(max_examples=20)
@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"f": scalars, "g": st.integers(0, 3)}), min_size=2, max_size=7
    )
)
def test_filters_are_the_same_before_and_after_compaction(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("index")
    documents = [Document(f"d{row}", "text", metadata=one) for row, one in enumerate(values)]
    half = len(documents) // 2
    for part in (documents[:half], documents[half:]):
        with create("dense", path) if part[0].id == "d0" else extend(path) as writer:
            vectors = DenseVectors(np.ones((len(part), 2), dtype=np.float32))
            writer.add([document.id for document in part], vectors, documents=part)
            writer.finish()
    before = [_answer(path, where) for where in FILTERS]
    changes.compact(path)
    assert [_answer(path, where) for where in FILTERS] == before


def _answer(path: Path, where: str) -> list[str] | str:
    """The ids that a search finds, or why it is refused."""
    query = DenseVectors(np.ones((1, 2), dtype=np.float32))
    try:
        (hits,) = open_index(path).search(query, k=10, where=where)
    except WrongFilter as error:
        return str(error)
    return [hit.id for hit in hits]
