"""A disk that is full: an error that names the file, nothing lost, and the same command works once there is room."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes.every_kind import add, build, encode, every_kind, make_small

from sourcier.encodings import DenseVectors
from sourcier.indexes import NotWritten, create, open_index, open_version
from sourcier.indexes.changes import compact, delete

#: How many amounts of room each write is tried with.
TRIALS = 5


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    # Lazily: maps of its files are closed when Python gets to it.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@every_kind
def test_a_full_disk_costs_no_version(
    kind: str, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of an index's life, with any room from none to more than enough."""
    make_small(kind, monkeypatch)
    root = disk / "index"
    root.mkdir()
    writes: dict[str, Callable[[], Any]] = {
        "build": lambda: build(kind, root),
        "delete": lambda: delete(root, ["d7"]),
        "add": lambda: add(kind, root),
        "compact": lambda: compact(root),
    }
    for what, write in writes.items():
        saved = shutil.copytree(root, tmp_path / what)
        before, free = _standing(kind, root), _free(disk)
        write()
        after, growth = _standing(kind, root), free - _free(disk)
        assert after != before
        rooms, refused = np.linspace(0, 2.5 * growth, TRIALS).astype(int), 0
        for room in rooms:
            shutil.rmtree(root)
            shutil.copytree(saved, root)
            _fill(disk, int(room))
            error = _refused(write)
            if error is not None:
                assert re.match(rf"{root}\S*: cannot be written \(.*[Nn]o space left", error)
                assert _standing(kind, root) == before, f"{what} with room for {room} bytes"
                refused += 1
            (disk / "filler").unlink()
            if _standing(kind, root) == before:
                write()
            assert _standing(kind, root) == after
            open_version(root).check_contents()
        assert refused >= np.count_nonzero(rooms < growth)


def test_chunks_that_fitted_are_gone_on_with(disk: Path) -> None:
    vectors = DenseVectors(np.ones((1000, 8), dtype=np.float32))
    _fill(disk, 100_000)
    with create("dense", disk / "index", plan={}) as writer:
        writer.keep_chunks = True
        writer.add([f"0-{row}" for row in range(1000)], vectors)
        with pytest.raises(NotWritten, match="No space left"):
            writer.add([f"1-{row}" for row in range(1000)], vectors)
    (disk / "filler").unlink()
    with create("dense", disk / "index", plan={}, resume=True) as writer:
        taken = [writer.take([f"{chunk}-{row}" for row in range(1000)]) for chunk in range(2)]
    assert taken == [True, False]


@every_kind
def test_a_limit_on_the_size_of_files_is_an_error_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be tried without a file system of one's own."""
    make_small(kind, monkeypatch)
    with _largest_file(2**10), pytest.raises(NotWritten, match=rf"^{tmp_path}.*: cannot be written \("):
        build(kind, tmp_path)
    assert not any(path for path in (tmp_path / "versions").iterdir())
    build(kind, tmp_path)
    open_version(tmp_path).check_contents()


def _refused(write: Callable[[], Any]) -> str | None:
    """What a write that does not fit says; None where it fits."""
    try:
        write()
    except NotWritten as error:
        return str(error)
    return None


def _standing(kind: str, root: Path) -> Any:
    """All that a reader can see of an index, and the folders that it has."""
    folders = sorted(str(path.relative_to(root)) for path in root.glob("*s/*"))
    if not (root / "CURRENT").exists():
        return folders
    hits = open_index(root).search(encode(kind, 5, seed=2), 20, where="n < 200")
    return folders, hits.version, hits.ids.tolist(), hits.scores.tolist()


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def _fill(disk: Path, room: int) -> None:
    """Leave so many bytes of a disk, in whole pages."""
    (disk / "filler").write_bytes(bytes(max(0, _free(disk) - room)))


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
