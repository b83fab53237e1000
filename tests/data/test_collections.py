"""Collections: what is read from each kind of file, and what each fault in one says."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sourcier.data.collections import Collection, Corpus, Query, read_beir, read_qrels, write_beir
from sourcier.data.examples import Examples
from sourcier.types import DataError, Document

CORPUS = '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": "d2", "text": "two"}\n'
QUERIES = '{"_id": "q1", "text": "first?"}\n{"_id": "q2", "text": "second?", "answers": ["2", "two"]}\n'
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t1\n"


def _folder(tmp_path: Path, corpus: str = CORPUS, queries: str = QUERIES, qrels: str = QRELS) -> Path:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(corpus)
    (tmp_path / "queries.jsonl").write_text(queries)
    (tmp_path / "qrels" / "test.tsv").write_text(qrels)
    return tmp_path


def _corpus(tmp_path: Path, text: str, name: str = "corpus.jsonl", *, lenient: bool = False) -> Corpus:
    (tmp_path / name).write_text(text)
    return Corpus.read(tmp_path / name, lenient=lenient)


def test_beir_folder(tmp_path: Path) -> None:
    collection = read_beir(_folder(tmp_path), "test")
    assert list(collection.corpus) == [Document("d1", "one", "T"), Document("d2", "two")]
    assert collection.queries == {"q1": Query("q1", "first?")}
    assert collection.qrels == {"q1": {"d1": 1}}
    assert str(collection.report) == "2 documents, 2 queries, 1 judgments"


def test_packed_beir_folder_reads_the_same(tmp_path: Path) -> None:
    plain = read_beir(_folder(tmp_path), "test")
    before = list(plain.corpus)
    for path in (tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl", tmp_path / "qrels" / "test.tsv"):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    packed = read_beir(tmp_path, "test")
    assert (list(packed.corpus), packed.queries, packed.qrels) == (before, plain.queries, plain.qrels)


def test_answers_are_kept(tmp_path: Path) -> None:
    collection = read_beir(_folder(tmp_path, qrels=QRELS + "q2\td2\t1\n"), "test")
    assert collection.queries["q2"].answers == ("2", "two")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.tsv", "d1\tone\nd2\ttwo\n"),
        ("c.tsv", "id\ttext\nd1\tone\nd2\ttwo\n"),
        ("c.tsv", "d1\tone\t\nd2\ttwo\t\n"),
        ("c.tsv", "text\ttitle\tdocid\none\t\td1\ntwo\t\td2\n"),
        ("c.jsonl", '{"id": "d1", "text": "one", "title": null}\n{"_id": "d2", "text": "two"}\n'),
    ],
    ids=["two columns", "header", "three columns", "header in another order", "jsonl"],
)
def test_corpus_files(tmp_path: Path, name: str, text: str) -> None:
    assert list(_corpus(tmp_path, text, name)) == [Document("d1", "one"), Document("d2", "two")]


def test_other_keys_become_metadata(tmp_path: Path) -> None:
    line = '{"_id": "a", "text": "t", "year": 1999, "metadata": {"url": "u"}}\n'
    assert next(iter(_corpus(tmp_path, line))).metadata == {"url": "u", "year": 1999}


@pytest.mark.parametrize("key", ["titles", "tile", "texts", "ids", "Id", "year", "", "-"])
def test_key_that_may_be_metadata_is_metadata(tmp_path: Path, key: str) -> None:
    line = json.dumps({"_id": "a", "text": "t", key: "kept"})
    assert next(iter(_corpus(tmp_path, line))).metadata == {key: "kept"}


def test_integer_ids_are_their_digits(tmp_path: Path) -> None:
    assert list(_corpus(tmp_path, '{"_id": 7, "text": "t"}\n').load()) == ["7"]


FAULTS = {
    "float id": ('{"_id": 1.5, "text": "t"}', '"_id" is 1.5; an id is a string or an integer'),
    "boolean id": ('{"_id": true, "text": "t"}', '"_id" is true; an id is'),
    "null id": ('{"_id": null, "text": "t"}', '"_id" is null; an id is'),
    "list id": ('{"_id": ["a"], "text": "t"}', '"_id" is ["a"]; an id is'),
    "empty id": ('{"_id": " ", "text": "t"}', '"_id" is " "; an id holds'),
    "endless id": ('{"_id": ' + "9" * 5000 + ', "text": "t"}', "is JSON that cannot be read"),
    "no id": ('{"text": "t"}', 'has no "_id"; '),
    "no text": ('{"_id": "x"}', 'has no "text"; '),
    "null text": ('{"_id": "x", "text": null}', '"text" is null; '),
    "number text": ('{"_id": "x", "text": 5}', '"text" is 5; '),
    "number title": ('{"_id": "x", "text": "t", "title": 5}', '"title" is 5; '),
    "list metadata": ('{"_id": "x", "text": "t", "metadata": []}', '"metadata" is []; '),
    "half a pair": ('{"_id": "x", "text": "\\ud800"}', '"text" holds half a surrogate pair (\\ud800); '),
    "duplicate": ('{"_id": "1", "text": "t"}', 'id "1" was given before, at 1; '),
    "broken": ('{"_id": "x", "text": "t",}', "is not JSON ("),
    "misspelt text": ('{"_id": "x", "txt": "t"}', 'has the key "txt"; did you mean "text"?'),
    "capital text": ('{"_id": "x", "Text": "t"}', 'has the key "Text"; did you mean "text"?'),
    "capital id": ('{"ID": "x", "text": "t"}', 'has the key "ID"; did you mean "id"?'),
    "misspelt title": (
        '{"_id": "x", "text": "t", "titel": "T"}',
        'has the key "titel"; did you mean "title"? (where it is meant as it is, put it into "metadata")',
    ),
    "capital metadata": ('{"_id": "x", "text": "t", "Metadata": {}}', 'has the key "Metadata"; did you'),
    "other keys": (
        '{"docno": "x", "body": "t"}',
        'has no "_id"; give every line an id (this one has "docno", "body")',
    ),
    "key twice": ('{"_id": "x", "text": "t", "text": "u"}', 'has the key "text" twice; '),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_a_corpus_names_file_line_and_mend(tmp_path: Path, fault: str) -> None:
    line, expected = FAULTS[fault]
    corpus = _corpus(tmp_path, f'{{"_id": 1, "text": "good"}}\n\n{line}\n')
    with pytest.raises(DataError) as caught:
        list(corpus)
    assert str(caught.value).startswith(f"{tmp_path}/corpus.jsonl:3: {expected}")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_a_corpus_is_counted_when_lenient(tmp_path: Path, fault: str) -> None:
    text = f'{{"_id": 1, "text": "good"}}\n{FAULTS[fault][0]}\n{{"_id": 2, "text": "good"}}\n'
    corpus = _corpus(tmp_path, text, lenient=True)
    assert ([document.id for document in corpus], corpus.report.skipped.total()) == (["1", "2"], 1)


MIXED = (
    b'\xef\xbb\xbf{"_id": 1, "title": null, "text": "one"}\r\n'  # a byte order mark, an integer id, no title
    b"\r\n"  # a blank line
    b'{"_id": "2", "title": "T", "text": "two"}\r\n'
    b'{"_id": "1", "text": "again"}\r\n'  # the id of line 1
    b'{"_id": "3", "title": 3, "text": "three"}\r\n'
    b'{"_id": "4", "text": "fo\r\n'  # a broken line
    b'{"_id": "5", "text": "five",}\r\n'  # a trailing comma
    b'{"_id": 6, "text": "six"}'  # no end of line
)


def test_mixed_file_is_read_as_far_as_it_is_sound(tmp_path: Path) -> None:
    """Every form of hazard H1 in one file, with its total."""
    (tmp_path / "corpus.jsonl").write_bytes(MIXED)
    corpus = Corpus.read(tmp_path / "corpus.jsonl", lenient=True)
    assert list(corpus) == [Document("1", "one"), Document("2", "two", "T"), Document("6", "six")]
    skipped = {"duplicate id": 1, "wrong text type": 1, "broken JSON": 2}
    assert (dict(corpus.report.skipped), corpus.report.skipped.total()) == (skipped, 4)
    assert f"first at {tmp_path}/corpus.jsonl:6" in str(corpus.report)


def test_mixed_file_stops_at_its_first_fault(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(MIXED)
    with pytest.raises(DataError, match=r'corpus\.jsonl:4: id "1" was given before, at 1; '):
        list(Corpus.read(tmp_path / "corpus.jsonl"))


def test_integer_ids_and_their_digits_meet_in_judgments(tmp_path: Path) -> None:
    folder = _folder(tmp_path, '{"_id": 1, "text": "t"}\n', '{"_id": 7, "text": "?"}\n', "7\t1\t1\n")
    collection = read_beir(folder, "test")
    assert (list(collection.queries), collection.qrels) == (["7"], {"7": {"1": 1}})


def test_length_is_that_of_what_is_yielded(tmp_path: Path) -> None:
    text = '{"_id": "a", "text": "t"}\n' * 3 + '{"_id": "b", "text": "t"}\n'
    assert len(_corpus(tmp_path, text, lenient=True)) == 2


def test_passes_do_not_add_up_in_the_report(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, "{\n" + CORPUS, lenient=True)
    list(corpus), list(corpus)
    assert (corpus.report.skipped.total(), corpus.report.read["documents"]) == (1, 2)


def test_get_and_load(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, CORPUS)
    assert corpus.get(["d2", "nowhere"]) == {"d2": Document("d2", "two")}
    assert list(corpus.load()) == ["d1", "d2"]


def test_corpus_in_memory() -> None:
    corpus = Corpus.of([Document("a", "one"), Document("b", "two")])
    assert (len(corpus), corpus.get(["b"])) == (2, {"b": Document("b", "two")})


def test_corpus_in_memory_names_the_row_without_text() -> None:
    with pytest.raises(DataError, match='document 2: "text" is null; '):
        list(Corpus.of([Document("a", ""), Document("b", None)]))  # type: ignore[arg-type]


@pytest.mark.parametrize("identifier", ["", " \t"])
def test_corpus_in_memory_names_the_row_with_an_empty_id(identifier: str) -> None:
    with pytest.raises(DataError, match=r'document 2: "id" is .*; an id holds at least one character'):
        list(Corpus.of([Document("a", "one"), Document(identifier, "two")]))


def test_corpus_streams(tmp_path: Path) -> None:
    text = "".join(json.dumps({"_id": str(number), "text": "x" * 20_000}) + "\n" for number in range(400))
    corpus = _corpus(tmp_path, text)
    tracemalloc.start()
    try:
        total = sum(len(document.text) for document in corpus)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (total, peak < total / 8) == (8_000_000, True)


@pytest.mark.parametrize(
    ("folder", "split", "expected"),
    [
        (".", "tset", "qrels: holds no split 'tset'; there are: test"),
        ("nowhere", "test", "nowhere: there is no such folder; "),
        ("qrels", "test", "qrels: holds no corpus.jsonl; "),
    ],
)
def test_what_is_missing_in_a_folder_is_named(tmp_path: Path, folder: str, split: str, expected: str) -> None:
    _folder(tmp_path)
    with pytest.raises(DataError) as caught:
        read_beir(tmp_path / folder, split)
    assert expected in str(caught.value)


def test_corpus_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: there is no such file or folder; "):
        list(Corpus.read(tmp_path / "nowhere"))


JUDGMENT_FAULTS = {
    "unknown document": ("q1\td9\t1", 'document "d9" is not in the corpus; '),
    "unknown query": ("q9\td1\t1", 'query "q9" is not in queries; '),
    "contradicting judgment": ("q1\td1\t2", 'query "q1" and document "d1" were graded 1, and here 2; '),
    "wrong grade": ("q1\td2\t1.5", 'the grade is "1.5"; '),
    "empty id": ("q1\t \t1", '"document" is " "; '),
    "wrong number of columns": ("q1\td2", "has 2 columns where the file began with 3; "),
}


@pytest.mark.parametrize("reason", JUDGMENT_FAULTS)
def test_fault_in_judgments_names_file_line_and_mend(tmp_path: Path, reason: str) -> None:
    line, expected = JUDGMENT_FAULTS[reason]
    folder = _folder(tmp_path, qrels=f"{QRELS}{line}\n")
    with pytest.raises(DataError) as caught:
        read_beir(folder, "test")
    assert str(caught.value).startswith(f"{folder}/qrels/test.tsv:3: {expected}")


@pytest.mark.parametrize("reason", JUDGMENT_FAULTS)
def test_fault_in_judgments_is_counted_by_reason_when_lenient(tmp_path: Path, reason: str) -> None:
    folder = _folder(tmp_path, qrels=f"{QRELS}{JUDGMENT_FAULTS[reason][0]}\nq2\td2\t1\n")
    collection = read_beir(folder, "test", lenient=True)
    assert (collection.qrels, dict(collection.report.skipped)) == (
        {"q1": {"d1": 1}, "q2": {"d2": 1}},
        {reason: 1},
    )


def test_judgment_given_twice_is_noted(tmp_path: Path) -> None:
    collection = read_beir(_folder(tmp_path, qrels=f"{QRELS}q1\td1\t1\n"), "test")
    assert (collection.qrels, dict(collection.report.noted)) == ({"q1": {"d1": 1}}, {"repeated judgment": 1})


def test_split_without_a_judgment_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test\.tsv: holds no judgment that can be used; "):
        read_beir(_folder(tmp_path, qrels="query-id\tcorpus-id\tscore\n"), "test")


def test_duplicate_query_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"queries\.jsonl:3: id \"q1\" was given before, at 1; "):
        read_beir(_folder(tmp_path, queries=QUERIES + '{"_id": "q1", "text": "again"}\n'), "test")


@pytest.mark.parametrize("answers", ['"a"', "null", '["a", "b"]'])
def test_answers_may_be_one_or_several_or_none(tmp_path: Path, answers: str) -> None:
    folder = _folder(tmp_path, queries=f'{{"_id": "q1", "text": "?", "answers": {answers}}}\n')
    expected = {'"a"': ("a",), "null": (), '["a", "b"]': ("a", "b")}[answers]
    assert read_beir(folder, "test").queries["q1"].answers == expected


def test_wrong_answers_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'queries\.jsonl:1: "answers" is \[1\]; write a list of strings'):
        read_beir(_folder(tmp_path, queries='{"_id": "q1", "text": "?", "answers": [1]}\n'), "test")


@pytest.mark.parametrize(
    ("key", "meant"), [("answer", "answers"), ("Answers", "answers"), ("txt", "text"), ("_ID", "id")]
)
def test_misspelt_key_of_a_query_is_an_error(tmp_path: Path, key: str, meant: str) -> None:
    query = {"_id": "q1", "text": "?"}
    query.pop({"txt": "text", "_ID": "_id"}.get(key, ""), None)
    folder = _folder(tmp_path, queries=json.dumps(query | {key: "x"}) + "\n")
    with pytest.raises(DataError) as caught:
        read_beir(folder, "test")
    assert str(caught.value) == f'{folder}/queries.jsonl:1: has the key "{key}"; did you mean "{meant}"?'


def test_other_keys_of_a_query_are_read_over(tmp_path: Path) -> None:
    line = '{"_id": "q1", "text": "?", "metadata": {}, "title": "T", "id_of_user": 3}\n'
    assert read_beir(_folder(tmp_path, queries=line), "test").queries == {"q1": Query("q1", "?")}


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n",
        "q1\td1\t1\nq1\td2\t0\n",
        "q1 0 d1 1\nq1 0 d2 0\n",
        "q1\tQ0\td1\t1\r\nq1\tQ0\td2\t0\r\n",
    ],
    ids=["beir", "no header", "trec", "trec with tabs"],
)
def test_forms_of_judgments(tmp_path: Path, text: str) -> None:
    (tmp_path / "qrels.tsv").write_bytes(text.encode())
    assert read_qrels(tmp_path / "qrels.tsv") == {"q1": {"d1": 1, "d2": 0}}


def test_first_line_that_is_broken_is_not_taken_for_a_header(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("q1\td1\tone\n")
    with pytest.raises(DataError, match=r'qrels\.tsv:1: the grade is "one"; '):
        read_qrels(tmp_path / "qrels.tsv")


@pytest.mark.parametrize("read", [read_beir, Examples.from_beir])
def test_file_in_place_of_a_folder(tmp_path: Path, read: Callable[..., object]) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(CORPUS)
    with pytest.raises(DataError) as caught:
        read(file, "test")
    assert str(caught.value) == (
        f"{file} is a file; give a BEIR folder, with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv "
        "(docs/data.md makes one of pairs)"
    )


@pytest.mark.parametrize("identifier", ["a\tb", "a\nb", "a\r"])
def test_id_that_judgments_cannot_hold_is_not_written(tmp_path: Path, identifier: str) -> None:
    with pytest.raises(DataError, match="holds a tab or a line end"):
        write_beir(tmp_path, [Document(identifier, "t")], [Query("q", "?")], {"test": {"q": {identifier: 1}}})


@pytest.mark.parametrize(
    ("documents", "queries", "expected"),
    [([Document("", "t")], [], "document 1: "), ([], [Query("q", "?"), Query("", "?")], "query 2: ")],
    ids=["document", "query"],
)
def test_empty_id_is_not_written(
    tmp_path: Path, documents: list[Document], queries: list[Query], expected: str
) -> None:
    with pytest.raises(DataError, match=f'^{expected}"id" is ""; an id holds at least one character'):
        write_beir(tmp_path, documents, queries, {})


@pytest.mark.parametrize(
    ("name", "split", "documents", "judgments"),
    [("medquad", "dev", 15_786, 1228), ("cranfield", "test", 1400, 1612), ("xquad-en", "test", 240, 238)],
)
def test_collections_of_others(
    shared_data: Path, name: str, split: str, documents: int, judgments: int
) -> None:
    collection: Collection = read_beir(shared_data / name, split)
    counts: Mapping[str, Any] = collection.report.read
    assert (counts["documents"], counts["judgments"]) == (documents, judgments)
