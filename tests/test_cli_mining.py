"""`sourcier mine`, from an index to a file that training reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sourcier.cli import main
from sourcier.data.collections import Query, write_beir
from sourcier.data.examples import read_examples
from sourcier.types import Document

DOCUMENTS = [
    Document("spring", "a spring of water rises from the ground"),
    Document("river", "the river is water that runs to the sea"),
    Document("rain", "rain is water that falls on the ground"),
    Document("file", "a file holds a list of data"),
    Document("sort", "sort a list of data in the file"),
]


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A query about water with two relevant documents, one about lists with one."""
    write_beir(
        tmp_path / "docs",
        DOCUMENTS,
        [Query("q1", "spring water ground"), Query("q2", "sort list")],
        {"train": {"q1": {"spring": 1, "rain": 1, "river": 0}, "q2": {"sort": 1}}},
    )
    return tmp_path / "docs"


@pytest.fixture
def index(beir: Path, tmp_path: Path) -> Path:
    output = tmp_path / "index"
    assert main(["index", "build", "--kind", "bm25", "--data", str(beir), "--output", str(output)]) == 0
    return output


def mine(index: Path, beir: Path, output: Path, *flags: object) -> int:
    what = ["mine", index, "--data", beir, "--output", output, *flags]
    return main([str(argument) for argument in what])


def test_negatives_are_words_of_the_query_in_documents_that_do_not_answer_it(
    index: Path, beir: Path, tmp_path: Path
) -> None:
    output = tmp_path / "mined.jsonl"
    assert mine(index, beir, output, "--ranks", "1-5", "--negatives", 1) == 0
    texts = {document.id: document.text for document in DOCUMENTS}
    found = [(row.positive, row.negatives) for row in read_examples(str(output))]
    assert found == [
        (texts["spring"], (texts["river"],)),
        (texts["rain"], (texts["river"],)),
        (texts["sort"], (texts["file"],)),
    ]


def test_rows_that_cannot_have_enough_are_left_out_and_told(
    index: Path, beir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the two that answer q1 there are three documents; q2 has four."""
    output = tmp_path / "mined.jsonl"
    assert mine(index, beir, output, "--ranks", "1-5", "--negatives", 4, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["written"] == 1
    assert "2 rows still have too few" in err
    assert [len(row.negatives) for row in read_examples(str(output))] == [4]


def test_a_teacher_scores_each_row(index: Path, beir: Path, tmp_path: Path) -> None:
    from models.test_cross_encoder import classifier

    teacher = classifier(tmp_path / "teacher")
    output = tmp_path / "mined.jsonl"
    assert mine(index, beir, output, "--ranks", "1-5", "--negatives", 2, "--teacher", teacher) == 0
    assert [len(row.scores or ()) for row in read_examples(str(output))] == [3, 3, 3]


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--ranks", "5"], 2, "ranks=5 must be two ranks"),
        (["--sampling", "best"], 2, "'--sampling' must be 'top' or 'random'"),
        (["--negatives", "9", "--ranks", "1-20"], 1, "no row has 9 negatives"),
    ],
)
def test_what_cannot_be_is_one_line(
    index: Path,
    beir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    status: int,
    message: str,
) -> None:
    capsys.readouterr()
    given = flags if "--ranks" in flags else [*flags, "--ranks", "1-5", "--negatives", "1"]
    assert mine(index, beir, tmp_path / "mined.jsonl", *given) == status
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_teacher_is_loaded_before_the_search(
    index: Path,
    beir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capsys.readouterr()
    monkeypatch.setattr("sourcier.train.mining.mine", lambda *_, **__: pytest.fail("it searched"))
    assert mine(index, beir, tmp_path / "mined.jsonl", "--teacher", "nowhere") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere: cannot be loaded as a cross-encoder" in line


def test_a_file_that_training_would_not_know_is_refused_before_the_work(
    index: Path, beir: Path, tmp_path: Path
) -> None:
    assert mine(index, beir, tmp_path / "mined.json") == 2
