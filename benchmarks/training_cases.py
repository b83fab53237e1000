"""Training steps of ours beside those of a peer: what is compared, on which rows, and what is asked of the ratio.

Each measurement is a process of its own (`steps/`): what it prints are the seconds of each step and the peak of its
resident memory, libraries and data included. Rates are rows of the batch (queries) a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from quality import PYDOCS, ROOT, SHARED, WEIGHTS

STEPS = Path(__file__).with_name("steps")
PEER_PYTHON = ROOT / ".peers" / "neural-cherche" / "bin" / "python"
FAMILIES = ("dense", "colbert", "splade", "sparse_embed")
PEERS = dict.fromkeys(FAMILIES, "sentence_transformers") | {"sparse_embed": "neural_cherche"}
BATCH, DROPOUTS = 16, (0.1, 0.0)
VOCABULARY = 30_522
#: Asked of each family against its peer: the least ratio of rates, the largest of peak memories.
ASKED = {"dense": (1.0, 0.9), "colbert": (1.0, 0.9), "splade": (1.8, 0.55), "sparse_embed": (1.7, None)}

Batches = list[list[list[str]]]


@dataclass
class Found:
    """What processes of one system measured."""

    system: str
    seconds: list[float]
    peak: float  # MB
    losses: list[float]


class Bench:
    """The processes, what they read, and what has been measured so far."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.rounds = 1 if quick else 2
        self.steps = 1 if quick else 2
        self.batch = 4 if quick else BATCH
        self.plain: dict[tuple[str, str, float], Found] = {}
        self.masked = self._with_head(folder / "base")

    def run(self, system: str, family: str, batches: Batches, **settings: Any) -> dict[str, Any]:
        """One process of a system: what it printed."""
        base = self.masked if family in ("splade", "sparse_embed") else WEIGHTS / "minilm"
        task = self.folder / "task.json"
        task.write_text(json.dumps({"family": family, "base": str(base), "batches": batches, **settings}))
        python = PEER_PYTHON if system == "neural_cherche" else Path(sys.executable)
        threads = str(settings.get("threads", 2))
        done = subprocess.run(
            [str(python), str(STEPS / f"{system}_steps.py"), str(task)],
            env=os.environ
            | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{system} {family}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def in_turn(self, contests: Iterable[tuple[str, str, Batches, dict[str, Any]]]) -> list[Found]:
        """Each contest (system, family, batches, settings) once a round."""
        contests = list(contests)
        turns = [[self.run(*contest[:3], **contest[3]) for contest in contests] for _ in range(self.rounds)]
        return [_merged(column) for column in zip(*turns, strict=True)]

    def pair(self, family: str, dropout: float) -> tuple[Found, Found]:
        """Ours and the peer's on triples; each is measured once for all rows that read it."""
        systems = ("sourcier", PEERS[family])
        if (systems[0], family, dropout) not in self.plain:
            batches = self.triples(1 + self.steps)
            found = self.in_turn((system, family, batches, {"dropout": dropout}) for system in systems)
            for system, measured in zip(systems, found, strict=True):
                self.plain[system, family, dropout] = measured
            _check_losses(family, dropout, *found)
        return self.plain[systems[0], family, dropout], self.plain[systems[1], family, dropout]

    def triples(self, count: int, *, words: int = 0) -> Batches:
        """Batches of medquad's (query, answer, another query's answer); answers joined up to so many words."""
        from sourcier.data.examples import Examples

        examples = Examples.from_beir(SHARED / "medquad", "train")
        random = np.random.default_rng(0)
        rows, others = random.permutation(len(examples)), random.permutation(len(examples))

        def text(row: int) -> str:
            joined = examples[row].positive
            while len(joined.split()) < words:
                row = (row + 1) % len(examples)
                joined += " " + examples[row].positive
            return joined

        triples = [
            [examples[int(row)].query, text(int(row)), text(int(other))]
            for row, other in zip(rows[: count * self.batch], others, strict=False)
        ]
        return _cut(triples, self.batch)

    def _with_head(self, folder: Path) -> Path:
        """all-MiniLM-L6-v2 with a fresh masked-language head, which it came without."""
        import torch
        from transformers import AutoModel, AutoTokenizer, BertForMaskedLM

        encoder = AutoModel.from_pretrained(WEIGHTS / "minilm", add_pooling_layer=False)
        torch.manual_seed(0)
        model = BertForMaskedLM(encoder.config)
        model.bert.load_state_dict(encoder.state_dict())
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(WEIGHTS / "minilm").save_pretrained(folder)
        return folder


def rows(*, quick: bool, only: str = "") -> Iterator[dict[str, Any]]:
    """Everything that is asked, row by row; of it those parts whose name holds `only`."""
    if not PEER_PYTHON.exists():
        raise SystemExit("neural-cherche is not there: make bench-peers")
    parts = [(f"{family} {dropout}", family_rows, (family, dropout))
             for dropout in DROPOUTS for family in FAMILIES]  # fmt: skip
    parts += [("splade grad_cache", grad_cache_rows, ())]
    parts += [(f"{family} pydocs", bucketed_rows, (family,)) for family in FAMILIES]
    parts += [("splade lengths", length_rows, ())]
    parts += [(f"{family} profile", profile_rows, (family,)) for family in FAMILIES]
    if quick:
        parts = [part for part in parts if part[0].endswith(("0.1", "grad_cache"))]
    chosen = [(make, arguments) for name, make, arguments in parts if only in name]
    if not chosen:
        return
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), quick=quick)
        for make, arguments in chosen:
            for row in make(bench, *arguments):
                if quick:  # of small batches nothing is asked
                    row = {key: value for key, value in row.items() if key not in ("asked", "holds")}
                print(f"{row['what']}: {row['ours']} ({row.get('peer')}), ratio {row['ratio']}", flush=True)
                yield row


