"""The documentation corpus: packages laid out here as an installer does, and what becomes of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sourcier.data.collections import read_beir
from sourcier.data.docstrings import says
from sourcier.data.pydocs import write_python_corpus
from sourcier.types import SourcierError

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _spelt(number: int) -> str:
    return " ".join(NUMBERS[int(digit)] for digit in str(number))


def _function(name: str, number: int, summary: str = "") -> str:
    summary = summary or f"Compute thing {_spelt(number)} of the pack {name}."
    text = (
        f"It is thing {_spelt(number)} in {name}, and there are enough words here for it to count as a text."
    )
    return f'def f{number}(x):\n    """{summary}\n\n    {text}\n    """\n\n'


def _install(site: Path, name: str, files: Mapping[str, str | bytes], *, dist: str = "") -> None:
    for path, source in files.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.encode() if isinstance(source, str) else source)
    info = site / f"{dist or name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist or name}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text(f"{name}\n")
    listed = [*files, f"{info.name}/METADATA", "../../bin/script.py"]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in listed))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that is the only one that Python sees."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def _packs(site: Path, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        source = "".join(_function(name, number) for number in range(size))
        _install(site, name, {f"{name}/__init__.py": "", f"{name}/mod.py": source})


def _ids(folder: Path) -> dict[str, set[str]]:
    """The documents that each split asks for."""
    return {
        split: {name for graded in read_beir(folder, split).qrels.values() for name in graded}
        for split in ("train", "dev", "test")
    }


def test_folder_holds_documents_queries_answers_and_judgments(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 2, "bb": 2, "cc": 2})
    write_python_corpus(tmp_path / "out")
    collection = read_beir(tmp_path / "out", "train")
    (query, *_), (document, *_) = collection.queries.values(), collection.corpus
    assert len(collection.corpus) == 6
    assert query.answers == tuple(collection.qrels[query.id])
    assert document.title == document.id == "aa.mod.f0"
    assert document.text.startswith("def f0(x)\n\nIt is thing zero in aa")


def test_same_packages_give_the_same_bytes(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 20, "bb": 12, "cc": 7, "dd": 3})
    for name in ("one", "two"):
        write_python_corpus(tmp_path / name, limit=25)
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_splits_share_no_package_and_hold_all(site: Path, tmp_path: Path) -> None:
    _packs(site, {f"pack{number}": 10 for number in range(10)})
    write_python_corpus(tmp_path / "out")
    ids = _ids(tmp_path / "out")
    packages = {split: {name.split(".")[0] for name in names} for split, names in ids.items()}
    assert {split: len(names) for split, names in ids.items()} == {"train": 70, "dev": 10, "test": 20}
    assert len(set.union(*packages.values())) == sum(map(len, packages.values())) == 10


@pytest.mark.parametrize("sizes", [{"aa": 9, "bb": 9, "cc": 9}, {"aa": 100, "bb": 1, "cc": 1}])
def test_three_packages_give_three_splits(site: Path, tmp_path: Path, sizes: Mapping[str, int]) -> None:
    _packs(site, sizes)
    splits = write_python_corpus(tmp_path / "out").splits
    assert {split: len(packages) for split, packages in splits.items()} == {"train": 1, "dev": 1, "test": 1}


def test_two_packages_are_dealt_by_subpackage(site: Path, tmp_path: Path) -> None:
    for name, modules in {"aa": ("m", "n"), "bb": ("m", "n")}.items():
        files = {f"{name}/{module}.py": _function(f"{name} {module}", 1) for module in modules}
        _install(site, name, files)
    splits = write_python_corpus(tmp_path / "out").splits
    assert sorted(unit for units in splits.values() for unit in units) == ["aa.m", "aa.n", "bb.m", "bb.n"]
    assert all(splits.values())


def test_too_little_for_three_splits_is_an_error(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 9, "bb": 9})
    with pytest.raises(SourcierError, match=r"documentation of .*: is too little for three splits; "):
        write_python_corpus(tmp_path / "out")


def test_named_packages_go_where_they_are_told(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 3, "bb": 3, "cc": 3, "dd": 3})
    splits = write_python_corpus(tmp_path / "out", dev=["bb"], test=["cc"]).splits
    assert splits == {"train": {"aa": 3, "dd": 3}, "dev": {"bb": 3}, "test": {"cc": 3}}


def test_package_for_dev_and_test_is_an_error(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 3, "bb": 3})
    with pytest.raises(SourcierError, match="package 'aa': is named for dev and for test"):
        write_python_corpus(tmp_path / "out", dev=["aa"], test=["aa"])


def test_packages_go_by_the_names_of_distribution_and_import(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 3, "bb": 3, "other": 3})
    _install(site, "yy", {"yy/m.py": _function("yy", 1)}, dist="Py_YY")
    splits = write_python_corpus(tmp_path / "out", ["aa", "bb", "yy"]).splits
    assert sorted(name for packages in splits.values() for name in packages) == ["Py_YY", "aa", "bb"]


def test_unknown_package_names_the_nearest(site: Path, tmp_path: Path) -> None:
    _packs(site, {"numbers_pack": 1})
    with pytest.raises(SourcierError, match="unknown package 'number_pack': did you mean 'numbers_pack'"):
        write_python_corpus(tmp_path / "out", ["number_pack"])


def test_limit_is_spread_evenly(site: Path, tmp_path: Path) -> None:
    _packs(site, {"giant": 500, "aa": 30, "bb": 30, "small": 5})
    splits = write_python_corpus(tmp_path / "out", limit=65).splits
    counts = {name: count for packages in splits.values() for name, count in packages.items()}
    assert counts == {"giant": 20, "aa": 20, "bb": 20, "small": 5}


def test_tests_vendored_and_private_code_are_left_out(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 1, "bb": 1, "cc": 1})
    places = (
        "tests",
        "test",
        "_vendor",
        "vendored",
        "third_party",
        "extern",
        "externals",
        "_private",
        "bad-name",
    )
    files = {f"dd/{place}/m.py": _function(place, number) for number, place in enumerate(places)}
    files |= {
        f"dd/{file}.py": _function(file, 50)
        for file in ("test_a", "a_test", "conftest", "_hidden", "__main__")
    }
    _install(site, "dd", files | {"dd/good.py": _function("good", 99)})
    write_python_corpus(tmp_path / "out")
    corpus = read_beir(tmp_path / "out", "train").corpus
    assert [document.id for document in corpus if document.id.startswith("dd")] == ["dd.good.f99"]


def test_what_is_said_of_two_things_is_left_out_of_both(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 2, "bb": 2, "cc": 2})
    for number, name in enumerate(("dd", "ee")):
        _install(site, name, {f"{name}/m.py": _function(name, number, "Return the same thing, once more.")})
    written = write_python_corpus(tmp_path / "out")
    assert written.left_out == {"same summary or text twice": 2}
    assert sum(map(len, _ids(tmp_path / "out").values())) == 6


def test_second_definition_of_a_name_is_left_out(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 1, "bb": 1, "cc": 1})
    _install(site, "dd", {"dd/m.py": _function("dd", 1) + _function("again", 1)})
    written = write_python_corpus(tmp_path / "out")
    assert (sum(map(len, _ids(tmp_path / "out").values())), dict(written.left_out)) == (
        4,
        {"second definition of a name": 1},
    )


def test_sources_that_cannot_be_used_are_counted(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 1, "bb": 1, "cc": 1})
    _install(site, "dd", {"dd/broken.py": "def f(:", "dd/latin.py": b"x = '\xe9'", "dd/gone.py": ""})
    (site / "dd" / "gone.py").unlink()
    written = write_python_corpus(tmp_path / "out")
    assert written.left_out == {"source that does not parse": 2, "source that cannot be read": 1}


def test_distribution_without_metadata_is_passed_over(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 1, "bb": 1, "cc": 1})
    (site / "left_behind-1.0.dist-info").mkdir()
    write_python_corpus(tmp_path / "out", ["aa", "bb", "cc"])
    assert sum(map(len, _ids(tmp_path / "out").values())) == 3


def test_no_package_is_imported(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 1, "bb": 1})
    _install(site, "dd", {"dd/__init__.py": "raise RuntimeError('imported')\n" + _function("dd", 1)})
    assert "dd" in str(write_python_corpus(tmp_path / "out").splits)


def test_report_is_one_line(site: Path, tmp_path: Path) -> None:
    _packs(site, {"aa": 2, "bb": 1, "cc": 1})
    out = tmp_path / "out"
    written = str(write_python_corpus(out, test=["bb"], dev=["cc"]))
    assert written == f"4 documents in {out}: train 2 (aa); dev 1 (cc); test 1 (bb); left out: nothing"


def test_no_summary_stands_in_its_own_document_of_what_is_installed_here(tmp_path: Path) -> None:
    write_python_corpus(tmp_path, ["hypothesis", "pytest", "numpy", "jsonargparse"], limit=120)
    for split in ("train", "dev", "test"):
        collection = read_beir(tmp_path, split)
        documents = collection.corpus.load()
        for name, query in collection.queries.items():
            (answer,) = collection.qrels[name]
            assert not says(documents[answer].content, query.text), answer
