"""Versions and their pointer: what a crash, a second writer and a damaged file do to an index."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from indexes.encoded import build

from sourcier.encodings import DenseVectors
from sourcier.indexes import DamagedIndex, IndexBusy, create, open_index, open_version
from sourcier.types import SourcierError

ONE = DenseVectors(np.array([[1.0, 0.0]], dtype=np.float32))


def ids(folder: Path) -> list[str]:
    return open_index(folder).search(ONE, 10).ids[0].tolist()


def test_a_version_is_visible_only_when_it_is_finished(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    with create("dense", tmp_path) as writer:
        writer.add(["new"], ONE)
        assert ids(tmp_path) == ["old"]
        writer.finish()
    assert ids(tmp_path) == ["new"]


def test_a_reader_keeps_what_it_opened(tmp_path: Path) -> None:
    reader = build("dense", tmp_path, ONE, ids=["old"])
    build("dense", tmp_path, ONE, ids=["new"])
    hits = reader.search(ONE, 1)
    assert (hits.ids.tolist(), hits.version) == ([["old"]], "000001")
    assert open_index(tmp_path).search(ONE, 1).version == "000002"


def test_a_build_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    with pytest.raises(KeyError), create("dense", tmp_path):
        raise KeyError
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["000001"]
    assert ids(tmp_path) == ["old"]


def test_a_killed_build_is_never_visible_and_is_replaced(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    script = """
        import os, signal, sys
        import numpy as np
        from sourcier.encodings import DenseVectors
        from sourcier.indexes import create
        writer = create("dense", sys.argv[1])
        writer.add(["half"], DenseVectors(np.ones((1, 2), dtype=np.float32)))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], env=_environment()
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "versions" / "000002").is_dir()
    assert ids(tmp_path) == ["old"]
    build("dense", tmp_path, ONE, ids=["new"])
    assert (ids(tmp_path), open_version(tmp_path).name) == (["new"], "000002")


