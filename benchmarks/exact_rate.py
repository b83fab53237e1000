"""Exact search against the machine's matrix-product rate: how much of it dense search and MaxSim reach.

python benchmarks/exact_rate.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sourcier.encodings import DenseVectors, TokenVectors
from sourcier.indexes import create, open_index

DOCUMENTS = 10_000
DENSE_DIMENSIONS, DENSE_QUERIES = 384, 256
TOKEN_DIMENSIONS, TOKEN_QUERIES, QUERY_TOKENS = 128, 32, 32
#: Tokens of a document: 80 in the mean.
TOKENS = (40, 121)
K = 10
SIDE = 3072
ASKED = 0.5


def rows(repeats: int = 7) -> list[dict[str, Any]]:
    """One row a kind: billions of multiplications and additions a second, ours and those of one large product."""
    random = np.random.default_rng(0)
    square = random.standard_normal((SIDE, SIDE), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        return [
            _row(what, search, operations, square, repeats)
            for what, search, operations in (
                _dense(random, Path(folder) / "dense"),
                _multivector(random, Path(folder) / "multivector"),
            )
        ]


def _dense(random: np.random.Generator, path: Path) -> tuple[str, Callable[[], object], int]:
    with create("dense", path) as writer:
        writer.add(_ids(), DenseVectors(_unit(random, DOCUMENTS, DENSE_DIMENSIONS)))
        writer.finish()
    index, queries = open_index(path), DenseVectors(_unit(random, DENSE_QUERIES, DENSE_DIMENSIONS))
    operations = 2 * DENSE_QUERIES * DOCUMENTS * DENSE_DIMENSIONS
    return "exact dense search", lambda: index.search(queries, K), operations


def _multivector(random: np.random.Generator, path: Path) -> tuple[str, Callable[[], object], int]:
    offsets = np.concatenate([[0], np.cumsum(random.integers(*TOKENS, size=DOCUMENTS))])
    tokens = int(offsets[-1])
    with create("multivector", path) as writer:
        writer.add(_ids(), TokenVectors(offsets, _unit(random, tokens, TOKEN_DIMENSIONS)))
        writer.finish()
    index = open_index(path)
    columns = TOKEN_QUERIES * QUERY_TOKENS
    queries = TokenVectors(np.arange(0, columns + 1, QUERY_TOKENS), _unit(random, columns, TOKEN_DIMENSIONS))
    return "exact MaxSim search", lambda: index.search(queries, K), 2 * columns * tokens * TOKEN_DIMENSIONS


def _row(
    what: str, search: Callable[[], object], operations: int, square: np.ndarray, repeats: int
) -> dict[str, Any]:
    """Medians of runs in turn: ours, the large product, ours, …"""
    search()  # compiles
    ours, products = [], []
    for _ in range(repeats):
        ours.append(operations / _seconds(search) / 1e9)
        products.append(2 * SIDE**3 / _seconds(lambda: square @ square) / 1e9)
    mine, peer = statistics.median(ours), statistics.median(products)
    return {
        "what": f"{what}, {DOCUMENTS} documents, GFLOP/s",
        "ours": round(mine, 1),
        "peer": round(peer, 1),
        "peer_name": f"numpy float32 matrix product of {SIDE} x {SIDE}",
        "ratio": round(mine / peer, 2),
        "asked": f">= {ASKED}",
        "holds": mine / peer >= ASKED,
    }


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _ids() -> list[str]:
    return [f"d{number}" for number in range(DOCUMENTS)]


def _unit(random: np.random.Generator, count: int, dimensions: int) -> np.ndarray:
    vectors = random.standard_normal((count, dimensions), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    for row in rows():
        print(
            f"{row['what']}: {row['ours']} of {row['peer']} ({row['peer_name']}): "
            f"ratio {row['ratio']}, asked {row['asked']}, {'holds' if row['holds'] else 'does not hold'}"
        )


if __name__ == "__main__":
    main()
