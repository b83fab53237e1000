"""Fixtures of several rooms: real weights and real collections, each skipped with a reason where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import DOCUMENTS, QUERIES, Ended, Run, write_lines
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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process."""
    from sourcier.cli import main

    def run_command(*arguments: object) -> Ended:
        capsys.readouterr()  # what was printed before is not the command's
        status = main([str(argument) for argument in arguments])
        return Ended(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A BEIR folder of four documents with the splits train, dev and test, all of the same four queries."""
    folder = tmp_path / "docs"
    (folder / "qrels").mkdir(parents=True)
    write_lines(
        folder / "corpus.jsonl", ({"_id": key, "title": "", "text": text} for key, text in DOCUMENTS.items())
    )
    write_lines(folder / "queries.jsonl", ({"_id": key, "text": text} for key, text in QUERIES.items()))
    rows = "".join(f"{query}\t{document}\t1\n" for query, document in zip(QUERIES, DOCUMENTS, strict=True))
    for split in ("train", "dev", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random BERT, for tests that only read it."""
    from tiny import tiny_model  # needs torch, which most tests of the command line do without

    return tiny_model("bert", tmp_path_factory.mktemp("tiny") / "bert")


def _weights(name: str) -> Path:
    folder = Path(os.environ.get("SOURCIER_WEIGHTS", ROOT / ".weights")) / name
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"no weights in {folder} (run `make weights`, or set SOURCIER_WEIGHTS)")
    return folder
