"""Tables of figures for people, and the comparison of two evaluations of the same queries."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from sourcier.eval.measure import Evaluation
from sourcier.types import SourcierError

#: Sign patterns that are drawn for a p-value: its resolution is about 1 / FLIPS.
FLIPS = 10_000
_CHUNK = 500
#: Columns of text where there is no terminal to fit into.
_WIDTH = 160
#: What a column of a table takes beside its text, and the width down to which a text is folded.
_BORDER, _FOLDED = 3, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How an evaluation differs from a baseline in one measure."""

    measure: str
    baseline: float
    value: float
    wins: int
    losses: int
    ties: int
    p_value: float

    @property
    def delta(self) -> float:
        return self.value - self.baseline


def compare(evaluation: Evaluation, baseline: Evaluation) -> list[Comparison]:
    """One comparison a measure, query by query."""
    return [_compare(name, evaluation, baseline) for name in evaluation.means]


def sign_flip_p_value(differences: np.ndarray, *, seed: int = 0) -> float:
    """The two-sided p-value of paired differences under random exchange of the two systems, query by query.

    (Randomisation test: Smucker, Allan and Carterette, CIKM 2007, section 3.) The observed pattern counts as one of
    those drawn, so the value is never 0.
    """
    random = np.random.default_rng(seed)
    observed = abs(differences.sum())
    as_extreme = 0
    for start in range(0, FLIPS, _CHUNK):
        count = min(_CHUNK, FLIPS - start)
        signs = random.integers(0, 2, size=(count, len(differences)), dtype=np.int8) * 2 - 1
        # The tolerance keeps patterns that are equal but for rounding as extreme as the observed one.
        as_extreme += int((np.abs(signs @ differences) >= observed - 1e-9).sum())
    return (as_extreme + 1) / (FLIPS + 1)


def table(rows: Sequence[Mapping[str, object]], title: str | None = None) -> str:
    """Rows as a table of text: one column a key, numbers to the right, fractions with four digits.

    It is no wider than the terminal, unless its numbers need more: texts are folded, numbers never.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    drawn = Table(title=title, title_justify="left")
    least = 1
    for name in names:
        numeric = all(isinstance(row.get(name, 0), (int, float)) for row in rows)
        drawn.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
        widest = max(len(one) for one in (name, *(_cell(row.get(name, "")) for row in rows)))
        least += _BORDER + (widest if numeric else min(widest, _FOLDED))
    for row in rows:
        drawn.add_row(*(_cell(row.get(name, "")) for name in names))
    page = io.StringIO()
    width = max(least, shutil.get_terminal_size((_WIDTH, 24)).columns)
    Console(file=page, width=width, markup=False, color_system=None).print(drawn)
    return page.getvalue().rstrip("\n")


def comparison_table(comparisons: Sequence[Comparison], *, baseline: str) -> str:
    """Comparisons as a table of text."""
    rows = [
        {
            "measure": one.measure,
            "baseline": one.baseline,
            "this run": one.value,
            "delta": f"{one.delta:+.4f}",
            "wins/losses/ties": f"{one.wins}/{one.losses}/{one.ties}",
            "p": one.p_value,
        }
        for one in comparisons
    ]
    return table(rows, title=f"compared with {baseline}")


def _compare(name: str, evaluation: Evaluation, baseline: Evaluation) -> Comparison:
    if name not in baseline.per_query or evaluation.per_query[name].keys() != baseline.per_query[name].keys():
        raise SourcierError(
            f"{name}: the two evaluations have not measured the same queries: use the same judgments"
        )
    of_query, of_baseline = evaluation.per_query[name], baseline.per_query[name]
    differences = np.array([of_query[query] - of_baseline[query] for query in of_query])
    # Equal rankings can differ by rounding in the sums of their gains.
    wins, losses = int((differences > 1e-12).sum()), int((differences < -1e-12).sum())
    return Comparison(
        measure=name,
        baseline=baseline.means[name],
        value=evaluation.means[name],
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
        p_value=sign_flip_p_value(differences),
    )


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
