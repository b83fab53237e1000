"""Where a command is to write: looked at before its work begins, so that hours are not lost to a slip in a path."""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal

from sourcier.cli.command import is_main
from sourcier.types import SourcierError

Kind = Literal["file", "folder"]


def check_writable(flag: str, path: str, kind: Kind) -> None:
    """Refuse a place where a file or folder of that kind cannot come to be; `flag` is what it was given by.

    Parents that are missing are no fault, since every command makes them. Of the processes of a launcher one writes.
    """
    if not is_main():
        return
    place = Path(path)
    try:
        _check_kind(flag, path, kind)
        nearest = place if kind == "folder" and place.exists() else place.parent
        while not nearest.exists():
            nearest = nearest.parent
        if not nearest.is_dir():
            raise SourcierError(f"{flag} {path}: {nearest} is a file: choose another place")
        # What permissions say is not the whole of it (file systems that are read-only, names that are too long).
        with NamedTemporaryFile(prefix=f".{place.name}.", suffix=".part", dir=nearest):
            pass
    except OSError as error:
        raise SourcierError(
            f"{flag} {path}: cannot be written ({error.strerror}): check the path, its permissions and the disk"
        ) from error


def _check_kind(flag: str, path: str, kind: Kind) -> None:
    place = Path(path)
    if not path:
        raise SourcierError(f"{flag} is empty: name a {kind}")
    if kind == "folder" and place.exists() and not place.is_dir():
        raise SourcierError(f"{flag} {path}: is a file: name a folder")
    if kind == "file" and (place.is_dir() or path.endswith("/")):
        raise SourcierError(f"{flag} {path}: is a folder: name a file")
    if kind == "file" and place.exists() and not place.is_file():
        raise SourcierError(f"{flag} {path}: is neither a file nor a free name: name a file")
