"""Real runs of `sourcier train`, killed with signal 9 and resumed, end as the one that was let be, file by file."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

pytestmark = pytest.mark.slow
WORKER = Path(__file__).with_name("kill_worker.py")
WORDS = [
    "water",
    "ground",
    "sort",
    "array",
    "open",
    "file",
    "rain",
    "lake",
    "score",
    "river",
    "train",
    "model",
]
STEPS = 12
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base with dropout, 40 examples with negatives and scores, and a dev collection of some of them."""
    folder = tmp_path_factory.mktemp("material")
    tiny_model("bert", folder / "base", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    generator = random.Random(0)
    rows = [
        {
            "query": sentence(generator, 3),
            "positive": sentence(generator, 8),
            "negatives": [sentence(generator, 8), sentence(generator, 5)],
        }
        for _ in range(40)
    ]
    write_lines(folder / "pairs.jsonl", rows)
    (folder / "dev" / "qrels").mkdir(parents=True)
    write_lines(
        folder / "dev" / "corpus.jsonl",
        [{"_id": f"d{n}", "text": row["positive"]} for n, row in enumerate(rows)],
    )
    write_lines(
        folder / "dev" / "queries.jsonl",
        [{"_id": f"q{n}", "text": row["query"]} for n, row in enumerate(rows)],
    )
    judgments = "".join(f"q{n}\td{n}\t1\n" for n in range(20))
    (folder / "dev" / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judgments}")
    return folder


def sentence(generator: random.Random, words: int) -> str:
    return " ".join(generator.choice(WORDS) for _ in range(words))


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def flags(material: Path, family: str, **given: Any) -> list[str]:
    named = {
        "family": family,
        "base": material / "base",
        "data": material / "pairs.jsonl",
        "dev": material / "dev",
        "batch_size": 4,
        "negatives": 1,
        "steps": STEPS,
        "eval_every": 3,
        "save_every": 1,
        "log_every": 2,
        "learning_rate": 1e-3,
    }
    parts = [(f"--{name.replace('_', '-')}", str(value)) for name, value in (named | given).items()]
    return ["--no-progress", *(word for part in parts for word in part)]


def left(run: Path) -> dict[str, Any]:
    """All that a run has left, but for what tells the time or the folder's name."""
    files: dict[str, Any] = {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.suffix != ".log"
    }
    summary = json.loads(files.pop("training.json"))
    lines = [json.loads(line) for line in files.pop("metrics.jsonl").splitlines()]
    files["config.yaml"] = files["config.yaml"].replace(str(run).encode(), b"RUN")
    clock = ("seconds", "examples_per_second")
    files["training.json"] = {name: value for name, value in summary.items() if name not in clock}
    files["metrics.jsonl"] = [
        {name: value for name, value in line.items() if name not in clock} for line in lines
    ]
    return files


def kill(folder: Path, moments: int, arguments: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, str(WORKER), str(folder), str(moments), "1", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | ENVIRONMENT, timeout=1800
    )
    assert ended.returncode == 0, ended.stderr
    kills: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])["kills"]
    return kills


def differing(folder: Path, run: str) -> list[str]:
    """The files in which a run differs from the one that was let be."""
    expected, found = left(folder / "straight"), left(folder / run)
    return [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]


def check(folder: Path, kills: list[dict[str, Any]]) -> None:
    assert not {
        number: names for number in range(len(kills)) if (names := differing(folder, f"killed{number}"))
    }
    writing = sum(kill["writing"] for kill in kills)
    print(f"{len(kills)} kills, {writing} while a state was being written, all bit-equal: {kills}")
    assert writing


def test_twenty_kills(material: Path, tmp_path: Path) -> None:
    """SPLADE with dropout, dev, and a regulariser that still grows where most of the kills are."""
    arguments = flags(material, "splade", flops_document=0.001, sparsity_warmup=8)
    kills = kill(tmp_path, 20, arguments)
    check(tmp_path, kills)
    assert not any(kill["over"] for kill in kills)


def test_kills_with_adapters(material: Path, tmp_path: Path) -> None:
    check(tmp_path, kill(tmp_path, 4, flags(material, "colbert", lora_rank=2)))


def test_kills_with_remining(material: Path, tmp_path: Path) -> None:
    """New negatives are mined after step 5 and come in 2 steps later; a kill may leave the mining process behind."""
    settings = tmp_path / "remine.yaml"
    settings.write_text(
        f"train: {{remine: {{every: 5, delay: 2, ranks: 2-20, corpus: {material / 'dev' / 'corpus.jsonl'}}}}}\n"
    )
    check(tmp_path, kill(tmp_path, 2, [*flags(material, "dense"), "--config", str(settings)]))


def test_kills_of_two_processes_with_cached_gradients(material: Path, tmp_path: Path) -> None:
    arguments = flags(material, "sparse_embed", chunk=2, flops_document=0.001)
    launched(arguments, tmp_path / "straight").wait(timeout=300)
    for number, state in enumerate((2, 5)):
        run = tmp_path / f"killed{number}"
        process = launched(arguments, run)
        deadline = time.monotonic() + 120
        while not list(run.glob(f"state/*step-{state:09d}")) and time.monotonic() < deadline:
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (run / "training.json").exists()
        assert launched([*arguments, "--resume"], run).wait(timeout=300) == 0
        assert not differing(tmp_path, f"killed{number}")


def launched(arguments: list[str], run: Path) -> subprocess.Popen[str]:
    """Two processes on Gloo, in a group of their own that can be killed as a whole."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return subprocess.Popen(
        [*launcher, "-m", "sourcier", "train", *arguments, "--output", str(run)],
        stdout=subprocess.DEVNULL,
        env=os.environ | ENVIRONMENT,
        start_new_session=True,
        text=True,
    )
