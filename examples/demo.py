"""From the documentation on this machine to a search model of your own: corpus, training, index, one table.

    python examples/demo.py --base .weights/minilm --output demo

BM25, the dense model as it comes, and ColBERT fine-tuned from it are measured on packages that training has not seen.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import sourcier
from sourcier.data.pydocs import write_python_corpus
from sourcier.eval.report import table

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--base", default=".weights/minilm", help="a sentence encoder: a folder or a hub id")
parser.add_argument("--output", type=Path, default=Path("demo"))
parser.add_argument("--documents", type=int, default=3000)
parser.add_argument("--steps", type=int, default=80)
arguments = parser.parse_args()
out, lengths = arguments.output, {"query_length": 32, "document_length": 96}
started, seconds = time.perf_counter(), {"train": 0.0, "index": 0.0}


def measure(system: str, model: sourcier.Dense | sourcier.ColBERT | None) -> dict[str, object]:
    """Indexes the corpus with a model, or with BM25 where there is none, and asks it the test queries."""
    print(f"Indexing and searching with {system} …", flush=True)
    begun = time.perf_counter()
    index = sourcier.Retriever.build(
        model, test.corpus, out / system, kind=None if model else "bm25", progress=True
    )
    seconds["index"] += time.perf_counter() - begun
    return {
        "system": system,
        "ndcg@10": sourcier.evaluate(index, test, measures=("nDCG@10",)).means["nDCG@10"],
    }


for folder in ("corpus", "run", "bm25", "dense", "colbert"):
    shutil.rmtree(out / folder, ignore_errors=True)
print("Reading the documentation of the installed packages …", flush=True)
print(write_python_corpus(out / "corpus", limit=arguments.documents))
test = sourcier.read_beir(out / "corpus", "test")
rows = [measure("bm25", None), measure("dense", sourcier.Dense.from_base(arguments.base, **lengths))]

print("Fine-tuning ColBERT on the packages of the training split …", flush=True)
model = sourcier.ColBERT.from_base(arguments.base, **lengths)
training = {"steps": arguments.steps, "batch_size": 16, "learning_rate": 5e-5, "dropout": 0.0}
examples = sourcier.Examples.from_beir(out / "corpus", "train")
seconds["train"] = (
    sourcier.Trainer.Config(output=str(out / "run"), **training).build(model, examples).run().seconds
)
rows.append(measure("colbert", model))

print(table(rows, title=f"nDCG@10 of {len(test.qrels)} queries on packages unseen in training"))
retriever = sourcier.Retriever.open(out / "colbert")
for query in ("sort an array along an axis", "retry a request that failed", "draw text onto an image"):
    hits = retriever.search([query], k=3)[0]
    print(f"\n{query}\n" + "\n".join(f"  {hit.score:6.2f}  {hit.id}" for hit in hits))
seconds["total"] = time.perf_counter() - started
(out / "results.json").write_text(json.dumps({"rows": rows, "seconds": seconds}, indent=1))
print(f'\nAsk it yourself:  sourcier search {out / "colbert"} "your question"')
