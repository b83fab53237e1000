"""`sourcier mine`, from an index to a file that training reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Ended, Run

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
def index(run: Run, beir: Path, tmp_path: Path) -> Path:
    output = tmp_path / "index"
    assert run("index", "build", "--kind", "bm25", "--data", beir, "--output", output).status == 0
    return output


@pytest.fixture
def mine(run: Run, index: Path, beir: Path, tmp_path: Path) -> Run:
    """Mines with flags, from ranks 1 to 5 where they say nothing else."""

    def mine_with(*flags: object, output: str = "mined.jsonl") -> Ended:
        ranks = [] if "--ranks" in flags else ["--ranks", "1-5"]
        return run("mine", index, "--data", beir, "--output", tmp_path / output, *ranks, *flags)

    return mine_with


def test_negatives_are_words_of_the_query_in_documents_that_do_not_answer_it(
    mine: Run, tmp_path: Path
) -> None:
    assert mine("--negatives", 1).status == 0
    texts = {document.id: document.text for document in DOCUMENTS}
    found = [(row.positive, row.negatives) for row in read_examples(str(tmp_path / "mined.jsonl"))]
    assert found == [
        (texts["spring"], (texts["river"],)),
        (texts["rain"], (texts["river"],)),
        (texts["sort"], (texts["file"],)),
    ]


def test_rows_that_cannot_have_enough_are_left_out_and_told(mine: Run, tmp_path: Path) -> None:
    """Beside the two that answer q1 there are three documents; q2 has four."""
    ended = mine("--negatives", 4, "--json")
    assert ended.json["written"] == 1
    assert "2 rows still have too few" in ended.err
    assert [len(row.negatives) for row in read_examples(str(tmp_path / "mined.jsonl"))] == [4]


def test_a_teacher_scores_each_row(mine: Run, tmp_path: Path) -> None:
    from models.test_cross_encoder import classifier

    assert mine("--negatives", 2, "--teacher", classifier(tmp_path / "teacher")).status == 0
    assert [len(row.scores or ()) for row in read_examples(str(tmp_path / "mined.jsonl"))] == [3, 3, 3]


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--ranks", "5"], 2, "ranks=5 must be two ranks"),
        (["--sampling", "best", "--negatives", 1], 2, "'--sampling' must be 'top' or 'random'"),
        (["--negatives", 9, "--ranks", "1-20"], 1, "no row has 9 negatives"),
    ],
)
def test_what_cannot_be_is_one_line(mine: Run, flags: list[object], status: int, message: str) -> None:
    ended = mine(*flags)
    assert (ended.status, message in ended.err.splitlines()[-1]) == (status, True)


def test_a_teacher_is_loaded_before_the_search(mine: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sourcier.train.mining.mine", lambda *_, **__: pytest.fail("it searched"))
    ended = mine("--teacher", "nowhere")
    assert (ended.status, "nowhere: cannot be loaded as a cross-encoder" in ended.fault) == (1, True)


def test_a_file_that_training_would_not_know_is_refused_before_the_work(mine: Run) -> None:
    assert mine(output="mined.json").status == 2
