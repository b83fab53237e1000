"""Each file of an index of each kind, cut short or changed: named at open, or found by the check."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from indexes.every_kind import add, build, build_with_every_file, every_kind, make_small

from sourcier.cli import main
from sourcier.indexes import DamagedIndex, Version, open_index, open_version
from sourcier.indexes.changes import compact, delete
from sourcier.types import SourcierError


def committed(version: Version) -> list[Path]:
    """What a version consists of, with what vouches for it."""
    own = [version.root / "CURRENT", version.folder / "manifest.json"]
    return [*own, *(version.root / name for name in version.manifest.files)]


@every_kind
def test_every_file_that_is_cut_short_is_named_at_open(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(kind, monkeypatch)
    for path in committed(build_with_every_file(kind, tmp_path)):
        contents = path.read_bytes()
        for size in {0, len(contents) // 2, len(contents) - 1} - {len(contents)}:
            os.truncate(path, size)
            with pytest.raises(SourcierError, match=rf"^{path}: "):
                open_index(tmp_path)
            path.write_bytes(contents)
    assert len(open_index(tmp_path)) == 599


@every_kind
def test_a_flipped_byte_of_any_file_is_found_by_the_check(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(kind, monkeypatch)
    version, random = build_with_every_file(kind, tmp_path), np.random.default_rng(0)
    version.check_contents()
    for path in (path for path in committed(version) if path.stat().st_size):
        contents = path.read_bytes()
        place = int(random.integers(len(contents)))
        path.write_bytes(contents[:place] + bytes([contents[place] ^ 0x10]) + contents[place + 1 :])
        # A pointer that changed may look like another's manifest, or name another version's.
        named = tmp_path if path.name in ("CURRENT", "manifest.json") else f"{path}: its contents changed"
        with pytest.raises(SourcierError, match=rf"^{named}"):
            open_version(tmp_path).check_contents()
        path.write_bytes(contents)


def test_every_byte_of_the_pointer_counts(tmp_path: Path) -> None:
    build("dense", tmp_path)
    pointer = tmp_path / "CURRENT"
    contents = pointer.read_bytes()
    for place, byte in enumerate(contents):
        for flipped in (byte ^ 1, byte ^ 0x10, byte ^ 0x80):
            pointer.write_bytes(contents[:place] + bytes([flipped]) + contents[place + 1 :])
            with pytest.raises(SourcierError):
                open_index(tmp_path)


@pytest.mark.parametrize("change", [add, delete, compact])
def test_a_version_without_one_of_its_files_is_not_changed(tmp_path: Path, change: object) -> None:
    """A list of deleted documents, say, must not be taken for none."""
    version = build_with_every_file("dense", tmp_path)
    (path,) = version.folder.glob("deleted-*.npy")
    path.unlink()
    arguments = {add: ("dense", tmp_path), delete: (tmp_path, ["d1"]), compact: (tmp_path,)}
    with pytest.raises(DamagedIndex, match=rf"^{path}: this file of the index is missing"):
        change(*arguments[change])  # type: ignore[operator, index]
    assert (tmp_path / "CURRENT").read_text().startswith(f"{version.name} ")


def test_the_command_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = build("dense", tmp_path)
    assert main(["index", "check", str(tmp_path)]) == 0
    path = version.root / "segments" / "000001" / "ids.utf8"
    path.write_bytes(path.read_bytes().replace(b"d7", b"d8", 1))
    capsys.readouterr()
    assert main(["index", "check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"sourcier: {path}: its contents changed: ")