def family_rows(bench: Bench, family: str, dropout: float) -> Iterator[dict[str, Any]]:
    """Rate and peak memory against the family's peer."""
    ours, peer = bench.pair(family, dropout)
    rate, memory = ASKED[family]
    name = f"{family}, dropout {dropout:g}"
    mine, theirs = (bench.batch / median(found.seconds) for found in (ours, peer))
    seconds = {"seconds": _rounded(ours.seconds), "peer_seconds": _rounded(peer.seconds)}
    yield _row(f"{name}: triples/s", mine, theirs, peer.system, least=rate) | seconds
    yield _row(f"{name}: peak memory, MB", ours.peak, peer.peak, peer.system, most=memory)
    if family == "sparse_embed":
        splade, _ = bench.pair("splade", dropout)
        yield _row(
            f"{name}: seconds a step",
            median(ours.seconds), median(splade.seconds), "our SPLADE", most=1.3,
        )  # fmt: skip


def grad_cache_rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """SPLADE in chunks of 4 texts: memory against the peer's plain steps, time against our own."""
    plain, peer = bench.pair("splade", 0.1)
    batches = bench.triples(1 + bench.steps)
    (cached,) = bench.in_turn([("sourcier", "splade", batches, {"dropout": 0.1, "chunk": 4})])
    name = "splade, dropout 0.1, GradCache in chunks of 4"
    yield _row(f"{name}: peak memory, MB", cached.peak, peer.peak, f"{peer.system}, plain", most=0.25)
    yield _row(
        f"{name}: seconds a step", median(cached.seconds), median(plain.seconds), "our plain step", most=1.5
    )


def bucketed_rows(bench: Bench, family: str, count: int = 8) -> Iterator[dict[str, Any]]:
    """The corpus of `make demo`, whose lengths vary: ours in batches of similar lengths, the peer's as they come."""
    bucketed, shuffled = _documentation(count, negatives=family == "sparse_embed")
    ours, peer = (
        _merged([bench.run(system, family, batches, dropout=0.1)])
        for system, batches in (("sourcier", bucketed), (PEERS[family], shuffled))
    )
    mine, theirs = (BATCH / mean(found.seconds) for found in (ours, peer))
    yield _row(f"{family}, documentation, bucketed: rows/s", mine, theirs, peer.system, least=1.3)


