"""The model that is kept in an index, damaged later: noticed when it is opened, loaded or checked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tiny import tiny_model

from sourcier.indexes import DamagedIndex, collect_garbage, open_version
from sourcier.retrieval.retriever import Retriever
from sourcier.types import Document

CORPUS = [Document(word, f"{word} in the text") for word in ("water", "ground", "search", "index")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sourcier

    folder = tmp_path_factory.mktemp("kept")
    model = sourcier.Dense.from_base(tiny_model("bert", folder / "base"))
    Retriever.build(model, CORPUS, folder / "index").close()
    return folder / "index"


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "index")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_file_is_named_when_the_model_is_loaded_and_by_the_check(index: Path, name: str) -> None:
    (path,) = index.glob(f"models/*/{name}")
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)
    with (
        Retriever.open(index) as retriever,
        pytest.raises(DamagedIndex, match=rf"^{path}: its contents changed"),
    ):
        retriever.search(["water"])
    with pytest.raises(DamagedIndex, match=rf"^{path}: its contents changed"):
        open_version(index).check_contents()


def test_a_file_that_is_cut_short_is_named_at_open(index: Path) -> None:
    (path,) = index.glob("models/*/model.safetensors")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DamagedIndex, match=rf"^{path}: has \d+ bytes"):
        Retriever.open(index)


def test_a_model_is_loaded_though_the_rest_of_its_version_was_collected(index: Path) -> None:
    """The version after it has the same model."""
    reader = Retriever.open(index)
    with Retriever.open(index) as other:
        Retriever.build(other.encoder, CORPUS[:2], index).close()
    assert collect_garbage(index) > 0
    assert sorted(reader.search(["water"]).ids[0]) == ["ground", "index", "search", "water"]
