"""Every kind against plain scores of all pairs, with ties, ragged rows, empty documents, and any k."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from indexes.encoded import KINDS, Kind, best_first, build, names

from sourcier.encodings import DenseVectors, TermVectors, TermWeights, TokenVectors
from sourcier.indexes import create, open_index
from sourcier.types import EMPTY_SCORE, SourcierError

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**31), documents=st.integers(1, 60), queries=st.integers(1, 5), k=st.integers(1, 70)
)
def test_search_gives_the_best_of_all_pairs(
    kind: Kind, tmp_path: Path, seed: int, documents: int, queries: int, k: int
) -> None:
    random = np.random.default_rng(seed)
    corpus, asked = kind.encode(random, documents), kind.encode(random, queries)
    hits = build(kind.name, tmp_path / "index", corpus).search(asked, k)
    scores = kind.scores(asked, corpus)
    order = best_first(scores)[:, :k]
    assert hits.ids.tolist() == [[f"d{row}" for row in rows] for rows in order]
    np.testing.assert_allclose(hits.scores, np.take_along_axis(scores, order, axis=1), rtol=1e-6)


@every_kind
def test_chunks_make_the_same_index_as_one_piece(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    corpus, asked = kind.encode(random, 50), kind.encode(random, 4)
    whole = build(kind.name, tmp_path / "whole", corpus).search(asked, 20)
    with create(kind.name, tmp_path / "chunks") as writer:
        for start, stop in ((0, 1), (1, 30), (30, 30), (30, 50)):
            writer.add(names(stop - start, first=start), corpus[start:stop])
        writer.finish()
    chunks = open_index(tmp_path / "chunks").search(asked, 20)
    assert chunks.ids.tolist() == whole.ids.tolist()
    assert chunks.scores.tolist() == whole.scores.tolist()


@every_kind
def test_more_hits_than_documents_is_the_whole_corpus(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    hits = build(kind.name, tmp_path, kind.encode(random, 4)).search(kind.encode(random, 2), 10)
    assert hits.ids.shape == (2, 4)
    assert [sorted(row) for row in hits.ids.tolist()] == [["d0", "d1", "d2", "d3"]] * 2


@every_kind
def test_five_hundred_of_eight_hundred(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    hits = build(kind.name, tmp_path, kind.encode(random, 800)).search(kind.encode(random, 2), 500)
    assert [len(set(row)) for row in hits.ids.tolist()] == [500, 500]


@every_kind
def test_memory_of_a_search_does_not_grow_with_the_documents(kind: Kind, tmp_path: Path) -> None:
    """A thousand hits of each query, over 4,000 and over 32,000 documents. (Hazard H5.)"""
    random = np.random.default_rng(17)
    some, asked = kind.encode(random, 500), kind.encode(random, 8)
    peaks = []
    for copies in (8, 64):
        corpus = type(some).concatenate([some] * copies)
        ids = [f"d{number:05}" for number in range(len(corpus))]
        index = build(kind.name, tmp_path / str(copies), corpus, ids=ids)
        index.search(asked, 1000)  # compiles what is compiled at the first call
        tracemalloc.start()
        try:
            index.search(asked, 1000)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


@every_kind
@pytest.mark.parametrize("k", [0, -1, 2.5, "10", None, True])
def test_k_must_be_a_positive_whole_number(kind: Kind, tmp_path: Path, k: Any) -> None:
    random = np.random.default_rng(4)
    index = build(kind.name, tmp_path, kind.encode(random, 3))
    with pytest.raises(ValueError, match="k must be"):
        index.search(kind.encode(random, 1), k)


@every_kind
def test_equal_documents_come_in_the_order_of_insertion(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    one = kind.encode(random, 1)
    corpus = type(one).concatenate([one] * 300)
    hits = build(kind.name, tmp_path, corpus).search(kind.encode(random, 3), 40)
    assert hits.ids.tolist() == [names(40)] * 3


@every_kind
def test_documents_without_content_come_last(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    corpus, asked = kind.encode(random, 5), kind.encode(random, 3)
    content = np.array([False, True, True, False, True, True, True, False])
    index = build(kind.name, tmp_path, corpus, ids=names(8), content=content)
    hits = index.search(asked, 7)
    filled = np.flatnonzero(content)
    expected = [[f"d{filled[column]}" for column in row] for row in best_first(kind.scores(asked, corpus))]
    assert hits.ids.tolist() == [[*row, "d0", "d3"] for row in expected]
    assert (hits.scores[:, 5:] == np.float32(EMPTY_SCORE)).all()
    assert np.isfinite(hits.scores).all()


@every_kind
def test_an_index_of_documents_without_content_alone(kind: Kind, tmp_path: Path) -> None:
    with create(kind.name, tmp_path) as writer:
        writer.add_empty(["a", "b"])
        writer.finish()
    hits = open_index(tmp_path).search(kind.encode(np.random.default_rng(7), 2), 5)
    assert hits.ids.tolist() == [["a", "b"]] * 2


@every_kind
def test_no_queries_give_no_rows(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    index = build(kind.name, tmp_path, kind.encode(random, 4))
    assert index.search(kind.encode(random, 0), 3).ids.shape == (0, 3)


@every_kind
def test_an_encoding_of_another_family_is_refused(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    other = next(one for one in KINDS if one.name != kind.name)
    index = build(kind.name, tmp_path, kind.encode(random, 4))
    with pytest.raises(SourcierError, match=f"kind '{kind.name}' takes .*, not "):
        index.search(other.encode(random, 1), 3)


@every_kind
def test_a_reader_and_another_share_the_files_read_only(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(10)
    first = build(kind.name, tmp_path, kind.encode(random, 20))
    second, asked = open_index(tmp_path), kind.encode(random, 2)
    assert first.search(asked, 5).ids.tolist() == second.search(asked, 5).ids.tolist()
    segment = first.parts[0].segment
    arrays = segment.postings.vectors if hasattr(segment, "postings") else segment.vectors
    assert isinstance(arrays.base, np.memmap)
    assert not arrays.flags.writeable


@pytest.mark.parametrize("name", ["dense", "multivector", "term_vectors"])
def test_queries_of_another_size_are_refused(name: str, tmp_path: Path) -> None:
    kind = next(one for one in KINDS if one.name == name)
    random = np.random.default_rng(11)
    index = build(name, tmp_path, kind.encode(random, 4))
    with pytest.raises(SourcierError, match="3 dimensions"):
        index.search(kind.encode(random, 1, 3), 2)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["dense", "multivector", "term_vectors"])
def test_documents_of_two_sizes_are_refused(name: str, tmp_path: Path) -> None:
    kind = next(one for one in KINDS if one.name == name)
    random = np.random.default_rng(12)
    with create(name, tmp_path) as writer:
        writer.add(["a"], kind.encode(random, 1))
        with pytest.raises(SourcierError, match="3 dimensions"):
            writer.add(["b"], kind.encode(random, 1, 3))  # type: ignore[call-arg]


@every_kind
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_name_the_document(kind: Kind, tmp_path: Path, value: float) -> None:
    random = np.random.default_rng(13)
    corpus = kind.encode(random, 6)
    _spoil(corpus, 4, value)
    content = np.array([True, False, True, True, True, True, True])
    with create(kind.name, tmp_path) as writer, pytest.raises(SourcierError, match="document 'd5'"):
        writer.add(names(7), corpus, content=content)


@every_kind
def test_numbers_that_are_none_name_the_query(kind: Kind, tmp_path: Path) -> None:
    random = np.random.default_rng(14)
    index, asked = build(kind.name, tmp_path, kind.encode(random, 3)), kind.encode(random, 4)
    _spoil(asked, 2, np.nan)
    with pytest.raises(SourcierError, match="query 2"):
        index.search(asked, 1)


@pytest.mark.parametrize(
    ("kind", "queries"),
    [
        ("multivector", TokenVectors(np.array([0, 0, 1]), np.ones((1, 8), dtype=np.float32))),
        ("sparse", TermWeights(np.array([0, 0, 1]), np.array([3]), np.ones(1, dtype=np.float32))),
        ("term_vectors", TermVectors(np.array([0, 0, 1]), np.array([3]), np.ones((1, 4), dtype=np.float32))),
    ],
)
def test_a_query_without_entries_has_no_hits(kind: str, queries: Any, tmp_path: Path) -> None:
    encode = next(one.encode for one in KINDS if one.name == kind)
    hits = build(kind, tmp_path, encode(np.random.default_rng(15), 4)).search(queries, 3)
    assert hits.counts.tolist() == [0, 3]
    assert hits.ids[0].tolist() == [None] * 3


def test_all_negative_maxsim_is_negative(tmp_path: Path) -> None:
    documents = TokenVectors(np.array([0, 2]), np.array([[-0.5, 0], [-1, 0]], dtype=np.float32))
    index = build("multivector", tmp_path, documents)
    hits = index.search(TokenVectors(np.array([0, 1]), np.array([[1, 0]], dtype=np.float32)), 1)
    assert hits.scores.tolist() == [[-0.5]]


def test_a_document_without_tokens_comes_last(tmp_path: Path) -> None:
    documents = TokenVectors(np.array([0, 1, 1, 2]), np.array([[-1, 0], [-2, 0]], dtype=np.float32))
    index = build("multivector", tmp_path, documents)
    hits = index.search(TokenVectors(np.array([0, 1]), np.array([[1, 0]], dtype=np.float32)), 3)
    assert hits.ids.tolist() == [["d0", "d2", "d1"]]


def test_a_query_term_that_no_document_holds_scores_nothing(tmp_path: Path) -> None:
    documents = TermWeights(np.array([0, 1]), np.array([2]), np.ones(1, dtype=np.float32))
    index = build("sparse", tmp_path, documents)
    hits = index.search(TermWeights(np.array([0, 1]), np.array([30_000]), np.ones(1, dtype=np.float32)), 1)
    assert hits.scores.tolist() == [[0.0]]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_vectors_of_other_precisions(dtype: type, tmp_path: Path) -> None:
    documents = DenseVectors(np.eye(3, dtype=dtype))
    hits = build("dense", tmp_path, documents).search(DenseVectors(np.eye(3, dtype=dtype)), 1)
    assert hits.ids.tolist() == [["d0"], ["d1"], ["d2"]]


def _spoil(encoding: Any, row: int, value: float) -> None:
    """Put a number into one row."""
    values = encoding.weights if hasattr(encoding, "weights") else encoding.vectors
    values.reshape(len(values), -1)[encoding.offsets[row] if hasattr(encoding, "offsets") else row, 0] = value