def test_what_killed_writers_left_half_written_is_swept_by_the_next_one_alone(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    left = [
        tmp_path / ".CURRENT.4711",
        tmp_path / ".building" / "chunk-000000" / "about.json",
        tmp_path / "models" / ".unfinished" / "weights",
        tmp_path / "building" / ".chunk-000007" / "content.npy",
    ]
    for path in (*left, tmp_path / ".gitignore"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    reader = open_index(tmp_path)
    assert all(path.exists() for path in left)
    with create("dense", tmp_path), pytest.raises(IndexBusy):
        create("dense", tmp_path)
    assert not any(path.exists() for path in left)
    assert (tmp_path / ".gitignore").exists()
    assert reader.search(ONE, 1).ids.tolist() == [["old"]]


def test_a_crash_before_the_pointer_moves_keeps_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("dense", tmp_path, ONE, ids=["old"])
    writer = create("dense", tmp_path)
    writer.add(["new"], ONE)

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("sourcier.indexes.directory.replace_text", fail)
    with pytest.raises(OSError, match="no space"):
        writer.finish()
    assert (tmp_path / "versions" / "000002" / "manifest.json").is_file()
    assert ids(tmp_path) == ["old"]


def test_a_first_build_that_is_killed_right_before_its_commit_did_not_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is there, and yet it is no index whose pointer was lost."""
    child = os.fork()
    if not child:
        monkeypatch.setattr(
            "sourcier.indexes.directory.replace_text", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        build("dense", tmp_path, ONE, ids=["half"])
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert (tmp_path / "versions" / "000001" / "manifest.json").is_file()
    with pytest.raises(SourcierError, match="no index here: a build did not finish"):
        open_index(tmp_path)
    build("dense", tmp_path, ONE, ids=["new"])
    assert (ids(tmp_path), open_version(tmp_path).name) == (["new"], "000001")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, OSError])
def test_an_interrupt_after_the_pointer_moved_keeps_the_new_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    build("dense", tmp_path, ONE, ids=["old"])

    def move_and_fail(path: Path, text: str) -> None:
        path.write_text(text)
        raise interrupt

    monkeypatch.setattr("sourcier.indexes.directory.replace_text", move_and_fail)
    with create("dense", tmp_path) as writer:
        writer.add(["new"], ONE)
        with pytest.raises(interrupt):
            writer.finish()
    assert (ids(tmp_path), (tmp_path / "building").exists()) == (["new"], False)


def test_a_child_that_was_forked_while_writing_does_not_keep_the_lock(tmp_path: Path) -> None:
    with create("dense", tmp_path) as writer:
        writer.add(["old"], ONE)
        resting, wake = os.pipe()
        child = os.fork()
        if not child:
            os.close(wake)
            os.read(resting, 1)
            os._exit(0)
        writer.finish()
    try:
        assert ids(tmp_path) == ["old"]
        build("dense", tmp_path, ONE, ids=["new"])
    finally:
        os.close(wake)
        os.close(resting)
        os.waitpid(child, 0)
    assert ids(tmp_path) == ["new"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with create("dense", tmp_path), pytest.raises(IndexBusy, match="another process"):
        create("dense", tmp_path)


def test_the_next_writer_may_write_when_the_first_is_done(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE, ids=["a"])
    build("dense", tmp_path, ONE, ids=["b"])
    assert ids(tmp_path) == ["b"]


def test_the_manifest_tells_what_the_version_is(tmp_path: Path) -> None:
    with create("dense", tmp_path, family="dense") as writer:
        writer.add(["a", "b"], ONE, content=np.array([True, False]))
        manifest = writer.finish().manifest
    assert (manifest.kind, manifest.family, manifest.dimensions) == ("dense", "dense", 2)
    (segment,) = manifest.segments
    assert (segment.documents, segment.empty, segment.deleted) == (2, 1, 0)
    assert set(manifest.files) == {
        f"segments/000001/{name}"
        for name in (
            "kind/vectors.npy",
            "empty.npy",
            "ids.utf8",
            "ids.offsets.npy",
            "ids.hashes.npy",
            "ids.rows.npy",
        )
    }


def test_the_same_input_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build("dense", tmp_path / name, ONE)
    assert open_version(tmp_path / "a").manifest == open_version(tmp_path / "b").manifest


@pytest.mark.parametrize(
    "name", ["kind/vectors.npy", "ids.utf8", "ids.offsets.npy", "ids.hashes.npy", "empty.npy"]
)
def test_a_file_that_is_cut_short_is_named_at_open(tmp_path: Path, name: str) -> None:
    build("dense", tmp_path, ONE)
    path = tmp_path / "segments" / "000001" / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DamagedIndex, match=name):
        open_index(tmp_path)


def test_a_missing_file_is_named_at_open(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE)
    (tmp_path / "segments" / "000001" / "kind" / "vectors.npy").unlink()
    with pytest.raises(DamagedIndex, match=r"vectors\.npy: this file of the index is missing"):
        open_index(tmp_path)


def test_a_flipped_byte_is_found_by_the_check(tmp_path: Path) -> None:
    version = build("dense", tmp_path, ONE)._version
    version.check_contents()
    path = tmp_path / "segments" / "000001" / "kind" / "vectors.npy"
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    with pytest.raises(DamagedIndex, match=r"vectors\.npy: its contents changed"):
        version.check_contents()


@pytest.mark.parametrize("text", ["", "latest", "../../etc"])
def test_a_pointer_that_names_no_version_is_refused(tmp_path: Path, text: str) -> None:
    build("dense", tmp_path, ONE)
    (tmp_path / "CURRENT").write_text(text)
    with pytest.raises(DamagedIndex, match="CURRENT"):
        open_index(tmp_path)


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE)
    (tmp_path / "versions" / "000001" / "manifest.json").write_text('{"format": ')
    with pytest.raises(DamagedIndex, match=r"manifest\.json"):
        open_index(tmp_path)


def test_a_manifest_that_was_changed_is_named(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE)
    path = tmp_path / "versions" / "000001" / "manifest.json"
    path.write_text(path.read_text().replace('"documents": 1', '"documents": 2'))
    with pytest.raises(DamagedIndex, match=r"manifest\.json: is not what CURRENT vouches for"):
        open_index(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    build("dense", tmp_path, ONE)
    path = tmp_path / "versions" / "000001" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    (tmp_path / "CURRENT").write_text(f"000001 {hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    with pytest.raises(SourcierError, match="index format 3"):
        open_index(tmp_path)


def test_the_format_before_is_told(tmp_path: Path) -> None:
    """Its pointer was the name of a version alone."""
    build("dense", tmp_path, ONE)
    (tmp_path / "CURRENT").write_text("000001\n")
    with pytest.raises(SourcierError, match="has format 1"):
        open_index(tmp_path)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="no index here"):
        open_index(tmp_path / "nothing")


def test_an_index_never_goes_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SourcierError, match="holds other files"):
        create("dense", tmp_path)


def test_an_unknown_kind_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="did you mean 'dense'"):
        create("dens", tmp_path)


def test_the_module_of_indexes_brings_no_library_of_a_kind() -> None:
    script = (
        "import sys, sourcier.indexes; print([m for m in ('numba', 'bm25s', 'torch') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], env=_environment(), capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


def _environment() -> dict[str, str]:
    source = Path(__file__).resolve().parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source)}
