"""The end of a build: which version its chunks became, noted beside them before it is committed.

A kill can come between the commit and the removal of the chunks. Without the note they would pass for those of a build
that has yet to go on; and a first version that was written and not committed for one whose pointer was lost.
"""

from __future__ import annotations

import json
from pathlib import Path

from sourcier.config import write_json
from sourcier.indexes.disk import sync

FILE = "finished"


def note(folder: Path, version: int) -> None:
    """Note in the folder of the chunks that they are about to become a version."""
    write_json(folder / FILE, {"version": version})
    sync(folder)


def noted(folder: Path) -> int | None:
    """The version that the chunks of a folder became, or were about to; None where the build had not come so far."""
    try:
        version = json.loads((folder / FILE).read_text(encoding="utf-8"))["version"]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return version if isinstance(version, int) else None


def settle(folder: Path, current: int) -> None:
    """Remove the note where the build was killed before its commit: its chunks are those of an unfinished one again.

    To be done before another version is made, since that gets the number that was noted.
    """
    version = noted(folder)
    if version is None or version > current:
        (folder / FILE).unlink(missing_ok=True)
