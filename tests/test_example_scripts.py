"""Every script of `examples/` runs for two steps; the loop for many devices ends where the loop for one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import WORDS, tiny_model

from sourcier.models.colbert import ColBERT

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("bert", tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents of three words each; query i is the first word of document i."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    texts = [" ".join(WORDS[3 * row : 3 * row + 3]) for row in range(12)]
    documents = [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(texts)]
    queries = [{"_id": f"q{row}", "text": text.split()[0]} for row, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    judgments = "".join(f"q{row}\td{row}\t1\n" for row in range(12))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgments)
    return folder


def run(*command: str | Path) -> str:
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def test_two_processes_end_where_one_does(base: Path, beir: Path, tmp_path: Path) -> None:
    options = ["--base", base, "--data", beir, "--steps", "2", "--batch-size", "4", "--output"]
    run(EXAMPLES / "own_loop.py", *options, tmp_path / "one")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run(*launcher, EXAMPLES / "accelerate_loop.py", *options, tmp_path / "two")
    torch.manual_seed(0)
    ColBERT.from_base(base).save_pretrained(tmp_path / "untrained")
    untrained, one, two = (weights(tmp_path / name) for name in ("untrained", "one", "two"))
    assert one.keys() == two.keys()
    assert all(
        not torch.equal(one[name], untrained[name]) for name in one if name.endswith("projection.weight")
    )
    # Softmax ignores a key's bias, so that its gradient is rounding alone, which AdamW blows up to its rate.
    for name in one:
        if not name.endswith("key.bias"):
            torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-6, msg=name)


def test_the_demo_measures_three_systems(minilm: Path, tmp_path: Path) -> None:
    options = ["--base", minilm, "--output", tmp_path / "demo", "--documents", "90", "--steps", "2"]
    printed = run(EXAMPLES / "demo.py", *options)
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert [row["system"] for row in results["rows"]] == ["bm25", "dense", "colbert"]
    assert all(0 < row["ndcg@10"] <= 1 for row in results["rows"])
    assert set(results["seconds"]) == {"train", "index", "total"}
    assert "sourcier search" in printed.splitlines()[-1]
