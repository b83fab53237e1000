"""The kind `warp`: codes against arithmetic, the search against brute force over decoded tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourcier.encodings import TokenVectors
from sourcier.indexes import create, extend, open_index
from sourcier.indexes.changes import compact
from sourcier.indexes.warp import search as searching
from sourcier.indexes.warp.codec import Codec, centroid_count, decode, encode, nearest, train
from sourcier.indexes.warp.segment import WarpSearch
from sourcier.types import SourcierError

DIMENSIONS = 16


def tokens(seed: int, documents: int, longest: int = 30) -> TokenVectors:
    """Unit vectors around forty directions, documents of different lengths."""
    random = np.random.default_rng(seed)
    directions = np.random.default_rng(99).normal(size=(40, DIMENSIONS))
    offsets = np.concatenate([[0], np.cumsum(random.integers(1, longest, size=documents))]).astype(np.int64)
    vectors = directions[random.integers(0, 40, size=offsets[-1])] + 0.4 * random.normal(
        size=(offsets[-1], DIMENSIONS)
    )
    return TokenVectors(
        offsets, (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    )


def write(folder: Path, corpus: TokenVectors, chunk: int = 150, first: int = 0, **build: Any) -> Any:
    with create("warp", folder, build=build) as writer:
        for start in range(0, len(corpus), chunk):
            part = corpus[start : start + chunk]
            writer.add([f"d{first + start + number}" for number in range(len(part))], part)
        writer.finish()
    return open_index(folder)


@pytest.fixture(scope="module")
def corpus() -> TokenVectors:
    return tokens(0, 600)


@pytest.fixture(scope="module")
def index(corpus: TokenVectors, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write(tmp_path_factory.mktemp("warp"), corpus)


def maxsim(queries: TokenVectors, documents: TokenVectors) -> np.ndarray:
    products = queries.vectors.astype(np.float64) @ documents.vectors.T.astype(np.float64)
    best = np.maximum.reduceat(products, documents.offsets[:-1], axis=1)
    return np.add.reduceat(best, queries.offsets[:-1], axis=0)


def decoded(index: Any) -> TokenVectors:
    segment = index.parts[0].segment
    vectors = decode(segment.codec, segment.lists.own[:], segment.lists.codes[:])
    return TokenVectors(np.array(segment.lists.offsets), vectors)


def normalised(tokens: TokenVectors) -> TokenVectors:
    return TokenVectors(
        tokens.offsets, tokens.vectors / np.linalg.norm(tokens.vectors, axis=1, keepdims=True)
    )


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("dimensions", [8, 5])
def test_a_code_stands_for_the_level_between_its_cutoffs(bits: int, dimensions: int) -> None:
    random = np.random.default_rng(bits)
    cutoffs = np.sort(random.normal(size=(dimensions, 2**bits - 1)), axis=1).astype(np.float32)
    levels = random.normal(size=(dimensions, 2**bits)).astype(np.float32)
    centroids = random.normal(size=(3, dimensions)).astype(np.float16).astype(np.float32)
    codec = Codec(centroids, cutoffs, levels, unit=False)
    vectors = random.normal(size=(50, dimensions)).astype(np.float32)
    own, codes = encode(codec, vectors)
    assert codes.shape == (50, -(-dimensions * bits // 8))
    distance = ((vectors[:, None] - codec.centroids[None]) ** 2).sum(axis=2)
    assert own.tolist() == distance.argmin(axis=1).tolist()
    residuals = vectors - codec.centroids[own]
    level = (residuals[:, :, None] >= cutoffs[None]).sum(axis=2)
    expected = codec.centroids[own] + np.take_along_axis(levels[None], level[:, :, None], axis=2)[:, :, 0]
    np.testing.assert_array_equal(decode(codec, own, codes), expected)


def test_a_codec_on_disk_is_the_same(tmp_path: Path) -> None:
    codec = train(tokens(1, 300).vectors, 32, 2)
    codec.save(tmp_path)
    for ours, read in zip(vars(codec).values(), vars(Codec.open(tmp_path, unit=True)).values(), strict=False):
        np.testing.assert_array_equal(ours, read)


@pytest.mark.parametrize(("length", "unit"), [(1.0, True), (1.2, False)])
def test_whether_tokens_have_length_1_is_seen(length: float, unit: bool) -> None:
    assert train(length * tokens(1, 300).vectors, 32, 2).unit is unit


def test_more_bits_are_nearer_to_the_vectors() -> None:
    vectors = tokens(2, 300).vectors
    errors = []
    for bits in (1, 2, 4):
        codec = train(vectors, 32, bits)
        errors.append(float(np.square(decode(codec, *encode(codec, vectors)) - vectors).mean()))
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]


@pytest.mark.parametrize(("bits", "levels"), [(1, [0.7979]), (2, [0.4528, 1.510])])
def test_levels_are_those_of_the_least_error(bits: int, levels: list[float]) -> None:
    """Of normal values the optimal ones are known (Max 1960, table I)."""
    residuals = np.random.default_rng(0).normal(size=(2**15, 2)).astype(np.float32)
    # One centroid, so that what is left of a token is its distance from the mean.
    found = train(residuals, 1, bits).levels
    np.testing.assert_allclose(found, [[-one for one in levels[::-1]] + levels] * 2, atol=0.03)


def test_training_is_the_same_each_time() -> None:
    vectors = tokens(3, 300).vectors
    first, second = train(vectors, 32, 2), train(vectors, 32, 2)
    np.testing.assert_array_equal(first.centroids, second.centroids)
    np.testing.assert_array_equal(first.levels, second.levels)


def test_the_nearest_is_that_of_the_least_distance() -> None:
    centroids = np.array([[3.0, 0.0], [0.5, 0.0]], dtype=np.float32)
    assert nearest(np.array([[1.0, 0.0]], dtype=np.float32), centroids).tolist() == [1]


@pytest.mark.parametrize(("count", "expected"), [(1, 8), (4096, 512), (2_400_000, 8192)])
def test_how_many_centroids(count: int, expected: int) -> None:
    assert centroid_count(count) == expected


def test_with_all_lists_probed_the_search_is_brute_force_over_codes(index: Any) -> None:
    asked = tokens(4, 20, longest=8)
    every = WarpSearch(probes=10**6, candidates=600)
    hits = index.search(asked, 10, search=every)
    scores = maxsim(asked, normalised(decoded(index)))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    assert hits.ids.tolist() == [[f"d{row}" for row in rows] for rows in order]
    np.testing.assert_allclose(hits.scores, np.take_along_axis(scores, order, axis=1), rtol=1e-5)


def test_candidates_are_those_of_the_plain_form(index: Any) -> None:
    """Probed tokens, the best of each document for each query token, and the first list not probed for the others."""
    segment, query, probes = index.parts[0].segment, tokens(5, 1, longest=6).vectors, 3
    vectors, own = decoded(index), np.array(segment.lists.own)
    scores = query @ segment.codec.centroids.T
    total = np.zeros(len(segment))
    seen = np.zeros(len(segment), dtype=bool)
    document_of = np.repeat(np.arange(len(segment)), np.diff(vectors.offsets))
    for token, row in zip(query, scores, strict=True):
        order = np.argsort(-row)
        best = np.full(len(segment), -np.inf)
        probed = np.isin(own, order[:probes])
        np.maximum.at(best, document_of[probed], vectors.vectors[probed] @ token)
        seen |= np.isfinite(best)
        total += np.where(np.isfinite(best), best, row[order[probes]])
    expected = np.sort(np.argsort(np.where(seen, -total, np.inf))[:25])
    found = searching.candidates(query, segment.codec, segment.lists, probes, 25, None)
    assert found.tolist() == expected.tolist()


def test_the_default_search_finds_what_exact_search_finds(index: Any, corpus: TokenVectors) -> None:
    asked = corpus.take(np.arange(0, 600, 20))
    exact = np.argsort(-maxsim(asked, corpus), axis=1)[:, :10]
    hits = index.search(asked, 10)
    found = [len({f"d{row}" for row in rows} & set(ids)) for rows, ids in zip(exact, hits.ids, strict=True)]
    assert np.mean(found) >= 8
    assert hits.ids[:, 0].tolist() == [f"d{row}" for row in range(0, 600, 20)]


def test_a_result_does_not_depend_on_the_batch(index: Any) -> None:
    asked = tokens(6, 9)
    together = index.search(asked, 10)
    alone = [index.search(asked[row : row + 1], 10) for row in range(9)]
    assert together.scores.tolist() == [one.scores[0].tolist() for one in alone]
    assert together.ids.tolist() == [one.ids[0].tolist() for one in alone]


def test_more_hits_than_the_probed_lists_hold(index: Any) -> None:
    hits = index.search(tokens(7, 2), 600)
    assert [len(set(row)) for row in hits.ids.tolist()] == [600, 600]
    assert not hits.short.any()


def test_only_allowed_documents_are_found(index: Any) -> None:
    segment = index.parts[0].segment
    allowed = np.zeros(600, dtype=bool)
    allowed[[5, 77, 300]] = True
    ranked = segment.best(segment.checked(tokens(8, 2)), 3, allowed, WarpSearch())
    assert [sorted(row) for row in ranked.rows.tolist()] == [[5, 77, 300]] * 2


def test_chunks_change_nothing(tmp_path: Path, corpus: TokenVectors) -> None:
    write(tmp_path / "a", corpus, chunk=600)
    write(tmp_path / "b", corpus, chunk=600)
    for name in ("codes.npy", "tokens.npy", "centroids.npy"):
        ours, again = (tmp_path / one / "segments" / "000001" / "kind" / name for one in "ab")
        assert ours.read_bytes() == again.read_bytes()


def test_few_tokens_are_kept_as_they_are(tmp_path: Path) -> None:
    corpus, asked = tokens(9, 40), tokens(10, 3)
    hits = write(tmp_path, corpus).search(asked, 5)
    scores = maxsim(asked, corpus)
    np.testing.assert_allclose(hits.scores, -np.sort(-scores, axis=1)[:, :5], rtol=1e-6)


def test_compaction_moves_codes(tmp_path: Path, corpus: TokenVectors) -> None:
    """Added documents take the codec over, so that nothing is coded a second time."""
    write(tmp_path, corpus)
    more = tokens(11, 50)
    with extend(tmp_path) as writer:
        writer.add([f"m{row}" for row in range(50)], more)
        writer.finish()
    before = [decoded_part(part) for part in open_index(tmp_path).parts]
    compact(tmp_path)
    (after,) = [decoded_part(part) for part in open_index(tmp_path).parts]
    np.testing.assert_array_equal(after, np.concatenate(before))


def decoded_part(part: Any) -> np.ndarray:
    return decode(part.segment.codec, part.segment.lists.own[:], part.segment.lists.codes[:])


def test_a_small_index_learns_when_it_is_compacted(tmp_path: Path, corpus: TokenVectors) -> None:
    write(tmp_path, corpus[:30])
    with extend(tmp_path) as writer:
        writer.add([f"d{row}" for row in range(30, 600)], corpus[30:])
        writer.finish()
    exact, coded = (part.segment for part in open_index(tmp_path).parts)
    assert (exact.codec is None, coded.codec is None) == (True, False)
    compact(tmp_path)
    (only,) = (part.segment for part in open_index(tmp_path).parts)
    assert only.codec is not None
    assert len(only) == 600


@pytest.mark.parametrize(
    ("build", "message"), [({"bits": 3}, "bits=3 must be 1, 2 or 4"), ({"bist": 2}, "did you mean 'bits'")]
)
def test_settings_that_are_none(tmp_path: Path, build: dict[str, Any], message: str) -> None:
    with pytest.raises(SourcierError, match=message):
        create("warp", tmp_path, build=build)
