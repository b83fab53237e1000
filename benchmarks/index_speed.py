"""How fast each kind is beside its library or its exact form, in turn in one process; medians of several runs."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bm25s
import faiss
import numpy as np
from index_quality import FOLDER, ROOT, approximate_index

from sourcier.data.collections import Corpus, read_beir
from sourcier.encodings import DenseVectors, TermWeights, TokenVectors
from sourcier.indexes import create, open_index
from sourcier.indexes.bm25 import STOP_WORDS
from sourcier.indexes.index import Index

DATA = Path(os.environ.get("SOURCIER_SHARED_DATA", ROOT.parent / "shared" / "data"))
VOCABULARY = 30_522


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        yield from dense(Path(folder), 10_000 if quick else 100_000)
        yield from sparse(Path(folder), 2_000 if quick else 100_000)
        yield from multivector_synthetic(Path(folder), 200 if quick else 2_000)
        if not quick:
            yield from bm25(Path(folder))
            yield from multivector_real()


def in_turn(ours: Callable[[], Any], peer: Callable[[], Any], repeats: int = 9) -> tuple[float, float]:
    """The median seconds of two calls, made one after the other so that both see the same machine."""
    ours(), peer()
    times: list[tuple[float, float]] = []
    for _ in range(repeats):
        started = time.perf_counter()
        ours()
        between = time.perf_counter()
        peer()
        times.append((between - started, time.perf_counter() - between))
    return statistics.median(one for one, _ in times), statistics.median(one for _, one in times)


def row(
    what: str, ours: float, peer: float, peer_name: str, asked: str, holds: bool, **more: Any
) -> dict[str, Any]:
    return {
        "what": what,
        "ours": round(1e3 * ours, 3),
        "peer": round(1e3 * peer, 3),
        "peer_name": peer_name,
        "ratio": round(ours / peer, 3),
        "asked": asked,
        "holds": holds,
        **more,
    }


def unit(random: np.random.Generator, count: int, dimensions: int, centres: int, noise: float) -> np.ndarray:
    """Vectors of length 1 around some directions."""
    around = np.random.default_rng(1).normal(size=(centres, dimensions))
    found = around[random.integers(0, centres, size=count)] + noise * random.normal(size=(count, dimensions))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def written(kind: str, folder: Path, encoding: Any, chunk: int = 10_000, **build: Any) -> tuple[Index, float]:
    """An index of a kind, and the seconds that finishing it took."""
    with create(kind, folder, build=build) as writer:
        for start in range(0, len(encoding), chunk):
            part = encoding[start : start + chunk]
            writer.add([f"d{start + place}" for place in range(len(part))], part)
        started = time.perf_counter()
        writer.finish()
    return open_index(folder), time.perf_counter() - started


def dense(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    """Exact search against faiss's flat index, at the faster of its two ways."""
    vectors = unit(np.random.default_rng(0), count, 384, 1000, 0.8)
    index, _ = written("dense", folder / "dense", DenseVectors(vectors))
    flat = faiss.IndexFlatIP(384)
    flat.add(vectors)
    for queries in (1, 8, 256):
        yield _dense_row(index, flat, unit(np.random.default_rng(2), queries, 384, 1000, 0.8))


def _dense_row(index: Index, flat: faiss.Index, asked: np.ndarray) -> dict[str, Any]:
    times = []
    for threshold in (1, 20):
        faiss.cvar.distance_compute_blas_threshold = threshold
        times.append(in_turn(lambda: index.search(DenseVectors(asked), 10), lambda: flat.search(asked, 10)))
    ours, peer = min(one for one, _ in times), min(one for _, one in times)
    what = f"dense exact, {len(index):,} x 384, {len(asked)} queries: ms"
    return row(what, ours, peer, "faiss IndexFlatIP", "<= 1.1", ours <= 1.1 * peer)


