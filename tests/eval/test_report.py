"""Tables, and the comparison of two runs with its p-value."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sourcier.eval.measure import evaluate
from sourcier.eval.report import compare, comparison_table, sign_flip_p_value, table
from sourcier.types import SourcierError

QRELS = {f"q{number}": {"good": 1} for number in range(4)}
GOOD, BAD = {"good": 2.0, "other": 1.0}, {"other": 2.0, "good": 1.0}


def test_wins_losses_and_ties_are_counted_by_query() -> None:
    new = evaluate(QRELS, {"q0": GOOD, "q1": GOOD, "q2": BAD, "q3": GOOD}, ["MRR@10"])
    old = evaluate(QRELS, {"q0": BAD, "q1": BAD, "q2": GOOD, "q3": GOOD}, ["MRR@10"])
    (result,) = compare(new, old)
    assert (result.wins, result.losses, result.ties) == (2, 1, 1)
    assert result.delta == pytest.approx(0.125)


def test_the_p_value_is_that_of_all_sign_patterns() -> None:
    differences = np.random.default_rng(3).normal(0.3, 0.5, size=10)
    sums = np.abs(np.array(list(product([-1, 1], repeat=10))) @ differences)
    exact = (sums >= abs(differences.sum()) - 1e-9).mean()
    assert sign_flip_p_value(differences) == pytest.approx(exact, abs=0.02)


def test_equal_systems_do_not_differ() -> None:
    assert sign_flip_p_value(np.zeros(20)) == 1.0


def test_a_clear_difference_is_significant_and_never_certain() -> None:
    assert 0 < sign_flip_p_value(np.full(50, 0.1)) < 0.001


def test_evaluations_of_other_queries_are_refused() -> None:
    with pytest.raises(SourcierError, match="have not measured the same queries"):
        compare(evaluate(QRELS, {}), evaluate({"q0": {"good": 1}}, {}))


def test_a_table_has_a_column_a_key_and_four_digits() -> None:
    text = table([{"system": "bm25", "nDCG@10": 0.5}, {"system": "ours [new]", "nDCG@10": 0.25, "n": 3}])
    assert text.splitlines()[1].split()[1::2] == ["system", "nDCG@10", "n"]
    assert "│ ours [new] │  0.2500 │ 3 │" in text


@pytest.mark.parametrize(("columns", "wanted"), [("50", 50), ("10", 47)])
def test_a_table_fits_the_terminal_as_far_as_its_numbers_let_it(
    monkeypatch: pytest.MonkeyPatch, columns: str, wanted: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = table([{"index": "a" * 100, "nDCG@10": 0.12345, "recall@100": 1.0}]).splitlines()
    assert {len(line) for line in lines} == {
        wanted
    }  # 20 for the name, 7 and 10 for numbers, 3 × 3 + 1 around them
    assert "0.1235 │     1.0000 │" in lines[3]
    assert sum(line.count("a") for line in lines) == 100 + "recall".count("a")


def test_a_comparison_is_shown_with_its_baseline() -> None:
    evaluation = evaluate(QRELS, {"q0": GOOD}, ["MRR@10"])
    text = comparison_table(compare(evaluation, evaluation), baseline="old.run")
    assert "compared with old.run" in text
    assert "+0.0000 │ 0/0/4" in text
