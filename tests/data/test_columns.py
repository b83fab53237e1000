"""Files of columns: what names them, which first line is taken for a header, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sourcier.data.collections import Corpus, read_qrels
from sourcier.data.examples import Example, Examples
from sourcier.types import DataError, Document


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "f.tsv"
    path.write_text(text)
    return path


def test_column_too_many_is_not_taken_for_text(tmp_path: Path) -> None:
    path = _file(tmp_path, "1\tone\n2\ttwo\tmore\n")
    with pytest.raises(DataError, match=r"f\.tsv:2: has 3 columns where the file began with 2; "):
        list(Corpus.read(path))


EXPECTED = "expected query, positive and any of negative, negative_1, negative_2 …; where the line is data, "
WRONG_EXAMPLES = {
    "slip": ("query\tpostive", '"postive" is no column that is known here (did you mean "positive"?)'),
    "slips alone": ("qurey\tpostive", '"qurey" is no column that is known here (did you mean "query"?)'),
    "one unknown": ("query\tpositive\tyear", '"year" is no column that is known here'),
    "names from elsewhere": ("question\tanswer_text", '"question" is no column that is known here'),
    "twice": ("query\tpositive\tnegative\tnegative", '"negative" is named twice'),
    "two names of one": ("query\tanchor\tpositive", '"query" is named twice'),
    "missing": ("positive\tnegative", '"query" is missing'),
}


@pytest.mark.parametrize("header", WRONG_EXAMPLES)
def test_header_of_examples_that_cannot_be_followed_is_named(tmp_path: Path, header: str) -> None:
    line, what = WRONG_EXAMPLES[header]
    path = _file(tmp_path, f"{line}\nq\tp\n")
    with pytest.raises(DataError) as caught:
        Examples.from_tsv(path)
    cells = "[" + ", ".join(f'"{cell}"' for cell in line.split("\t")) + "]"
    assert str(caught.value).startswith(f"{path}:1: the header is {cells}, where {what}; {EXPECTED}")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("id\tbody", '"body" is no column that is known here; expected id, text and'),
        ("Id\tTitel\tText", '"titel" is no column that is known here (did you mean "title"?); '),
        ("doc_no\tbody", '"doc_no" is no column that is known here'),
        ("docid\ttitle", '"text" is missing; '),
        ("_id\tid\ttext", '"_id" is named twice; '),
    ],
)
def test_header_of_a_corpus_that_cannot_be_followed_is_named(tmp_path: Path, line: str, what: str) -> None:
    path = _file(tmp_path, f"{line}\nd1\tone\n")
    with pytest.raises(DataError) as caught:
        list(Corpus.read(path))
    assert str(caught.value).startswith(f"{path}:1: the header is [")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("query-id\tcorpus-id\tscroe", '"scroe" is no column that is known here (did you mean "score"?); '),
        ("query-id corpus-id rating", '"rating" is no column that is known here; expected query-id, '),
        ("query-id\tscore\titeration", '"corpus-id" is missing; '),
    ],
)
def test_header_of_judgments_that_cannot_be_followed_is_named(tmp_path: Path, line: str, what: str) -> None:
    path = _file(tmp_path, f"{line}\nq1\td1\t1\n")
    with pytest.raises(DataError) as caught:
        read_qrels(path)
    assert str(caught.value).startswith(f"{path}:1: the header is [")
    assert what in str(caught.value)


def test_header_that_cannot_be_followed_stops_a_lenient_reader_too(tmp_path: Path) -> None:
    """Read by their places, the columns of this file would be swapped without a word."""
    path = _file(tmp_path, "positive\tqurey\np\tq\n")
    with pytest.raises(DataError, match=r'f\.tsv:1: .* "qurey" is no column'):
        Examples.from_tsv(path, lenient=True)


@pytest.mark.parametrize(
    "line",
    ["paris\tcapital", "what is a query\ttext that is searched with", "q1\tquestion", "query 1\tpositive 1"],
)
def test_first_line_that_is_not_all_names_is_data(tmp_path: Path, line: str) -> None:
    query, positive = line.split("\t")
    assert list(Examples.from_tsv(_file(tmp_path, f"{line}\n"))) == [Example(query, positive)]


def test_header_above_a_line_that_looks_like_one_makes_it_data(tmp_path: Path) -> None:
    corpus = Corpus.read(_file(tmp_path, "id\ttext\nid\tbody\n"))
    assert list(corpus) == [Document("id", "body")]
