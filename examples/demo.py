"""From the documentation on this machine to a search model of your own: corpus, training, index, one table.

    python examples/demo.py --base .weights/minilm --output demo

Three systems are measured on the packages that training has not seen: BM25, the dense model as it comes, and ColBERT
fine-tuned from it.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

from rich.console import Console

import sourcier
from sourcier.data.pydocs import write_python_corpus

parser = argparse.ArgumentParser(
    description="From the documentation on this machine to a search model of your own."
)
parser.add_argument("--base", required=True, help="a sentence encoder: a folder or a hub id")
parser.add_argument("--output", type=Path, default=Path("demo"))
parser.add_argument("--documents", type=int, default=3000)
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
out, lengths = arguments.output, {"query_length": 32, "document_length": 128}
say = Console().print
started = time.perf_counter()
seconds = {"train": 0.0, "index": 0.0}


def measure(system: str, model: object) -> dict[str, object]:
    """Indexes the corpus with a model (BM25 where there is none) and asks it the test queries."""
    begun = time.perf_counter()
    retriever = sourcier.Retriever.build(model, test.corpus, out / system, progress=True)
    seconds["index"] += time.perf_counter() - begun
    means = sourcier.evaluate(retriever, test, measures=("nDCG@10",), k=10).means
    return {"system": system, "ndcg@10": round(means["nDCG@10"], 4)}


for folder in ("corpus", "run", "bm25", "dense", "colbert"):
    shutil.rmtree(out / folder, ignore_errors=True)
say("[bold]1[/] Reading the documentation of the installed packages …")
say(write_python_corpus(out / "corpus", limit=arguments.documents))
test = sourcier.read_beir(out / "corpus", "test")

say("[bold]2[/] Searching with BM25, and with the dense model as it comes …")
rows = [measure("bm25", None), measure("dense", sourcier.Dense.from_base(arguments.base, **lengths))]

say("[bold]3[/] Fine-tuning ColBERT on the packages of the training split …")
model = sourcier.ColBERT.from_base(arguments.base, **lengths)
config = sourcier.Trainer.Config(
    output=str(out / "run"), steps=arguments.steps, learning_rate=5e-5, batch_size=16
)
result = config.build(model, sourcier.Examples.from_beir(out / "corpus", "train")).run()
seconds["train"] = result.seconds
rows.append(measure("colbert", sourcier.load(result.last_folder)))

seconds["total"] = time.perf_counter() - started
(out / "results.json").write_text(json.dumps({"rows": rows, "seconds": seconds}, indent=1))
