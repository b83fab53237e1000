"""Approximate kinds against exact ones on real collections: nDCG@10, and recall@10 of what exact search finds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sourcier.data.collections import Collection, read_beir
from sourcier.eval import measure
from sourcier.indexes import create, open_index
from sourcier.indexes.index import Index
from sourcier.retrieval.retriever import Retriever
from sourcier.types import Encoder, Hits

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("SOURCIER_SHARED_DATA", ROOT.parent / "shared" / "data"))
MODELS = Path(os.environ.get("SOURCIER_RUNS", ROOT / "runs")) / "quality"
FOLDER = ROOT / "runs" / "indexes"
#: The approximate kinds of each family.
KINDS = {"colbert": ["warp"], "dense": ["dense-hnsw", "dense-ivfpq"], "splade": ["seismic"]}
MEASURE = "nDCG@10"


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    for name, split in (("cranfield", "test"), ("medquad", "dev"))[: 1 if quick else 2]:
        for family, kinds in KINDS.items():
            if not (MODELS / f"medquad-{family}-0" / "best").is_dir():
                print(f"no model of {family}: python benchmarks/quality.py medquad-{family}", flush=True)
                continue
            exact = exact_index(name, family)
            collection = read_beir(DATA / name, split)
            encoder = exact.encoder
            assert encoder is not None
            reference = searched(exact.index, encoder, collection)
            for kind in kinds:
                yield compared(name, kind, exact.index, reference, encoder, collection)


def exact_index(name: str, family: str) -> Retriever:
    """The exact index of a collection, built once."""
    folder = FOLDER / f"{name}-{family}"
    if not (folder / "CURRENT").exists():
        model = MODELS / f"medquad-{family}-0" / "best"
        Retriever.build(str(model), str(DATA / name), folder, progress=True, resume=True).close()
    return Retriever.open(folder)


def approximate_index(exact: Index, folder: Path, kind: str, **build: Any) -> Index:
    """The same documents in another kind, from the vectors of the exact one."""
    shutil.rmtree(folder, ignore_errors=True)
    with create(kind, folder, build=build) as writer:
        for part in exact.parts:
            names, done = part.ids.names(np.flatnonzero(part.has_content())), 0
            for chunk in part.segment.chunks(np.ones(len(part.segment), dtype=bool)):
                writer.add(names[done : done + len(chunk)].tolist(), chunk)
                done += len(chunk)
        writer.finish()
    return open_index(folder)


def searched(index: Index, encoder: Encoder, collection: Collection) -> Hits:
    encoded: Any = encoder.encode([query.text for query in collection.queries.values()], "query")
    return index.search(encoded, 10)


def ndcg(hits: Hits, collection: Collection) -> float:
    run = {
        query: {hit.id: hit.score for hit in row} for query, row in zip(collection.queries, hits, strict=True)
    }
    return float(measure.evaluate(collection.qrels, run, [MEASURE]).means[MEASURE])


def compared(
    name: str, kind: str, exact: Index, reference: Hits, encoder: Encoder, collection: Collection
) -> dict[str, Any]:
    index = approximate_index(exact, FOLDER / f"{name}-{kind}", kind)
    hits = searched(index, encoder, collection)
    ours, theirs = ndcg(hits, collection), ndcg(reference, collection)
    recall = np.mean([len({*a[:10]} & {*b[:10]}) / 10 for a, b in zip(hits.ids, reference.ids, strict=True)])
    return {
        "what": f"{name}, {kind}: {MEASURE}",
        "ours": round(ours, 4),
        "peer": round(theirs, 4),
        "peer_name": f"{exact.kind}, exact",
        "ratio": round(ours / theirs, 4),
        "asked": ">= 0.99",
        "holds": ours >= 0.99 * theirs,
        "recall@10": round(float(recall), 4),
    }
