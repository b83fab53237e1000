"""Retrieval measures of a run against judgments, through ir-measures.

The mean goes over every query that has a relevant document: a query without hits counts 0. The measured ranks are the
ranks of the run: where scores are equal, its own order counts, not the alphabet's, and a document whose id equals the
query's counts like any other.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ir_measures

from sourcier.config import unknown
from sourcier.eval.runs import Run, ranking
from sourcier.types import DataError, SourcierError

Judgments = Mapping[str, Mapping[str, int]]

#: What is measured where nothing else is asked for. The names are read as `parse` reads them.
MEASURES = ("nDCG@10", "MRR@10", "recall@100", "success@1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a run is worth: the mean of each measure, and its value for each query, by the names that were asked for."""

    means: dict[str, float]
    per_query: dict[str, dict[str, float]]  # measure → query id → value
    run: Run

    @property
    def queries(self) -> int:
        """How many queries the means go over."""
        return len(next(iter(self.per_query.values()), {}))


def evaluate(qrels: Judgments, run: Run, measures: Sequence[str] = MEASURES) -> Evaluation:
    """Measure a run on all queries that have a relevant document, whether the run answers them or not."""
    judged = with_relevant(qrels)
    parsed = {name: parse(name) for name in measures}
    found: dict[Any, dict[str, float]] = {measure: {} for measure in parsed.values()}
    queries = list(judged)
    for metric in ir_measures.iter_calc(list(found), *_numbered(judged, run)):
        found[metric.measure][queries[int(metric.query_id)]] = float(metric.value)
    per_query = {
        name: {query: found[measure].get(query, float(measure.DEFAULT)) for query in judged}
        for name, measure in parsed.items()
    }
    means = {name: sum(values.values()) / len(judged) for name, values in per_query.items()}
    return Evaluation(means=means, per_query=per_query, run=run)


def check(qrels: Judgments, measures: Sequence[str]) -> None:
    """Refuse a measure that cannot be computed from these judgments, before there is a run that took hours."""
    for name in measures:
        try:
            evaluate(qrels, {}, [name])
        except (subprocess.CalledProcessError, ValueError, RuntimeError) as error:
            # Of a program, the text has the names of its temporary files.
            program = error.cmd[0] if isinstance(error, subprocess.CalledProcessError) else None
            reason = f"{program} failed" if program else " ".join(str(error).split())
            raise SourcierError(
                f"measure '{name}' cannot be computed from these judgments ({reason}): choose another"
            ) from error


def with_relevant(qrels: Judgments) -> dict[str, Mapping[str, int]]:
    """The judgments of the queries that have a relevant document."""
    judged = {
        query: of_query for query, of_query in qrels.items() if any(grade > 0 for grade in of_query.values())
    }
    if not judged:
        raise DataError("no query has a relevant document: there is nothing to measure; check the qrels file")
    return judged


def parse(name: str) -> Any:
    """The measure of that name, as ir-measures writes it (`nDCG@10`, `P(rel=2)@5`); upper and lower case are one."""
    stem, rest = name[: _stem_length(name)].strip(), name[_stem_length(name) :]
    # In this order `nDCG` stands after `NDCG`, an older spelling, and is the one that is offered.
    names = {known.casefold(): known for known in sorted(ir_measures.measures.registry)}
    if stem.casefold() not in names:
        raise SourcierError(unknown("measure", stem, names.values()))
    try:
        measure = ir_measures.parse_measure(names[stem.casefold()] + rest)
        measure.validate_params()
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise SourcierError(
            f"measure '{name}' cannot be read: write it like nDCG@10 or P(rel=2)@5"
        ) from error
    # The measuring library ends the whole process on a cut-off below 1.
    if any(measure.params.get(parameter, 1) < 1 for parameter in ("cutoff", "rel")):
        raise SourcierError(
            f"measure '{name}' has a cut-off or grade below 1: write it like nDCG@10 or P(rel=2)@5"
        )
    _check_computed(name, measure)
    return measure


def depth(name: str) -> int:
    """How many hits a query the measure looks at; 0 where it has no cut-off."""
    return int(parse(name).params.get("cutoff", 0))


def _stem_length(name: str) -> int:
    return min(
        (position for position in (name.find("("), name.find("@")) if position >= 0), default=len(name)
    )


def _check_computed(name: str, measure: Any) -> None:
    """Refuse a measure that no library which is installed computes: it would fail after the search."""
    able = [library for library in ir_measures.DefaultPipeline.providers if library.supports(measure)]
    if not able:
        raise SourcierError(
            f"measure '{name}' is computed by no library as written: change its cut-off or parameters, or take another"
        )
    if not any(library.is_available() for library in able):
        raise SourcierError(
            f"measure '{name}' needs {able[0].NAME}, which is not installed: {able[0].install_instructions()}, "
            f"or choose another, such as {MEASURES[0]}"
        )


def _numbered(judged: Judgments, run: Run) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Judgments and run with numbers for ids, and falling whole numbers as scores.

    The libraries order equal scores by document id. One of them cuts ids at spaces, and those of queries at hyphens.
    """
    grades, ranks = {}, {}
    for number, query in enumerate(judged):
        found = ranking(run.get(query, {}))
        place = {
            document: str(place) for place, document in enumerate(dict.fromkeys([*found, *judged[query]]))
        }
        grades[str(number)] = {place[document]: grade for document, grade in judged[query].items()}
        if found:
            ranks[str(number)] = {place[document]: len(found) - rank for rank, document in enumerate(found)}
    return grades, ranks
