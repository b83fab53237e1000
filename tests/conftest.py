"""Fixtures of several rooms: real weights and real collections, each skipped with a reason where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before any test imports transformers or numba: no test reaches a hub, and two xdist workers share two cores.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Other work shares the machine: an example that is slow once is no fault.
settings.register_profile("sourcier", deadline=None, max_examples=50)
settings.load_profile("sourcier")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2: BERT with 22 M parameters and no masked-language head."""
    return _weights("minilm")


@pytest.fixture(scope="session")
def splade_4m() -> Path:
    """A SPLADE BERT of 4 M parameters with its masked-language head."""
    return _weights("splade-4m")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of BEIR collections that lies beside the repository, where there is one."""
    folder = Path(os.environ.get("SOURCIER_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no collections in {folder} (set SOURCIER_SHARED_DATA)")
    return folder


def _weights(name: str) -> Path:
    folder = Path(os.environ.get("SOURCIER_WEIGHTS", ROOT / ".weights")) / name
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"no weights in {folder} (run `make weights`, or set SOURCIER_WEIGHTS)")
    return folder
