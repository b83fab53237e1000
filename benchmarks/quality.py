"""Retrieval quality before and after training, on real collections, family by family.

    make bench-quality                                                     every recipe, in turn (hours on two cores)
    python benchmarks/quality.py medquad-colbert --seeds 0                 one of them
    python benchmarks/quality.py --quick                                   ten steps of each, to see that they run

Recipes named `medquad-…` and `cranfield` read $SOURCIER_SHARED_DATA (../shared/data beside the project); those named
`pydocs-…` make the corpus of `make demo` where it is not there yet. A row is written as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from results import Results

from sourcier.data.collections import Collection, read_beir
from sourcier.data.examples import Examples
from sourcier.data.pydocs import write_python_corpus
from sourcier.encodings import TermVectors, TermWeights
from sourcier.eval.evaluation import evaluate
from sourcier.models import FAMILIES
from sourcier.models.checkpoints import load
from sourcier.models.encoder import SearchModel
from sourcier.retrieval.retriever import Retriever
from sourcier.train.step import TrainingStep
from sourcier.train.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SOURCIER_SHARED_DATA", ROOT.parent / "shared" / "data"))
WEIGHTS = Path(os.environ.get("SOURCIER_WEIGHTS", ROOT / ".weights"))
RUNS = ROOT / "runs" / "quality"
PYDOCS = ROOT / "demo" / "corpus"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained on what, and what is asked of the trained model."""

    data: Path
    split: str
    family: str
    base: str
    asked: str
    least: float  # nDCG@10, or the gain over the untrained model where `gain`
    gain: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)


MEDQUAD = {"data": SHARED / "medquad", "split": "dev"}
CRANFIELD = (SHARED / "cranfield", "test")
PYTHON = {"data": PYDOCS, "split": "test", "gain": True, "asked": "untrained + 0.03", "least": 0.03}
LENGTHS = {"query_length": 32, "document_length": 180}
SHORT = {"query_length": 32, "document_length": 128}
SPARSE = {"flops_query": 1e-3, "flops_document": 1e-3, "sparsity_warmup": 100}

_UNTRAINED: dict[str, float] = {}

RECIPES: dict[str, Recipe] = {
    "medquad-colbert": Recipe(
        **MEDQUAD, family="colbert", base="minilm", asked=">= 0.83", least=0.83, model=LENGTHS,
        train={"steps": 360, "batch_size": 16, "learning_rate": 5e-5, "dropout": 0.0},
    ),
    "medquad-dense": Recipe(
        **MEDQUAD, family="dense", base="minilm", asked=">= 0.78", least=0.78, model=LENGTHS,
        train={"steps": 360, "batch_size": 16, "learning_rate": 5e-5, "dropout": 0.0},
    ),
    "medquad-splade": Recipe(
        **MEDQUAD, family="splade", base="splade-4m", asked="> BM25, 0.527", least=0.527, model=LENGTHS,
        train={"steps": 360, "batch_size": 32, "learning_rate": 2e-4, "dropout": 0.0}, step=SPARSE,
    ),
    "medquad-sparse_embed": Recipe(
        **MEDQUAD, family="sparse_embed", base="splade-4m", asked="> BM25, 0.527", least=0.527, model=LENGTHS,
        train={"steps": 200, "batch_size": 32, "learning_rate": 2e-4, "dropout": 0.0}, step=SPARSE,
    ),
    "pydocs-dense": Recipe(
        **PYTHON, family="dense", base="minilm", model=SHORT,
        train={"steps": 100, "batch_size": 16, "learning_rate": 5e-5, "dropout": 0.0},
    ),
    "pydocs-splade": Recipe(
        **PYTHON, family="splade", base="splade-4m", model=SHORT,
        train={"steps": 150, "batch_size": 32, "learning_rate": 2e-4, "dropout": 0.0}, step=SPARSE,
    ),
    "pydocs-sparse_embed": Recipe(
        **PYTHON, family="sparse_embed", base="splade-4m", model=SHORT,
        train={"steps": 150, "batch_size": 32, "learning_rate": 2e-4, "dropout": 0.0}, step=SPARSE,
    ),
}  # fmt: skip


def ndcg(model: SearchModel | None, collection: Collection) -> float:
    """nDCG@10 of a model (BM25 where there is none) on a whole collection, through an index of its own."""
    kind = "bm25" if model is None else None
    with tempfile.TemporaryDirectory() as folder:
        retriever = Retriever.build(
            model, collection.corpus, Path(folder) / "index", kind=kind, progress=True
        )
        try:
            return evaluate(retriever, collection, measures=("nDCG@10",), k=10).means["nDCG@10"]
        finally:
            retriever.close()


def untrained_ndcg(model: SearchModel, collection: Collection) -> float:
    """The same, worked out once for models that are equal: seeds change nothing where a family draws no weights."""
    key = f"{model.fingerprint()} {collection.corpus.source}"
    if key not in _UNTRAINED:
        _UNTRAINED[key] = ndcg(model, collection)
    return _UNTRAINED[key]


def active_terms(model: SearchModel, collection: Collection) -> dict[str, float]:
    """Mean active terms of a query and of a document, on the first 500 of each; nothing for other families."""
    queries = [collection.queries[query].text for query in list(collection.qrels)[:500]]
    documents = [document.content for document, _ in zip(collection.corpus, range(500), strict=False)]
    means = {}
    for name, texts, side in (("query", queries, "query"), ("document", documents, "document")):
        encoding = model.encode(texts, side)  # type: ignore[arg-type]
        if isinstance(encoding, TermWeights | TermVectors):
            means[f"terms a {name}"] = round(len(encoding.terms) / len(encoding), 1)
    return means


