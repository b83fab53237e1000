"""`sourcier index build`, `index info`, `search` and `evaluate`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sourcier.cli.command import (
    Command,
    Output,
    Parser,
    WrongUse,
    add_lenient,
    count,
    hide_weight_bars,
    model_folder,
    names,
    told,
)
from sourcier.config import to_dict, unknown
from sourcier.types import Hit


def add_build_flags(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument(
        "--data", required=True, help="BEIR folder, or a corpus as .jsonl or .tsv (.gz may follow)"
    )
    parser.add_argument("--output", required=True, metavar="INDEX", help="folder of the index")
    parser.add_argument("--model", metavar="RUN", help="run of `sourcier train`, or a model folder")
    parser.add_argument(
        "--family",
        help="take --model as a Hugging Face checkpoint as it comes, and make a model of this family",
    )
    parser.add_argument("--kind", help="kind of index; bm25 needs no model (default: what suits the model)")
    parser.add_argument(
        "--batch-size", type=count, default=32, metavar="N", help="texts at once (default: 32)"
    )
    add_lenient(parser)


def build(settings: Any) -> Output:
    """Encode a corpus and write an index of it."""
    from sourcier.data.collections import Corpus
    from sourcier.retrieval.retriever import Retriever

    if settings.model is None and settings.kind != "bm25":
        raise WrongUse("index build needs --model RUN, or --kind bm25 (see sourcier index build --help)")
    corpus = Corpus.read(settings.data, lenient=settings.lenient)
    hide_weight_bars()
    model = _model(settings.model, settings.family)
    Retriever.build(
        model, corpus, settings.output, kind=settings.kind, batch_size=settings.batch_size, progress=True
    ).close()
    told(corpus)
    return _description(settings.output)


def _model(path: str | None, family: str | None) -> Any:
    """A model of ours by its folder, or a new one of a family on a Hugging Face checkpoint."""
    if path is None:
        return None
    if family is None:
        return str(model_folder(path))
    import torch

    from sourcier.models.checkpoints import FAMILIES

    if family not in FAMILIES:
        raise WrongUse(unknown("family", family, FAMILIES))
    torch.manual_seed(42)  # heads that the checkpoint does not have are the same in every build
    return FAMILIES[family].from_base(path)


def add_info_flags(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder of the index")


def info(settings: Any) -> Output:
    """Describe an index without loading its model."""
    return _description(settings.index)


def add_search_flags(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder of the index")
    parser.add_argument("query", metavar="QUERY", help="what to look for")
    parser.add_argument("-k", type=count, default=10, metavar="K", help="how many results (default: 10)")


def search(settings: Any) -> Output:
    """Answer one query."""
    from sourcier.retrieval.retriever import Retriever

    if any("\ud800" <= character <= "\udfff" for character in settings.query):  # how Python keeps stray bytes
        raise WrongUse("the query is not valid UTF-8: set the terminal to UTF-8")
    hide_weight_bars()
    with Retriever.open(settings.index) as retriever:
        (hits,) = retriever.search([settings.query], k=settings.k, documents=True)
    found = [
        {"rank": rank, "score": hit.score, **to_dict(hit.document)} for rank, hit in enumerate(hits, start=1)
    ]
    text = "\n".join(_shown(rank, hit) for rank, hit in enumerate(hits, start=1))
    return Output({"query": settings.query, "hits": found}, text or "nothing found")


def add_evaluate_flags(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder of the index")
    parser.add_argument("--data", required=True, metavar="BEIR", help="folder with queries and judgments")
    parser.add_argument("--split", default="test", help="split of the judgments (default: test)")
    parser.add_argument("-k", type=count, default=100, metavar="K", help="hits a query (default: 100)")
    parser.add_argument(
        "--measures",
        type=names,
        metavar="A,B",
        help="as ir-measures writes them (default: nDCG@10 and three more)",
    )
    parser.add_argument("--run", metavar="FILE", help="write what was found as a TREC run")
    parser.add_argument("--compare", metavar="RUN_FILE", help="compare with a TREC run, query by query")
    add_lenient(parser)


def evaluate(settings: Any) -> Output:
    """Measure an index on the queries of a split."""
    from sourcier.data.collections import read_beir
    from sourcier.eval import evaluation, measure, report, runs
    from sourcier.retrieval.retriever import Retriever

    measures = settings.measures or measure.MEASURES
    collection = told(read_beir(settings.data, settings.split, lenient=settings.lenient))
    baseline = runs.read_trec(settings.compare) if settings.compare else None
    hide_weight_bars()
    with Retriever.open(settings.index) as retriever:
        result = evaluation.evaluate(retriever, collection, measures=measures, k=settings.k, progress=True)
    if settings.run:
        runs.write_trec(settings.run, result.run)
    asked = {"index": settings.index, "data": settings.data, "split": settings.split, "k": settings.k}
    values = {**asked, "queries": result.queries, "measures": result.means}
    text = report.table([{"index": settings.index, "queries": result.queries, **result.means}])
    if baseline is not None:
        comparisons = report.compare(result, measure.evaluate(collection.qrels, baseline, measures))
        values["compare"] = [asdict(one) | {"delta": one.delta} for one in comparisons]
        text += "\n" + report.comparison_table(comparisons, baseline=settings.compare)
    return Output(values, text)


COMMANDS = {
    "index build": Command(
        summary="encode a corpus with a model and write a searchable index of it",
        example="sourcier index build --model run --data docs --output index",
        add_flags=add_build_flags,
        run=build,
    ),
    "index info": Command(
        summary="tell what an index holds",
        example="sourcier index info index",
        add_flags=add_info_flags,
        run=info,
    ),
    "search": Command(
        summary="find the best documents for a query",
        example='sourcier search index "how do I sort an array" -k 5',
        add_flags=add_search_flags,
        run=search,
    ),
    "evaluate": Command(
        summary="measure an index on queries with judgments",
        example="sourcier evaluate index --data docs --split test --run ours.run",
        add_flags=add_evaluate_flags,
        run=evaluate,
    ),
}


def _description(path: str) -> Output:
    from sourcier.eval.report import table
    from sourcier.indexes import open_version

    version = open_version(path)
    manifest = to_dict(version.manifest)
    size = sum(file["bytes"] for file in manifest.pop("files").values())
    values = {"index": path, "version": version.name, **manifest, "bytes": size}
    rows = [
        {"index": name, path: _cell(value)}
        for name, value in values.items()
        if name != "index" and value is not None
    ]
    return Output(values, table(rows))


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(rank: int, hit: Hit) -> str:
    """A hit on two lines: its figures, and as much of its document as fits the width of the terminal."""
    assert hit.document is not None
    content = " ".join(hit.document.content.split())
    room = max(20, shutil.get_terminal_size((100, 24)).columns - 5)
    snippet = content if len(content) <= room else f"{content[: room - 1]}…"
    return f"{rank:3}. {hit.id}  ({hit.score:.4f})\n     {snippet}"
