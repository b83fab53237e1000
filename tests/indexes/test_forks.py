"""A child that is forked after a search can search and build, and waits for no threads of its parent. (Hazard F8.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from sourcier.encodings import DenseVectors, TokenVectors
from sourcier.indexes import create, open_index
from sourcier.indexes.kinds import kind_class

kind, folder = sys.argv[1:]
random = np.random.default_rng(0)
if kind == "warp":
    corpus = TokenVectors(np.arange(0, 5001, 5), random.normal(size=(5000, 32)).astype(np.float32))
else:
    kind_class(kind).least = 500
    corpus = DenseVectors(random.normal(size=(1000, 32)).astype(np.float32))

def build(name):
    settings = {"threads": 4} if kind == "dense-hnsw" else {}
    with create(kind, Path(folder) / name, build=settings) as writer:
        writer.add([f"d{row}" for row in range(1000)], corpus)
        writer.finish()
    return open_index(Path(folder) / name)

index = build("parent")
expected = index.search(corpus[:200], 5).ids.tolist()
child = os.fork()
if not child:
    signal.alarm(40)
    found = index.search(corpus[:200], 5).ids.tolist()
    os._exit(0 if found == expected and len(build("child")) == 1000 else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("kind", ["dense-hnsw", "dense-ivfpq", "warp"])
def test_a_forked_child_searches_and_builds(kind: str, tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "4"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1:] == ["0"], done.stderr