def build(recipe: Recipe, seed: int) -> SearchModel:
    """The untrained model; `seed` draws what the base does not have."""
    torch.manual_seed(seed)
    return FAMILIES[recipe.family].from_base(WEIGHTS / recipe.base, **recipe.model)


def train(name: str, recipe: Recipe, seed: int, *, quick: bool) -> Path:
    """The folder of the finished run; one that is there already is not trained again."""
    output = RUNS / f"{name}-{seed}{'-quick' if quick else ''}"
    if (output / "training.json").exists():
        print(f"{name}: taking the run in {output}")
        return output
    shutil.rmtree(output, ignore_errors=True)
    settings = {**recipe.train, **({"steps": 10} if quick else {})}
    config = Trainer.Config(
        output=str(output), seed=seed, step=TrainingStep.Config(**recipe.step), **settings
    )
    config.build(build(recipe, seed), Examples.from_beir(recipe.data, "train")).run()
    return output


def run(name: str, recipe: Recipe, seed: int, *, quick: bool) -> dict[str, Any]:
    """One recipe with one seed: its row."""
    output = train(name, recipe, seed, quick=quick)
    summary = json.loads((output / "training.json").read_text())
    collection = read_beir(recipe.data, recipe.split)
    before = untrained_ndcg(build(recipe, seed), collection) if recipe.gain else 0.0
    started = time.perf_counter()
    trained = load(output / "last")
    after = ndcg(trained, collection)
    return {
        "what": f"{name} nDCG@10, seed {seed}",
        **({"before": round(before, 4)} if recipe.gain else {}),
        "ours": round(after, 4),
        "asked": recipe.asked,
        "holds": after >= before + recipe.least,
        **active_terms(trained, collection),
        "training seconds": round(summary["seconds"]),
        "indexing and search seconds": round(time.perf_counter() - started),
        "settings": {**recipe.model, **recipe.train, **recipe.step},
        "command": f"python benchmarks/quality.py {name} --seeds {seed}",
    }


def mean_row(name: str, recipe: Recipe, results: Results) -> dict[str, Any]:
    """The mean over the seeds that have been measured, which is what a recipe with `gain` is asked for."""
    rows = [row for what, row in results.rows.items() if what.startswith(f"{name} nDCG@10, seed")]
    before, after = (statistics.mean(row[key] for row in rows) for key in ("before", "ours"))
    terms = {
        key: round(statistics.mean(row[key] for row in rows), 1) for key in rows[0] if key.startswith("terms")
    }
    return {
        "what": f"{name} nDCG@10, mean of seeds",
        "before": round(before, 4),
        "ours": round(after, 4),
        "asked": recipe.asked,
        "holds": after >= before + recipe.least,
        "seeds": len(rows),
        **terms,
    }


def baselines() -> list[dict[str, Any]]:
    """BM25 on every collection that is there."""
    rows = []
    for name, data, split in (
        ("medquad", *MEDQUAD.values()),
        ("cranfield", *CRANFIELD),
        ("pydocs", PYDOCS, "test"),
    ):
        if data.exists():
            rows.append(
                {
                    "what": f"{name} BM25 nDCG@10",
                    "ours": round(ndcg(None, read_beir(data, split)), 4),
                    "command": "python benchmarks/quality.py baselines",
                }
            )
    return rows


def cranfield() -> list[dict[str, Any]]:
    """The four families on Cranfield as the medquad recipes left them; two of its documents are empty."""
    collection = read_beir(*CRANFIELD)
    rows = []
    for family in FAMILIES:
        run_folder = RUNS / f"medquad-{family}-0"
        if not run_folder.exists():
            raise SystemExit(f"cranfield: run `python benchmarks/quality.py medquad-{family}` first")
        rows.append(
            {
                "what": f"cranfield {family} nDCG@10, trained on medquad",
                "ours": round(ndcg(load(run_folder / "last"), collection), 4),
                "asked": "all 1,400 documents, two of them empty",
                "holds": len(collection.corpus) == 1400,
                "command": "python benchmarks/quality.py cranfield",
            }
        )
    return rows


def train_and_measure(name: str, results: Results, seeds: list[int], *, quick: bool) -> None:
    """A recipe with each seed, and their mean where that is what is asked."""
    recipe = RECIPES[name]
    for seed in seeds:
        results.add(run(name, recipe, seed, quick=quick))
    if recipe.gain:
        results.add(mean_row(name, recipe, results))


def main() -> None:
    tables = {"baselines": baselines, "cranfield": cranfield}
    known = [*RECIPES, *tables]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--seeds", help="such as 0,1,2, which is the default for pydocs; 0 for the others")
    parser.add_argument("--quick", action="store_true", help="ten steps of each")
    arguments = parser.parse_args()
    if unknown := set(arguments.recipes) - set(known):
        parser.error(f"unknown recipe {min(unknown)}: one of {', '.join(known)}")
    results = Results("quality", quick=arguments.quick)
    for name in arguments.recipes or known:
        if name.startswith("pydocs") and not PYDOCS.exists():
            write_python_corpus(PYDOCS)
        if name.startswith(("medquad", "cranfield")) and not SHARED.exists():
            print(f"{name}: no collections in {SHARED}; set SOURCIER_SHARED_DATA")
        elif name in tables:
            for row in tables[name]():
                results.add(row)
        else:
            seeds = arguments.seeds or ("0,1,2" if RECIPES[name].gain else "0")
            train_and_measure(name, results, [int(seed) for seed in seeds.split(",")], quick=arguments.quick)
    results.print()


if __name__ == "__main__":
    main()