def length_rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """What the vocabulary adds to the peak of a step, at three lengths: SPLADE's peak less that of dense."""
    added, logits = {}, {}
    for length in (64, 256, 512):
        batches = bench.triples(2, words=length)
        lengths = {"document_length": length, "query_length": 32, "dropout": 0.0}
        splade, dense = (bench.run("sourcier", family, batches, **lengths) for family in ("splade", "dense"))
        added[length] = splade["peak"] - dense["peak"]
        logits[length] = 2 * bench.batch * length * VOCABULARY * 4 / 2**20
        yield _row(
            f"splade, length {length}: memory that the vocabulary adds, MB",
            added[length], logits[length], "one tensor of [documents, length, vocabulary]",
        )  # fmt: skip
    yield _row(
        "splade, from length 64 to 512: memory that the vocabulary adds, MB",
        added[512] - added[64], logits[512] - logits[64], "the same", most=0.1,
    )  # fmt: skip


def profile_rows(bench: Bench, family: str) -> Iterator[dict[str, Any]]:
    """Where our step's time goes, and how far it is from the rate of one large product."""
    found = bench.run("sourcier", family, bench.triples(2), dropout=0.1, profile=True)["profile"]
    yield _row(
        f"{family}, dropout 0.1: GFLOP/s of a step", found["gflops"], found["matrix_gflops"], "one large product"
    ) | {"shares": found["shares"]}  # fmt: skip


def _documentation(count: int, *, negatives: bool) -> tuple[Batches, Batches]:
    """The same rows in batches of similar lengths and in random ones, each behind a batch to warm up with."""
    from sourcier.data.examples import Example, Examples
    from sourcier.data.pydocs import write_python_corpus
    from sourcier.data.sampling import BatchSampler

    if not PYDOCS.exists():
        write_python_corpus(PYDOCS, limit=3000)
    examples = Examples.from_beir(PYDOCS, "train")
    random = np.random.default_rng(0)
    drawn, others = (random.permutation(len(examples))[: (count + 1) * BATCH] for _ in range(2))
    chosen = [
        Example(examples[int(row)].query, examples[int(row)].positive,
                (examples[int(other)].positive,) if negatives else ())
        for row, other in zip(drawn, others, strict=True)
    ]  # fmt: skip
    as_lists = [[row.query, row.positive, *row.negatives] for row in chosen]
    warm, measured = as_lists[:BATCH], as_lists[BATCH:]
    plan = BatchSampler(Examples(chosen[BATCH:]), BATCH, seed=0)
    bucketed = [[measured[number] for number in batch] for batch in plan]
    # Rows that share a query are kept apart, so that there may be one batch more: it is measured with the others.
    return [warm, *bucketed], [warm, *_cut(measured, BATCH)]


def _check_losses(family: str, dropout: float, ours: Found, peer: Found) -> None:
    """Without dropout and with the same weights, both must compute the same loss of the first batch."""
    if dropout == 0 and family in ("dense", "splade"):
        mine, theirs = ours.losses[0], peer.losses[0]
        if abs(mine - theirs) > 1e-3 * abs(theirs):
            raise SystemExit(f"{family}: our loss is {mine}, that of {peer.system} {theirs}: no fair contest")


def _merged(turns: list[dict[str, Any]]) -> Found:
    return Found(
        system=turns[0]["system"],
        seconds=[second for turn in turns for second in turn["seconds"]],
        peak=max(turn["peak"] for turn in turns),
        losses=turns[0]["losses"],
    )


def _row(
    what: str,
    ours: float,
    peer: float,
    peer_name: str,
    *,
    least: float | None = None,
    most: float | None = None,
) -> dict[str, Any]:
    """A row of the results; it holds where the ratio is at least or at most what is asked, if anything is."""
    ratio = ours / peer
    row = {
        "what": what,
        "ours": _short(ours),
        "peer": _short(peer),
        "peer_name": peer_name,
        "ratio": _short(ratio),
    }
    if least is not None:
        row |= {"asked": f">= {least:g}", "holds": ratio >= least}
    if most is not None:
        row |= {"asked": f"<= {most:g}", "holds": ratio <= most}
    return row


def _cut(rows: list[list[str]], size: int) -> Batches:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _short(value: float) -> float:
    return float(f"{value:.3g}") if abs(value) < 1000 else round(value)


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 2) for value in values]
