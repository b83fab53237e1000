"""`sourcier index …` and what `search` does between an index and an answer, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run, write_lines

DOCUMENTS = [
    {"_id": "well", "title": "", "text": "water from a well in the ground", "lang": "en", "year": 2019},
    {"_id": "rain", "title": "", "text": "rain water falls from clouds", "lang": "en", "year": 2021},
    {"_id": "brunnen", "title": "", "text": "water aus dem brunnen", "lang": "de", "year": 2020},
    {"_id": "sort", "title": "", "text": "sort an array of numbers"},
]


@pytest.fixture
def index(run: Run, tmp_path: Path) -> Path:
    corpus = write_lines(tmp_path / "corpus.jsonl", DOCUMENTS)
    ended = run("index", "build", "--kind", "bm25", "--data", corpus, "--output", tmp_path / "index")
    assert ended.status == 0, ended.err
    return tmp_path / "index"


def found(run: Run, index: Path, query: str, *options: object) -> list[str]:
    return [hit["id"] for hit in run("search", index, query, "--json", *options).json["hits"]]


def test_adding_and_replacing(run: Run, index: Path, tmp_path: Path) -> None:
    more = write_lines(
        tmp_path / "more.jsonl",
        [{"_id": "rain", "text": "snow in winter"}, {"_id": "spring", "text": "water of a spring"}],
    )
    added = run("index", "add", index, "--data", more, "--json").json
    assert (added["new"], added["replaced"], added["version"]) == (1, 1, "000002")
    assert found(run, index, "snow", "-k", 1) == ["rain"]
    assert set(found(run, index, "water", "-k", 3)) == {"well", "brunnen", "spring"}


def test_deleting_tells_what_is_not_there(run: Run, index: Path) -> None:
    ended = run("index", "delete", index, "well", "nope", "--json")
    assert (ended.json["deleted"], ended.json["unknown"]) == (1, ["nope"])
    assert "well" not in found(run, index, "water", "-k", 10)


def test_deleting_ids_from_a_file(run: Run, index: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("well\nrain\n")
    ended = run("index", "delete", index, "--ids-from", tmp_path / "ids.txt")
    assert ended.out.startswith("2 documents deleted; version 000002")
    assert run("index", "info", index, "--json").json["counts"]["documents"] == 2


def test_deleting_nothing_is_wrong_use(run: Run, index: Path) -> None:
    ended = run("index", "delete", index)
    assert (ended.status, ended.fault) == (2, "index delete needs ids, or --ids-from FILE")


def test_compacting_and_collecting_leave_one_segment(run: Run, index: Path) -> None:
    run("index", "delete", index, "well")
    info = run("index", "compact", index, "--json").json
    assert (info["segments"], info["counts"]["documents"], info["counts"]["deleted"]) == (1, 3, 0)
    assert run("index", "gc", index, "--json").json["freed"] > 0
    assert [folder.name for folder in (index / "segments").iterdir()] == ["000003"]
    assert set(found(run, index, "water", "-k", 2)) == {"rain", "brunnen"}


@pytest.mark.parametrize(
    "name", ["manifest.json", "CURRENT", "ids.utf8", "documents.arrow", "metadata.arrow", "words.npy"]
)
def test_a_flipped_byte_is_found_in_any_file(run: Run, index: Path, name: str) -> None:
    assert "all as they were written" in run("index", "check", index).out
    (path,) = index.rglob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    ended = run("index", "check", index)
    assert ended.status == 1
    assert name in ended.fault or "manifest.json" in ended.fault


def test_a_filter(run: Run, index: Path) -> None:
    assert sorted(found(run, index, "water", "--where", "lang = 'de' or year > 2020")) == ["brunnen", "rain"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lnag = 'de'", "did you mean 'lang'"),
        ("lang = ", "at character 8"),
        ("year = 'x'", "year holds numbers"),
    ],
)
def test_a_filter_that_is_none_is_one_line(run: Run, index: Path, where: str, message: str) -> None:
    ended = run("search", index, "water", "--where", where)
    assert (ended.status, message in ended.fault) == (1, True)


def test_two_indexes_fused(run: Run, index: Path, tmp_path: Path) -> None:
    other = write_lines(tmp_path / "other.jsonl", [{"_id": "lake", "text": "water in a lake"}])
    run("index", "build", "--kind", "bm25", "--data", other, "--output", tmp_path / "lakes")
    hits = found(run, index, "water", "--fuse", tmp_path / "lakes", "--weights", "1,5", "-k", 2)
    assert hits[0] == "lake"


def test_weights_need_something_to_weigh(run: Run, index: Path, tmp_path: Path) -> None:
    assert "--weights needs --fuse" in run("search", index, "water", "--weights", "1,2").err
    ended = run("search", index, "water", "--fuse", index, "--weights", "1")
    assert (ended.status, "give one for each" in ended.err) == (2, True)


def test_an_unknown_setting_of_a_kind(run: Run, tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.jsonl", DOCUMENTS)
    ended = run(
        "index", "build", "--kind", "bm25", "--data", corpus, "--output", tmp_path / "x", "--set", "bits=2"
    )
    assert ended.status == 1
    assert "bits" in ended.err


def test_candidates_scored_again_by_a_model(run: Run, index: Path, tiny_bert: Path, tmp_path: Path) -> None:
    from sourcier.models.colbert import ColBERT

    ColBERT.from_base(tiny_bert).save_pretrained(tmp_path / "model")
    first = found(run, index, "water", "-k", 3)
    again = found(run, index, "water", "--rerank", tmp_path / "model", "--candidates", 3, "-k", 3)
    assert sorted(again) == sorted(first)
