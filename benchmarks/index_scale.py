"""How build and search grow with the collection, and what several readers share: each case in processes of its own.

python benchmarks/index_scale.py build KIND COUNT FOLDER      one build; prints a line of JSON
python benchmarks/index_scale.py read KIND FOLDER             one reader; prints a line of JSON
python benchmarks/index_scale.py wait KIND FOLDER             searches, says so, and waits: for the memory of four
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

CHUNK = 10_000
COUNTS = {"dense": 1_000_000, "sparse": 1_000_000, "warp": 200_000}
QUERIES = 100


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    for kind, count in COUNTS.items():
        small: dict[str, Any] = {}
        for size in (count // 100, count // 10) if quick else (count // 10, count):
            with tempfile.TemporaryDirectory() as folder:
                found = {**_run("build", kind, str(size), folder), **_run("read", kind, folder)}
                found["four readers, MB each (PSS)"] = _shared(kind, folder)
            row = {"what": f"{kind}, {size:,} documents", **found}
            if small:
                row["growth"] = {
                    name: round(found[name] / small[name], 2) for name in found if small.get(name)
                }
            else:
                small = found
            yield row | {"asked": "opens in < 0.2 s", "holds": found["open, s"] < 0.2}


def chunks(kind: str, count: int) -> Iterator[Any]:
    """Encodings of random documents, which take no time beside the index."""
    from sourcier.encodings import DenseVectors, TermWeights, TokenVectors

    around = np.random.default_rng(1).normal(size=(2000, 384 if kind == "dense" else 128)).astype(np.float32)
    ends = np.cumsum(1 / np.arange(1, 30_523) ** 0.8)
    names = np.random.default_rng(7).permutation(30_522)
    for start in range(0, count, CHUNK):
        random = np.random.default_rng(start)
        size = min(CHUNK, count - start)
        if kind == "sparse":
            # Distinct terms: each of 120 ranges of the law gives one.
            spread = (np.arange(120) + random.random((size, 120))) / 120
            terms = np.sort(names[np.searchsorted(ends, spread * ends[-1]).clip(max=30_521)], axis=1)
            kept = np.ones(terms.shape, dtype=bool)
            kept[:, 1:] = terms[:, 1:] != terms[:, :-1]
            offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int64)
            weights = random.lognormal(-0.5, 0.7, size=offsets[-1]).astype(np.float32)
            yield TermWeights(offsets, terms[kept].astype(np.int32), weights)
            continue
        tokens = 1 if kind == "dense" else 40
        vectors = around[random.integers(0, len(around), size=size * tokens)]
        vectors = vectors + 0.8 * random.standard_normal(vectors.shape, dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if kind == "dense":
            yield DenseVectors(vectors)
        else:
            yield TokenVectors(np.arange(size + 1, dtype=np.int64) * tokens, vectors)


class Peak:
    """The most memory that this process had to itself; pages of mapped files, which the system takes back, are not."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            lines = Path("/proc/self/status").read_text().splitlines()
            own = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))
            self.megabytes = max(self.megabytes, own)


def build(kind: str, count: int, folder: Path) -> dict[str, Any]:
    with Peak() as peak:
        found = timed_build(kind, count, folder)
    return found | {"peak memory, MB": round(peak.megabytes)}


def timed_build(kind: str, count: int, folder: Path) -> dict[str, Any]:
    from sourcier.indexes import create

    started, spent, done = time.perf_counter(), 0.0, 0
    with create(kind, folder) as writer:
        for chunk in chunks(kind, count):
            before = time.perf_counter()
            writer.add([f"document-{done + place}" for place in range(len(chunk))], chunk)
            spent += time.perf_counter() - before
            done += len(chunk)
        before = time.perf_counter()
        version = writer.finish()
        spent += time.perf_counter() - before
    size = sum(file.bytes for file in version.manifest.files.values())
    return {
        "build, s": round(spent, 1),
        "with making the vectors, s": round(time.perf_counter() - started, 1),
        "peak memory with mapped files, MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "size, MB": round(size / 1e6),
    }


def read(kind: str, folder: Path) -> dict[str, Any]:
    from sourcier.indexes import open_index

    asked = next(chunks(kind, QUERIES))
    open_index(folder)  # brings the libraries and compiled code in, which is no matter of the index
    started = time.perf_counter()
    index = open_index(folder)
    opened = time.perf_counter()
    index.search(asked[:1], 10)
    first = time.perf_counter()
    times = []
    for place in range(len(asked)):
        before = time.perf_counter()
        index.search(asked[place : place + 1], 10)
        times.append(time.perf_counter() - before)
    return {
        "open, s": round(opened - started, 4),
        "first query, s": round(first - opened, 4),
        "queries/s": round(len(times) / sum(times), 1),
        "p50, ms": round(1e3 * float(np.percentile(times, 50)), 2),
        "p99, ms": round(1e3 * float(np.percentile(times, 99)), 2),
    }


def wait(kind: str, folder: Path) -> None:
    from sourcier.indexes import open_index

    index = open_index(folder)
    index.search(next(chunks(kind, 10)), 10)
    print("ready", flush=True)
    sys.stdin.read()


def _run(*arguments: str) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def _shared(kind: str, folder: str) -> float:
    """What each of four readers of an index adds to the memory of the machine, pages they share divided by four."""
    command = [sys.executable, __file__, "wait", kind, folder]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        sizes = []
        for reader in readers:
            lines = Path(f"/proc/{reader.pid}/smaps_rollup").read_text().splitlines()
            sizes.append(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")))
        return round(float(np.mean(sizes)))
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


if __name__ == "__main__":
    task, kind = sys.argv[1:3]
    if task == "build":
        print(json.dumps(build(kind, int(sys.argv[3]), Path(sys.argv[4]) / "index")))
    elif task == "read":
        print(json.dumps(read(kind, Path(sys.argv[3]) / "index")))
    else:
        wait(kind, Path(sys.argv[3]) / "index")
