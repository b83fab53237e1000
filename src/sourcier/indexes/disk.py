"""What writing an index asks of a disk: one writer at a time, files that reach it, folders that go as one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sourcier import files
from sourcier.types import NotWritten, SourcierError

LOCK = "writer.lock"


class IndexBusy(SourcierError):
    """Another writer holds the index."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have a write that fails be an error that names the file, which an error of the system does not always do."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else f"no space left? {error}"
        raise not_written(error.filename or path, reason) from error


def not_written(path: object, reason: str) -> NotWritten:
    return NotWritten(
        f"{path}: cannot be written ({reason}): check the path, its permissions and the disk; the index is as it was"
    )


def take_lock(root: Path) -> IO[bytes]:
    """The lock of the one writer of an index, held until it is released."""
    # The system drops the lock with the process that held it, however that ended.
    with writing(root / LOCK):
        lock = (root / LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise IndexBusy(f"{root}: another process is writing to this index: wait until it is done") from error
    return lock


def release(lock: IO[bytes]) -> None:
    """Give the lock of a writer back; nothing where that was done."""
    if not lock.closed:
        # A child that was forked meanwhile has the file open too, and closing ours alone would leave the lock with it.
        fcntl.flock(lock, fcntl.LOCK_UN)
        lock.close()


def sync(path: Path) -> None:
    """Have the contents of a file, or the names in a folder, reach the disk."""
    with writing(path):
        files.sync(path)


def sync_tree(folder: Path) -> None:
    """Have a folder with all that is in it reach the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it; nothing where it is there."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that it is there whole or not at all; `sweep` removes what a kill leaves of it."""
    gone = folder.with_name(f".{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def sweep(folder: Path, *names: str) -> None:
    """Remove what killed writers left in a folder under the names, with a dot before them, of what they made there."""
    for path in (path for name in names for path in folder.glob(f".{name}*")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
