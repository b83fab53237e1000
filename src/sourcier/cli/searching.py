"""`sourcier search` and `sourcier evaluate`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from sourcier.cli.places import check_writable
from sourcier.config import to_dict
from sourcier.types import Hit, Hits

if TYPE_CHECKING:
    from sourcier.data.collections import Collection
    from sourcier.indexes.version import Version


def add_search_flags(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder of the index")
    parser.add_argument("query", metavar="QUERY", help="what to look for")
    parser.add_argument("-k", type=count, default=10, metavar="K", help="how many results (default: 10)")
    add_stage_flags(parser)


def add_stage_flags(parser: Parser) -> None:
    """What stands between the index and the answer."""
    parser.add_argument(
        "--where",
        metavar="FILTER",
        help="only documents whose metadata pass, like \"lang = 'de' AND year >= 2020\"",
    )
    parser.add_argument(
        "--fuse",
        action="append",
        default=[],
        metavar="INDEX",
        help="search this index too, and fuse the rankings; can be given several times",
    )
    parser.add_argument(
        "--fusion",
        choices=["reciprocal", "weighted"],
        default="reciprocal",
        help="by reciprocal ranks, or by weighted scores (default: reciprocal)",
    )
    parser.add_argument(
        "--weights",
        type=names,
        metavar="A,B",
        help="of the rankings that are fused, in order (default: equal)",
    )
    parser.add_argument(
        "--rerank",
        metavar="MODEL",
        help="score the candidates again with this model: a run or model folder of any family, or a cross-encoder",
    )
    parser.add_argument(
        "--candidates", type=count, default=100, metavar="N", help="documents to score again (default: 100)"
    )


def open_stages(settings: Any) -> Any:
    """The retriever of an index, with others fused and a model on top where asked for."""
    from sourcier.retrieval.fusion import Fused
    from sourcier.retrieval.rerank import Reranked
    from sourcier.retrieval.retriever import Retriever

    if settings.weights and not settings.fuse:
        raise WrongUse("--weights needs --fuse INDEX")
    hide_weight_bars()
    with ExitStack() as closing:
        retriever: Any = closing.enter_context(Retriever.open(settings.index))
        if settings.fuse:
            others = [closing.enter_context(Retriever.open(path)) for path in settings.fuse]
            weights = _weights(settings.weights, 1 + len(others))
            retriever = Fused([retriever, *others], method=settings.fusion, weights=weights)
        if settings.rerank:
            retriever = Reranked(retriever, _scorer(settings.rerank), candidates=settings.candidates)
        closing.pop_all()
    return retriever


class _Filtered:
    """A retriever whose searches all have one filter."""

    def __init__(self, retriever: Any, where: str | None) -> None:
        self._retriever, self._where = retriever, where

    def search(self, queries: Sequence[str], k: int) -> Hits:
        found: Hits = self._retriever.search(queries, k, where=self._where)
        return found


def _weights(given: Sequence[str] | None, wanted: int) -> list[float] | None:
    if given is None:
        return None
    try:
        weights = [float(one) for one in given]
    except ValueError as error:
        raise WrongUse(f"--weights {','.join(given)}: give numbers, parted by commas") from error
    if len(weights) != wanted:
        raise WrongUse(f"--weights gives {len(weights)} for {wanted} indexes: give one for each")
    return weights


def _scorer(path: str) -> Any:
    """A model of ours by its folder, or a cross-encoder."""
    from sourcier.models import checkpoints, foreign
    from sourcier.models.cross_encoder import CrossEncoder

    folder = model_folder(path)
    known = (folder / checkpoints.MANIFEST).is_file() or foreign.find(folder) is not None
    return checkpoints.load(folder) if known else CrossEncoder(path)


def search(settings: Any) -> Output:
    """Answer one query."""
    if any("\ud800" <= character <= "\udfff" for character in settings.query):  # how Python keeps stray bytes
        raise WrongUse("the query is not valid UTF-8: set the terminal to UTF-8")
    with open_stages(settings) as retriever:
        (hits,) = retriever.search([settings.query], k=settings.k, documents=True, where=settings.where)
    found = [
        {"rank": rank, "score": hit.score, **to_dict(hit.document)}
        | ({} if hit.passage is None else {"passage": hit.passage})
        for rank, hit in enumerate(hits, start=1)
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
    add_stage_flags(parser)
    parser.add_argument("--run", metavar="FILE", help="write what was found as a TREC run")
    parser.add_argument("--compare", metavar="RUN_FILE", help="compare with a TREC run, query by query")
    add_lenient(parser)


def evaluate(settings: Any) -> Output:
    """Measure an index on the queries of a split."""
    from sourcier.data.collections import read_beir
    from sourcier.eval import evaluation, measure, report, runs

    if settings.run:
        check_writable("--run", settings.run, "file")
    measures = settings.measures or measure.MEASURES
    collection = told(read_beir(settings.data, settings.split, lenient=settings.lenient))
    evaluation.check(collection, measures=measures, k=settings.k)  # before models are loaded
    baseline = runs.read_trec(settings.compare) if settings.compare else None
    if settings.run:
        _check_ids(settings, collection)
    with open_stages(settings) as retriever:
        result = evaluation.evaluate(
            _Filtered(retriever, settings.where), collection, measures=measures, k=settings.k, progress=True
        )
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


def _check_ids(settings: Any, collection: Collection) -> None:
    """Refuse, before the search, ids that the run could not hold after it."""
    from sourcier.data.collections import TEXT_EXTENSIONS, find_file
    from sourcier.eval import measure, runs
    from sourcier.indexes.version import reading

    runs.check_columns(
        settings.run,
        "query id",
        measure.with_relevant(collection.qrels),
        source=find_file(Path(settings.data), "queries", TEXT_EXTENSIONS),
        mend="rename it there and in the qrels, or leave --run out",
    )
    for index in (settings.index, *settings.fuse):
        reading(index, partial(_check_documents, settings.run, index))


def _check_documents(run: str, index: str, version: Version) -> None:
    from sourcier.eval import runs
    from sourcier.indexes.ids import document_ids

    mend = "rename it in the corpus and build the index again, or leave --run out"
    runs.check_columns(run, "document id", document_ids(version), source=index, mend=mend)


COMMANDS = {
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


def _shown(rank: int, hit: Hit) -> str:
    """A hit on two lines: its figures, and as much of its document, or of its best passage, as fits the terminal."""
    assert hit.document is not None
    content = " ".join((hit.passage or hit.document.content).split())
    room = max(20, shutil.get_terminal_size((100, 24)).columns - 5)
    snippet = content if len(content) <= room else f"{content[: room - 1]}…"
    return f"{rank:3}. {hit.id}  ({hit.score:.4f})\n     {snippet}"
