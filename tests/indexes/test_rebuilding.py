"""Building anew over an index that is damaged: it works, and nothing is lost before the new version is committed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from indexes.encoded import build

from sourcier.encodings import DenseVectors
from sourcier.indexes import (
    DamagedIndex,
    Version,
    collect_garbage,
    create,
    extend,
    open_index,
    open_version,
)
from sourcier.indexes.manifest import ModelReference
from sourcier.types import SourcierError

ONE = DenseVectors(np.array([[1.0, 0.0]], dtype=np.float32))


def ids(folder: Path) -> list[str]:
    return open_index(folder).search(ONE, 10).ids[0].tolist()


def files(folder: Path) -> dict[str, bytes]:
    """All files but the one that is locked."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "writer.lock"
    }


def _damage(root: Path, how: str) -> None:
    manifest = root / "versions" / "000001" / "manifest.json"
    match how:
        case "pointer lost":
            (root / "CURRENT").unlink()
        case "pointer of the format before":
            (root / "CURRENT").write_text("000001\n")
        case "pointer names another version":
            (root / "CURRENT").write_text(f"000002 {'0' * 64}\n")
        case "pointer is nonsense":
            (root / "CURRENT").write_bytes(b"\xff\xfe")
        case "manifest lost":
            manifest.unlink()
        case "manifest cut short":
            os.truncate(manifest, 10)
        case "versions lost":
            shutil.rmtree(root / "versions")
        case "vectors cut short":
            os.truncate(root / "segments" / "000001" / "kind" / "vectors.npy", 10)


DAMAGES = [
    "pointer lost",
    "pointer of the format before",
    "pointer names another version",
    "pointer is nonsense",
    "manifest lost",
    "manifest cut short",
    "versions lost",
    "vectors cut short",
]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_build_takes_the_place_of_a_damaged_index(tmp_path: Path, how: str) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    _damage(tmp_path, how)
    with pytest.raises(SourcierError):
        open_index(tmp_path)
    build("dense", tmp_path, ONE, ids=["new"])
    assert ids(tmp_path) == ["new"]
    collect_garbage(tmp_path)
    assert [path.name for path in (tmp_path / "segments").iterdir()] == [open_version(tmp_path).name]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_build_over_a_damaged_index_removes_nothing_before_it_is_committed(
    tmp_path: Path, how: str
) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    _damage(tmp_path, how)
    before = files(tmp_path)
    with create("dense", tmp_path) as writer:
        writer.add(["new"], ONE)
        assert before.items() <= files(tmp_path).items()
    assert files(tmp_path) == before


def test_adding_to_a_damaged_index_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    _damage(tmp_path, "manifest cut short")
    before = files(tmp_path)
    with pytest.raises(DamagedIndex, match=r"manifest\.json"):
        extend(tmp_path)
    assert files(tmp_path) == before


def test_a_pointer_that_was_lost_is_named(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE)
    (tmp_path / "CURRENT").unlink()
    with pytest.raises(DamagedIndex, match="CURRENT: this file of the index is missing"):
        open_index(tmp_path)


def test_what_changes_no_index_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="no index here"):
        extend(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def _keep_model(root: Path, text: str = "weights") -> Version:
    with create("dense", root) as writer:
        writer.add(["a"], ONE)
        folder = writer.directory.keep_model("f" * 64, lambda place: (place / "weights").write_text(text))
        writer.model = ModelReference(name="Own", fingerprint="f" * 64, folder=folder)
        return writer.finish()


def test_a_model_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    first, second = _keep_model(tmp_path), _keep_model(tmp_path, "never written")
    second.check_contents()
    assert first.manifest.model == second.manifest.model


def test_a_model_that_was_damaged_is_written_again_beside_it(tmp_path: Path) -> None:
    """Readers of the version before may have the damaged one open."""
    _keep_model(tmp_path)
    (weights,) = tmp_path.glob("models/*/weights")
    weights.write_text("WEIGHTS")
    _keep_model(tmp_path).check_contents()
    assert {path.read_text() for path in tmp_path.glob("models/*/weights")} == {"weights", "WEIGHTS"}
    collect_garbage(tmp_path)
    assert {path.read_text() for path in tmp_path.glob("models/*/weights")} == {"weights"}


def test_a_model_of_no_version_is_not_trusted(tmp_path: Path) -> None:
    """A build was killed after it had put its model into the index."""
    _keep_model(tmp_path / "straight")
    unfinished = tmp_path / "index" / "models" / ("f" * 16)
    unfinished.mkdir(parents=True)
    (unfinished / "weights").write_text("half")
    (tmp_path / "index" / "versions" / "000001").mkdir(parents=True)
    version = _keep_model(tmp_path / "index")
    version.check_contents()
    assert version.manifest == open_version(tmp_path / "straight").manifest