def sparse(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    """Our exact lists and the kind `seismic` against Seismic itself, query by query."""
    corpus, asked = term_weights(0, count, 120), term_weights(1, 50, 40)
    exact, _ = written("sparse", folder / "sparse", corpus)
    index, _ = written("seismic", folder / "seismic", corpus)
    inner = index.parts[0].segment.index  # type: ignore[attr-defined]
    queries = [asked[place : place + 1] for place in range(len(asked))]

    def direct() -> None:
        for query in queries:
            inner.search(query.terms, query.weights, 10, 15, 0.7, 0, True)

    ours, peer = in_turn(lambda: [index.search(query, 10) for query in queries], direct, 5)
    recall = np.mean(
        [
            len({*a} & {*b}) / 10
            for a, b in zip(index.search(asked, 10).ids, exact.search(asked, 10).ids, strict=True)
        ]
    )
    yield row(
        f"seismic, {count:,} x 120 terms, 50 queries: ms", ours, peer, "pyseismic-lsr", "<= 1.1", ours <= 1.1 * peer,
        **{"recall@10": round(float(recall), 3)},
    )  # fmt: skip
    ours, peer = in_turn(lambda: [exact.search(query, 10) for query in queries], direct, 5)
    yield row(
        f"sparse exact, {count:,} x 120 terms, 50 queries: ms",
        ours,
        peer,
        "pyseismic-lsr",
        "<= 5",
        ours <= 5 * peer,
    )


def term_weights(seed: int, count: int, terms: int) -> TermWeights:
    """SPLADE-like: terms by a law like Zipf's, weights log-normal."""
    random = np.random.default_rng(seed)
    share = 1 / np.arange(1, VOCABULARY + 1) ** 0.8
    ends = np.cumsum(share / share.sum())
    names = np.random.default_rng(7).permutation(VOCABULARY)
    drawn = []
    for _ in range(count):
        found = np.unique(np.searchsorted(ends, random.random(3 * terms)).clip(max=VOCABULARY - 1))
        drawn.append(np.sort(names[random.permutation(found)[:terms]]))
    lengths = [len(one) for one in drawn]
    return TermWeights(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate(drawn).astype(np.int32),
        random.lognormal(-0.5, 0.7, size=sum(lengths)).astype(np.float32),
    )


def multivector_synthetic(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    """The case that fast-plaid 1.4 was seen to build in 35 s and to search in 240 ms a query."""
    random = np.random.default_rng(0)
    vectors = unit(random, 100 * count, 128, 500, 0.9)
    corpus = TokenVectors(np.arange(count + 1, dtype=np.int64) * 100, vectors)
    asked = np.concatenate([corpus[place : place + 1].vectors[:32] for place in range(0, count, count // 50)])
    asked = asked + 0.03 * random.normal(size=asked.shape)
    queries = TokenVectors(np.arange(len(asked) // 32 + 1, dtype=np.int64) * 32, asked.astype(np.float32))
    index, seconds = written("warp", folder / "warp", corpus)
    exact, _ = written("multivector", folder / "multivector", corpus)
    yield {
        "what": f"warp, {count:,} documents x 100 tokens x 128: seconds to build",
        "ours": round(seconds, 2),
        "peer": 35,
        "peer_name": "fast-plaid 1.4, as it was seen on such a machine",
        "ratio": round(seconds / 35, 3),
        "asked": "<= 0.2",
        "holds": seconds <= 7,
    }
    one = queries[:1]
    ours, peer = in_turn(lambda: index.search(one, 10), lambda: exact.search(one, 10))
    found, right = index.search(queries, 10), exact.search(queries, 10)
    recall = np.mean([len({*a} & {*b}) / 10 for a, b in zip(found.ids, right.ids, strict=True)])
    yield row(
        f"warp, {count:,} documents x 100 tokens x 128: ms a query", ours, peer, "our exact index", "", True,
        **{"recall@10": round(float(recall), 3), "fast-plaid seen at, ms": 240},
    )  # fmt: skip


def multivector_real() -> Iterator[dict[str, Any]]:
    """All of medquad, where `index_quality` has built it."""
    if not (FOLDER / "medquad-colbert" / "CURRENT").exists():
        print("no index of medquad: run the quality group first", flush=True)
        return
    exact = open_index(FOLDER / "medquad-colbert")
    index = approximate_index(exact, FOLDER / "medquad-warp", "warp")
    tokens = exact.parts[0].segment.vectors  # type: ignore[attr-defined]
    pick = np.random.default_rng(0).integers(0, len(tokens) - 32, size=16)
    queries = [TokenVectors(np.array([0, 32]), tokens[place : place + 32]) for place in pick]
    ours, peer = in_turn(
        lambda: [index.search(query, 10) for query in queries],
        lambda: [exact.search(query, 10) for query in queries],
        3,
    )
    flops = 2 * tokens.size * 32 * len(queries)
    yield row(
        "warp, medquad, 16 queries one by one: ms", ours, peer, "our exact index", "<= 0.05", ours <= 0.05 * peer,
        **{"exact, GFLOP/s": round(flops / peer / 1e9, 1)},
    )  # fmt: skip
    size = sum(file.bytes for file in index._version.manifest.files.values())
    limit = tokens.shape[1] / 4 + 8
    yield {
        "what": "warp, medquad: bytes a token, ids included",
        "ours": round(size / len(tokens), 2),
        "asked": f"<= {limit:g}",
        "holds": size / len(tokens) <= limit,
    }


def bm25(folder: Path) -> Iterator[dict[str, Any]]:
    """BM25 against bm25s's own retrieval, both mapped, on medquad."""
    texts = [document.content for document in Corpus.read(DATA / "medquad")]
    index = written("bm25", folder / "bm25", texts)[0]
    peer = bm25s.BM25()
    peer.index(bm25s.tokenize(texts, stopwords=STOP_WORDS, show_progress=False), show_progress=False)
    peer.save(folder / "bm25s", show_progress=False)
    peer = bm25s.BM25.load(folder / "bm25s", mmap=True, show_progress=False)
    queries = [query.text for query in read_beir(DATA / "medquad", "dev").queries.values()][:200]

    def theirs() -> None:
        words = bm25s.tokenize(queries, stopwords=STOP_WORDS, show_progress=False)
        peer.retrieve(words, k=10, show_progress=False)

    ours, other = in_turn(lambda: index.search(queries, 10), theirs, 5)
    yield row("bm25, medquad, 200 queries: ms", ours, other, "bm25s, mapped", "<= 1.1", ours <= 1.1 * other)
