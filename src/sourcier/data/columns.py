"""Reads TSV files: lines of columns, whose names a header gives or the number of columns tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sourcier.data.lines import LineFault, ReadReport, read_lines, shown
from sourcier.data.values import slip_of
from sourcier.types import DataError

#: What a cell of a header looks like: one word, perhaps of parts.
NAME = re.compile(r"[#_]?[^\W\d_][\w.-]*")
PART = re.compile(r"[^\W\d_]+")
#: What parts of column names are called anywhere: a first line of nothing else is a header, known here or not.
USUAL = re.compile(
    "(anchor|answer|content|corpus|doc|document|hypothesis|id|iteration|label|neg|negative|passage|pos|positive|"
    "premise|query|question|rank|rel|relevance|score|sentence|text|title|url)s?|body|did|docid|docno|no|pid|qid|queries"
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a kind of file."""

    #: Our names by those that a header may give, in lower case.
    header: Mapping[str, str]
    #: Those of ours that have to be there, and what an error calls them.
    required: Mapping[str, str]
    #: Our names from the number of columns, where there is no header.
    layout: Callable[[int], tuple[str, ...]]
    #: What the columns should be, in words.
    expected: str

    def named_by(self, cells: Sequence[str]) -> tuple[str, ...] | None:
        """Our names of the columns where these cells are a header, None where they are data."""
        given = [cell.strip().lower() for cell in cells]
        if not self._is_header(given):
            return None
        for cell in given:
            if cell not in self.header:
                meant = slip_of(cell, tuple(self.header))
                hint = f' (did you mean "{meant}"?)' if meant else ""
                raise self._fault(cells, f"{shown(cell)} is no column that is known here{hint}")
        names = tuple(self.header[cell] for cell in given)
        for cell, name in zip(given, names, strict=True):
            if names.count(name) > 1:
                raise self._fault(cells, f"{shown(cell)} is named twice")
        for name, called in self.required.items():
            if name not in names:
                raise self._fault(cells, f'"{called}" is missing')
        return names

    def _is_header(self, given: Sequence[str]) -> bool:
        """Whether a first line names columns: a known name is among its words, or all are what columns are called."""
        if len(given) < 2 or not all(map(NAME.fullmatch, given)):
            return False
        return any(cell in self.header for cell in given) or all(
            all(map(USUAL.fullmatch, PART.findall(cell))) or slip_of(cell, tuple(self.header))
            for cell in given
        )

    def _fault(self, cells: Sequence[str], what: str) -> LineFault:
        mend = f"expected {self.expected}; where the line is data, write a header above it"
        return LineFault("wrong header", f"the header is {shown(list(cells))}, where {what}", mend)


def read_tsv(
    path: Path,
    report: ReadReport,
    columns: Columns,
    *,
    split: Callable[[str], list[str]] = lambda line: line.split("\t"),
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and named cells of every line of a file of columns, which must all be as many as in the first line.

    There is no quoting: a tab always parts two columns. A header that cannot be followed is an error for a lenient
    report too, since nothing can be said of any line below it.
    """
    names: tuple[str, ...] | None = None
    for number, line in read_lines(path, report):
        cells = split(line)
        if names is None:
            try:
                names = columns.named_by(cells)
            except LineFault as fault:
                raise DataError(f"{path}:{number}: {fault}") from fault
            if names is not None:
                continue
        try:
            names = names or columns.layout(len(cells))
            if len(cells) != len(names):
                raise LineFault(
                    "wrong number of columns",
                    f"has {len(cells)} columns where the file began with {len(names)}",
                    "mend the line; texts that hold tabs or newlines belong in JSONL",
                )
            yield number, dict(zip(names, cells, strict=True))
        except LineFault as fault:
            report.fault(f"{path}:{number}", fault)
