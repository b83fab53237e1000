"""What is read back from metrics.jsonl, what is refused in it, and what is said of a run that logged little."""

from __future__ import annotations

from pathlib import Path

import pytest

from sourcier.train.health import LOGS, PREFIX, READ
from sourcier.train.history import History, read_history
from sourcier.types import SourcierError


def written(folder: Path, content: str) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text(content, encoding="utf-8")
    return path


def watched(lines: int, *, warnings: list[str] | None = None, is_cut: bool = False) -> History:
    """A run that logged all figures of health so many times."""
    points = [(step, 0.5) for step in range(1, lines + 1)]
    return History({PREFIX + name: points for name in READ}, warnings or [], is_cut)


def test_there_is_a_curve_for_each_figure_and_the_warnings(tmp_path: Path) -> None:
    history = read_history(
        written(
            tmp_path,
            '{"step": 5, "loss": 2.0, "health/margin": null, "seconds": 1}\n'
            '{"step": 5, "warning": "step 5: it\u2028is"}\n'  # a separator of lines to Unicode, not to JSON
            '{"step": 10, "loss": 1.0}\n',
        )
    )
    assert history.curves == {"loss": [(5, 2.0), (10, 1.0)]}
    assert history.warnings == ["step 5: it\u2028is"]
    assert not history.is_cut


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"loss": 1.0}', '{"step": 1.5}', '{"step": true}', '{"step": "1"}', ""]
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(SourcierError, match=r"metrics\.jsonl:2: is no"):
        read_history(written(tmp_path, '{"step": 1}\n' + line + '\n{"step": 3}\n'))


@pytest.mark.parametrize(
    ("value", "shown"),
    [("NaN", "nan"), ("-Infinity", "-inf"), ("1e999", "inf"), ("9" * 400, "inf")],
    ids=["NaN", "-Infinity", "1e999", "400 digits"],
)
def test_a_figure_that_is_no_number_is_named_with_its_line(tmp_path: Path, value: str, shown: str) -> None:
    with pytest.raises(SourcierError, match=rf"metrics\.jsonl:2: 'loss' is {shown}, "):
        read_history(written(tmp_path, '{"step": 1, "loss": 2}\n{"step": 2, "loss": ' + value + "}\n"))


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "warning": "\xff"}\n')
    with pytest.raises(SourcierError, match=r"metrics\.jsonl:2: "):
        read_history(path)


def test_a_last_line_that_a_kill_cut_off_is_left_out_with_a_word(tmp_path: Path) -> None:
    history = read_history(written(tmp_path, '{"step": 1, "loss": 2.0}\n{"step": 2, "lo'))
    assert (history.curves, history.is_cut) == ({"loss": [(1, 2.0)]}, True)
    assert "cut off" in history.verdict()[-1]


def test_a_last_line_that_is_whole_counts_without_its_end(tmp_path: Path) -> None:
    history = read_history(written(tmp_path, '{"step": 1, "loss": 2.0}'))
    assert (history.curves, history.is_cut) == ({"loss": [(1, 2.0)]}, False)


def test_a_run_is_not_cleared_by_fewer_lines_than_a_warning_needs() -> None:
    history = watched(LOGS - 1)
    assert history.compressed is None
    assert "too few lines to judge" in history.verdict()[0]


def test_a_run_with_enough_lines_and_no_warning_is_cleared() -> None:
    history = watched(LOGS)
    assert history.compressed is False
    assert history.verdict() == ["Training gave no warning of compressed similarity."]


def test_a_warning_counts_however_few_the_lines() -> None:
    history = watched(1, warnings=["step 1: documents move together"])
    assert history.compressed is True
    assert history.verdict() == ["Training warned: step 1: documents move together."]


def test_a_run_without_figures_of_health_is_neither() -> None:
    history = History({"loss": [(1, 2.0)]}, [])
    assert history.compressed is None
    assert "no figures of health" in history.verdict()[0]
