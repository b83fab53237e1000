"""Readers of versions that are replaced and collected: they go on, or open the version after it, whole."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from indexes.every_kind import COUNT, build, build_with_every_file, encode, every_kind, make_small

from sourcier.indexes import DamagedIndex, Version, collect_garbage, open_index
from sourcier.indexes.index import Index
from sourcier.indexes.version import reading
from sourcier.retrieval.retriever import Retriever
from sourcier.types import SourcierError


def answers(kind: str, index: Index) -> Any:
    """What a reader can be asked for: hits, with filters on all kinds of fields, and documents."""
    asked = encode(kind, 3, seed=2)
    found = [
        index.search(asked, 20, where=where)
        for where in (None, "n >= 100", f"n < {COUNT // 20}", "id != 'd9'", "title = ''")
    ]
    documents = index.documents
    assert documents is not None
    return (
        [(hits.version, hits.ids.tolist(), hits.scores.tolist()) for hits in found],
        [found[0].passages.tolist()],
        documents.get(["d3", "d299"]),
        len(list(documents)),
    )


@every_kind
def test_a_reader_of_a_collected_version_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(kind, monkeypatch)
    build_with_every_file(kind, tmp_path)
    expected = answers(kind, open_index(tmp_path))
    reader = open_index(tmp_path)
    build(kind, tmp_path)
    assert collect_garbage(tmp_path) > 0
    assert not (tmp_path / "segments" / "000001").exists()
    assert answers(kind, reader) == expected


@every_kind
def test_a_version_that_is_collected_while_it_is_opened_gives_way_to_the_next(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(kind, monkeypatch)
    old = build_with_every_file(kind, tmp_path)
    opened = []

    def open_slowly(version: Version) -> Index:
        opened.append(version.name)
        if len(opened) == 1:
            build(kind, tmp_path)
            collect_garbage(tmp_path)
        return open_index(version)

    assert reading(tmp_path, open_slowly).version == "000004"
    assert opened == [old.name, "000004"]


@every_kind
def test_a_version_of_which_any_file_is_gone_is_not_opened_without_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes were checked, and then another process began to collect."""
    make_small(kind, monkeypatch)
    version = build_with_every_file(kind, tmp_path)
    opened = [name for name in version.manifest.files if _opened_without(tmp_path, tmp_path / name)]
    # Search needs none of these: the model comes with the first text, the words of BM25 are for compaction.
    unneeded = ("models/.*", ".*/kind/words.npy", ".*/kind/vocabulary.txt", ".*/empty.npy")
    assert [name for name in opened if not re.fullmatch("|".join(unneeded), name)] == []


def _opened_without(root: Path, path: Path) -> bool:
    """Whether an index opens though one of its files vanished meanwhile; the error names the file otherwise."""
    aside = root / "models" / "aside"

    def open_late(version: Version) -> Index:
        path.rename(aside)
        return open_index(version)

    try:
        reading(root, open_late)
    except DamagedIndex as error:
        assert str(error).startswith(f"{path}: "), error  # noqa: PT017
        return False
    finally:
        aside.rename(path)
    return True


def test_the_model_of_a_collected_version_is_told_to_be_gone(tmp_path: Path) -> None:
    build("dense", tmp_path)
    with Retriever.open(tmp_path) as reader:
        shutil.rmtree(tmp_path / "models")
        with pytest.raises(SourcierError, match=r"the model of this version is gone.*open the index again"):
            reader.search(["water"])
