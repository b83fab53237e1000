"""Examples: each source of them, each fault in one, and mixtures by weight."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sourcier.data.examples import Example, Examples, read_examples
from sourcier.types import DataError, SourcierError


def _rows(name: str, count: int) -> Examples:
    return Examples(
        [Example(f"{name} query {number}", f"{name} text {number}") for number in range(count)], name=name
    )


def _beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        '{"_id": "a", "title": "A", "text": "one"}\n{"_id": "b", "text": "two"}\n{"_id": "e", "text": " . "}\n'
    )
    (folder / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "same?"}\n{"_id": "q2", "text": "same?"}\n{"_id": "q3", "text": "other?"}\n'
    )
    judgments = ("q1\ta\t2", "q2\tb\t1", "q3\tb\t1", "q3\ta\t0", "q3\te\t1")
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judgments) + "\n")
    return folder


def test_beir_gives_an_example_for_each_judgment_above_zero(tmp_path: Path) -> None:
    examples = Examples.from_beir(_beir(tmp_path))
    assert list(examples) == [Example("same?", "A one"), Example("same?", "two"), Example("other?", "two")]


def test_relevant_texts_are_those_of_all_queries_with_this_text(tmp_path: Path) -> None:
    examples = Examples.from_beir(_beir(tmp_path))
    assert [examples.relevant(row) for row in range(3)] == [{"A one", "two"}, {"A one", "two"}, {"two"}]


def test_relevant_document_without_content_is_noted(tmp_path: Path) -> None:
    assert dict(Examples.from_beir(_beir(tmp_path)).report.noted) == {"relevant document without content": 1}


JSONL = {
    "pair": ('{"query": "q", "positive": "p"}', Example("q", "p")),
    "anchor": ('{"anchor": "q", "positive": "p"}', Example("q", "p")),
    "triple": ('{"query": "q", "positive": "p", "negative": "n"}', Example("q", "p", ("n",))),
    "null": ('{"query": "q", "positive": "p", "negatives": null, "scores": null}', Example("q", "p")),
    "numbered": (
        '{"query": "q", "positive": "p", "negative_10": "z", "negative_2": "b", "negative_1": "a"}',
        Example("q", "p", ("a", "b", "z")),
    ),
    "n-way": (
        '{"query": "q", "positive": "p", "negatives": ["m", "n"], "scores": [3, 2.5, -1], "id": 7}',
        Example("q", "p", ("m", "n"), (3.0, 2.5, -1.0)),
    ),
}


@pytest.mark.parametrize("form", JSONL)
def test_forms_of_jsonl(tmp_path: Path, form: str) -> None:
    line, expected = JSONL[form]
    (tmp_path / "e.jsonl").write_text(line + "\n")
    assert list(Examples.from_jsonl(tmp_path / "e.jsonl")) == [expected]


FAULTS = {
    "no query": ('{"positive": "p"}', 'has no "query"; '),
    "no positive": ('{"query": "q"}', 'has no "positive"; '),
    "null positive": ('{"query": "q", "positive": null}', '"positive" is null; '),
    "empty positive": ('{"query": "q", "positive": " "}', '"positive" is " "; '),
    "number negative": (
        '{"query": "q", "positive": "p", "negatives": ["a", 3]}',
        '"negatives" is ["a", 3]; ',
    ),
    "positive as negative": (
        '{"query": "q", "positive": "p", "negative": "p"}',
        "the positive is also a negative; ",
    ),
    "few scores": (
        '{"query": "q", "positive": "p", "negative": "n", "scores": [1]}',
        '"scores" holds 1 for 2 texts; ',
    ),
    "no number": ('{"query": "q", "positive": "p", "scores": ["1"]}', '"scores" is ["1"]; '),
    "boolean score": ('{"query": "q", "positive": "p", "scores": [true]}', '"scores" is [true]; '),
    "no finite score": ('{"query": "q", "positive": "p", "scores": [1e999]}', '"scores" is [Infinity]; '),
    "huge score": ('{"query": "q", "positive": "p", "scores": [1' + "0" * 400 + "]}", '"scores" is [1000'),
    "misspelt query": ('{"Query": "q", "positive": "p"}', 'has the key "Query"; did you mean "query"?'),
    "misspelt anchor": ('{"anchors": "q", "positive": "p"}', 'has the key "anchors"; did you mean "anchor"?'),
    "misspelt positive": (
        '{"query": "q", "postive": "p"}',
        'has the key "postive"; did you mean "positive"?',
    ),
    "misspelt negatives": (
        '{"query": "q", "positive": "p", "negativs": ["n"]}',
        'has the key "negativs"; did you mean "negatives"?',
    ),
    "misspelt number": (
        '{"query": "q", "positive": "p", "negative_1": "m", "negative2": "n"}',
        'has the key "negative2"; did you mean "negative_2"?',
    ),
    "misspelt scores": (
        '{"query": "q", "positive": "p", "negative": "n", "score": [2, 1]}',
        'has the key "score"; did you mean "scores"?',
    ),
    "other keys": (
        '{"query": "q", "pos": "p"}',
        'has no "positive"; give every line a "positive" (this one has "query", "pos")',
    ),
    "key twice": ('{"query": "q", "positive": "p", "query": "r"}', 'has the key "query" twice; '),
    "half a pair": ('{"query": "q", "positive": "\\udc00"}', '"positive" holds half a surrogate pair'),
}


def test_keys_that_say_something_else_are_read_over(tmp_path: Path) -> None:
    others = '"query_id": 1, "positive_id": "d1", "negative_ids": [], "positives": ["p"], "label": 1, "source": "web"'
    (tmp_path / "e.jsonl").write_text(f'{{"query": "q", "positive": "p", {others}}}\n')
    assert list(Examples.from_jsonl(tmp_path / "e.jsonl")) == [Example("q", "p")]


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_an_example_names_file_line_and_mend(tmp_path: Path, fault: str) -> None:
    line, expected = FAULTS[fault]
    path = tmp_path / "e.jsonl"
    path.write_text(f'{{"query": "q", "positive": "p"}}\n{line}\n')
    with pytest.raises(DataError) as caught:
        Examples.from_jsonl(path)
    assert str(caught.value).startswith(f"{path}:2: {expected}")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_an_example_is_counted_when_lenient(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(f'{FAULTS[fault][0]}\n{{"query": "q", "positive": "p"}}\n')
    examples = Examples.from_jsonl(path, lenient=True)
    assert (list(examples), examples.report.skipped.total()) == ([Example("q", "p")], 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q\tp\n", Example("q", "p")),
        ("q\tp\tn\n", Example("q", "p", ("n",))),
        ("q\tp\tm\tn\n", Example("q", "p", ("m", "n"))),
        ("positive\tanchor\np\tq\n", Example("q", "p")),
    ],
    ids=["pair", "triple", "n-way", "header"],
)
def test_forms_of_tsv(tmp_path: Path, text: str, expected: Example) -> None:
    (tmp_path / "e.tsv").write_text(text)
    assert list(Examples.from_tsv(tmp_path / "e.tsv")) == [expected]


def test_no_usable_example_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"e\.jsonl: holds no example that can be used; "):
        Examples.from_jsonl(tmp_path / "e.jsonl", lenient=True)


def test_dataset_object_saved_dataset_and_dictionary_of_splits_read_the_same(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {
            "anchor": ["q1", "q2"],
            "positive": ["p1", "p2"],
            "negatives": [["n"], []],
            "scores": [[2.0, 1.0], [5.0]],
        }
    )
    table.save_to_disk(tmp_path / "table")
    datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / "splits")
    expected = [Example("q1", "p1", ("n",), (2.0, 1.0)), Example("q2", "p2", (), (5.0,))]
    assert list(Examples.from_dataset(table)) == expected
    assert list(read_examples(str(tmp_path / "table"))) == expected
    assert list(read_examples(str(tmp_path / "splits"))) == expected


def test_fault_in_a_dataset_names_the_row() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"query": ["q1", "q2"], "positive": ["p1", None]})
    with pytest.raises(DataError, match='Dataset: row 2: "positive" is null; '):
        Examples.from_dataset(table)


def test_misspelt_column_of_a_dataset_is_named() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"query": ["q"], "positive": ["p"], "negatve": ["n"]})
    with pytest.raises(DataError, match=r'Dataset: row 1: has the key "negatve"; did you mean "negative"\?'):
        Examples.from_dataset(table)


def test_missing_split_of_a_dataset_is_named() -> None:
    with pytest.raises(DataError, match="dict: holds no split 'train'; there are: dev"):
        Examples.from_dataset({"dev": []})


def test_dataset_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(DataError) as caught:
        Examples.from_dataset(tmp_path / "nothing")
    assert str(caught.value).startswith(f"{tmp_path}/nothing: cannot be loaded as a dataset, split 'train' (")
    assert "\n" not in str(caught.value)


def test_mixture_of_sources_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("q1\tp1\n")
    (tmp_path / "b.jsonl").write_text('{"query": "q2", "positive": "p2"}\n')
    mixed = read_examples(f"{tmp_path}/a.tsv=0.7, {tmp_path}/b.jsonl=0.3")
    assert list(mixed) == [Example("q1", "p1"), Example("q2", "p2")]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("nowhere.jsonl", "nowhere.jsonl: there is no such file or folder; "),
        ("a.tsv=0.5,b.tsv", "'b.tsv' has no weight; "),
        ("a.tsv=half", "the weight 'half' is not a number"),
    ],
)
def test_wrong_data_argument_is_named(tmp_path: Path, monkeypatch: Any, spec: str, expected: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("q1\tp1\n")
    with pytest.raises(SourcierError, match=expected):
        read_examples(spec)


def test_file_of_unknown_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("q,p\n")
    with pytest.raises(DataError, match=r"e\.csv: is of no known kind; "):
        read_examples(str(tmp_path / "e.csv"))


def _sources(mixed: Examples, epoch: int) -> Counter[str]:
    return Counter(mixed[row].query.split()[0] for row in mixed.draw(epoch).tolist())


def test_epoch_of_a_mixture_is_as_long_as_its_sources_and_shared_by_weight() -> None:
    mixed = Examples.mix([(_rows("a", 80), 3.0), (_rows("b", 20), 1.0)])
    assert [_sources(mixed, epoch) for epoch in range(3)] == [{"a": 75, "b": 25}] * 3


def test_shares_round_to_the_whole() -> None:
    mixed = Examples.mix([(_rows("a", 1), 1.0), (_rows("b", 1), 1.0), (_rows("c", 2), 1.0)])
    assert _sources(mixed, 0).total() == 4


def test_large_source_is_drawn_whole_before_any_of_it_comes_again() -> None:
    mixed = Examples.mix([(_rows("a", 10), 0.5), (_rows("b", 40), 0.5)])
    drawn = [row for epoch in range(8) for row in mixed.draw(epoch).tolist() if row >= 10]
    assert (len(drawn), Counter(Counter(drawn).values())) == (200, {5: 40})


def test_draw_depends_on_seed_and_epoch() -> None:
    parts = [(_rows("a", 30), 0.5), (_rows("b", 30), 0.5)]
    draws = [
        Examples.mix(parts, seed).draw(epoch).tolist() for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    assert draws[0] == draws[1]
    assert draws[0] not in (draws[2], draws[3])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weight_must_be_above_zero(weight: float) -> None:
    with pytest.raises(SourcierError, match=r"a: its weight is .*; give a number above 0"):
        Examples.mix([(_rows("a", 2), weight), (_rows("b", 2), 1.0)])


def test_mixture_is_not_mixed_again() -> None:
    mixed = Examples.mix([(_rows("a", 2), 1.0)])
    with pytest.raises(SourcierError, match="a mixture cannot be mixed again"):
        Examples.mix([(mixed, 1.0)])


def test_relevant_texts_are_known_across_sources() -> None:
    one, two = Examples([Example("q", "p1")]), Examples([Example("q", "p2")])
    assert Examples.mix([(one, 1.0), (two, 1.0)]).relevant(0) == {"p1", "p2"}
