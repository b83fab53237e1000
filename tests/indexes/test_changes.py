"""Adding, replacing, deleting, compacting: each kind against a dictionary that does the same. (Hazards E1, E2, E6.)"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexes.encoded import KINDS, Kind, build

from sourcier.encodings import DenseVectors
from sourcier.indexes import collect_garbage, create, extend, open_index, open_version
from sourcier.indexes.changes import compact, delete
from sourcier.types import EMPTY_SCORE, SourcierError

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)

changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 15), min_size=1, max_size=4)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("gc"), st.none()),
    ),
    min_size=1,
    max_size=6,
)


@every_kind
@settings(max_examples=12, deadline=None)
@given(sequence=changes, seed=st.integers(0, 2**31))
def test_an_index_is_what_a_dictionary_would_be(kind: Kind, sequence: list[Any], seed: int) -> None:
    random = np.random.default_rng(seed)
    asked = kind.encode(random, 3)
    with tempfile.TemporaryDirectory() as folder:
        model = {"first": kind.encode(random, 1)}
        build(kind.name, Path(folder), model["first"], ids=["first"])
        for change, numbers in sequence:
            if change == "add":
                new = kind.encode(random, len(numbers))
                ids = [f"d{number}" for number in numbers]
                with extend(folder) as writer:
                    writer.add(ids, new)
                    writer.finish()
                for place, identifier in enumerate(ids):
                    model.pop(identifier, None)
                    model[identifier] = new[place : place + 1]
            elif change == "delete":
                ids = [f"d{number}" for number in numbers]
                found = delete(folder, ids)
                assert set(found.unknown) == set(ids) - set(model)
                assert found.deleted == len(set(ids) & set(model))
                for identifier in ids:
                    model.pop(identifier, None)
            elif change == "compact":
                compact(folder)
            else:
                collect_garbage(folder)
        hits = open_index(folder).search(asked, 20)
    scores = kind.scores(asked, type(asked).concatenate(list(model.values())))
    order = np.argsort(-scores, axis=1, kind="stable")
    assert hits.ids.tolist() == [[list(model)[place] for place in row] for row in order]
    np.testing.assert_allclose(hits.scores, np.take_along_axis(scores, order, axis=1), rtol=1e-6)


@every_kind
def test_deleting_renumbers_nothing(kind: Kind, tmp_path: Path) -> None:
    """The numbers of hazard E1: each document is the best for itself."""
    if kind.name == "dense":
        corpus: Any = DenseVectors(np.eye(100, dtype=np.float32))
    else:
        random = np.random.default_rng(0)
        corpus = kind.encode(random, 400)
        own = kind.scores(corpus, corpus)
        unique = np.flatnonzero(
            (own.argmax(axis=1) == np.arange(400)) & ((own == own.max(axis=1)[:, None]).sum(axis=1) == 1)
        )
        corpus = (
            corpus.take(unique[:100]) if len(unique) >= 100 else pytest.skip("too few distinct documents")
        )
    names = [f"d{number}" for number in range(100)]
    build(kind.name, tmp_path, corpus, ids=names)
    found = delete(tmp_path, ["d3", "d50", "nope"])
    assert (found.deleted, found.unknown) == (2, ["nope"])
    index = open_index(tmp_path)
    assert len(index) == 98
    for number in (99, 4, 51):
        assert index.search(corpus[number : number + 1], 1).ids.tolist() == [[f"d{number}"]]
    everything = index.search(corpus[:1], 100).ids[0].tolist()
    assert sorted(everything) == sorted(set(names) - {"d3", "d50"})
    with extend(tmp_path) as writer:
        writer.add(["d3"], corpus[3:4])
        writer.finish()
    index = open_index(tmp_path)
    assert len(index) == 99
    assert index.search(corpus[3:4], 1).ids.tolist() == [["d3"]]


ONE = DenseVectors(np.eye(2, dtype=np.float32)[:1])


def test_an_unknown_id_alone_makes_no_version(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["a"])
    assert delete(tmp_path, ["nope"]).version == "000001"
    assert open_version(tmp_path).name == "000001"


def test_documents_without_content_can_be_deleted(tmp_path: Path) -> None:
    with create("dense", tmp_path) as writer:
        writer.add_empty(["a", "b"])
        writer.add(["c"], ONE)
        writer.finish()
    delete(tmp_path, ["a"])
    hits = open_index(tmp_path).search(ONE, 5)
    assert hits.ids.tolist() == [["c", "b"]]
    assert hits.scores[0, 1] == np.float32(EMPTY_SCORE)


def test_an_index_of_which_all_is_deleted(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["a"])
    delete(tmp_path, ["a"])
    assert open_index(tmp_path).search(ONE, 5).ids.shape == (1, 0)
    compact(tmp_path)
    assert open_index(tmp_path).search(ONE, 5).ids.shape == (1, 0)


def test_a_reader_keeps_its_version_when_the_files_are_gone(tmp_path: Path) -> None:
    reader = build("dense", tmp_path, ONE, ids=["a"])
    build("dense", tmp_path, ONE, ids=["b"])
    assert collect_garbage(tmp_path) > 0
    assert reader.search(ONE, 1).ids.tolist() == [["a"]]
    assert [folder.name for folder in (tmp_path / "segments").iterdir()] == ["000002"]


def test_compacting_is_a_fresh_build(tmp_path: Path) -> None:
    """File by file, apart from the names of version and segment."""
    vectors = DenseVectors(np.arange(12, dtype=np.float32).reshape(6, 2))
    build("dense", tmp_path / "changed", vectors[:4], ids=list("abcd"))
    with extend(tmp_path / "changed") as writer:
        writer.add(["b", "e"], vectors[4:])
        writer.finish()
    delete(tmp_path / "changed", ["c"])
    segment = compact(tmp_path / "changed").manifest.segments[0]
    rows = np.array([0, 3, 4, 5])
    build("dense", tmp_path / "fresh", vectors.take(rows), ids=["a", "d", "b", "e"])
    ours, fresh = tmp_path / "changed" / "segments" / segment.name, tmp_path / "fresh" / "segments" / "000001"
    assert {path.relative_to(ours): path.read_bytes() for path in ours.rglob("*") if path.is_file()} == {
        path.relative_to(fresh): path.read_bytes() for path in fresh.rglob("*") if path.is_file()
    }


def test_adding_needs_an_index(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="no index here"):
        extend(tmp_path / "nothing")


def test_vectors_of_another_size_cannot_be_added(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["a"])
    with (
        extend(tmp_path) as writer,
        pytest.raises(SourcierError, match="3 dimensions cannot join an index of 2"),
    ):
        writer.add(["b"], DenseVectors(np.ones((1, 3), dtype=np.float32)))
