"""Runs: what a retriever found for each query, in memory and as TREC files.

A run is `{query id: {document id: score}}`. Its ranks are those of the scores, best first; equal scores keep the
order in which they stand, so a run that is written and read again has the same ranks.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from sourcier.config import replace_text
from sourcier.types import DataError, Hits

Run = Mapping[str, Mapping[str, float]]
_COLUMN = re.compile(r"\S+")


def from_hits(queries: Sequence[str], hits: Hits) -> dict[str, dict[str, float]]:
    """The run of a batch of queries, whose ids are given in the order of the hits."""
    return {query: {hit.id: hit.score for hit in found} for query, found in zip(queries, hits, strict=True)}


def ranking(found: Mapping[str, float]) -> list[str]:
    """The documents of one query, best first; equal scores keep their order."""
    return sorted(found, key=lambda document: -found[document])


def write_trec(path: str | os.PathLike[str], run: Run, tag: str = "sourcier") -> None:
    """Write a run as `query Q0 document rank score tag`, one hit a line, with the scores in full."""
    check_columns(path, "tag", [tag])
    lines = []
    for query, found in run.items():
        check_columns(path, "query id", [query])
        check_columns(path, "document id", found)
        for rank, document in enumerate(ranking(found), start=1):
            lines.append(f"{query} Q0 {document} {rank} {found[document]!r} {tag}\n")
    replace_text(path, "".join(lines))


def check_columns(
    path: str | os.PathLike[str],
    what: str,
    values: Iterable[str],
    *,
    source: str | os.PathLike[str] | None = None,
    mend: str = "rename it, or write no run",
) -> None:
    """Refuse what a column of the run in `path` cannot hold; `source` is where the values are from."""
    for value in values:
        if not _COLUMN.fullmatch(value):
            place = "" if source is None else f" of {source}"
            raise DataError(
                f"{path}: {what} {value!r}{place} is empty or holds white space, which a TREC run cannot: {mend}"
            )


def read_trec(path: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
    """Read a TREC run file; the order is that of the scores, and of the lines where scores are equal."""
    run: dict[str, dict[str, float]] = {}
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    query, document, score = _parse_line(f"{path}:{number}", line)
                    found = run.setdefault(query, {})
                    if document in found:
                        raise DataError(
                            f"{path}:{number}: document '{document}' stands twice under query '{query}': remove one"
                        )
                    found[document] = score
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a run: {error}") from error
    return {query: {document: found[document] for document in ranking(found)} for query, found in run.items()}


def _parse_line(where: str, line: str) -> tuple[str, str, float]:
    columns = re.split(r"[ \t]+", line.strip(" \t\r\n"))
    if len(columns) != 6:
        raise DataError(
            f"{where}: {len(columns)} columns where a run has 6 (query Q0 document rank score tag): mend the line"
        )
    query, _, document, _, score, _ = columns
    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise DataError(f"{where}: score '{score}' is not a number: mend the line")
    return query, document, value
