"""A version of an index as its readers see it. Where things lie, is told in `directory`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from sourcier.indexes.arrays import map_array
from sourcier.indexes.finished import noted
from sourcier.indexes.manifest import (
    DamagedIndex,
    FileRecord,
    Manifest,
    SegmentRecord,
    read_manifest,
    read_pointer,
    sha256_of,
)
from sourcier.types import SourcierError

T = TypeVar("T")

POINTER, MANIFEST = "CURRENT", "manifest.json"
VERSIONS, SEGMENTS, BUILDING = "versions", "segments", "building"


@dataclass(frozen=True)
class Version:
    """A committed version, as a reader sees it: nothing in it ever changes."""

    root: Path
    name: str
    manifest: Manifest

    @property
    def folder(self) -> Path:
        return self.root / VERSIONS / self.name

    def segment_folder(self, segment: SegmentRecord) -> Path:
        return self.root / SEGMENTS / segment.name

    def file(self, segment: SegmentRecord, name: str) -> Path | None:
        """A file that some segments have, where this one does."""
        # By the manifest: one that is being removed must not look like a segment without it.
        known = f"{SEGMENTS}/{segment.name}/{name}" in self.manifest.files
        return self.segment_folder(segment) / name if known else None

    def deleted(self, segment: SegmentRecord) -> np.ndarray | None:
        """Which rows of a segment are deleted; None where none is. [documents] bool"""
        if not segment.deleted:
            return None
        packed = map_array(self.folder / deleted_file(segment.name))
        return np.unpackbits(packed, count=segment.documents).astype(bool)

    def check_sizes(self, folder: str = "") -> None:
        """Raise `DamagedIndex` for the first file that is missing or has another size than when it was committed.

        `folder`: look at those below it alone, like "models/".
        """
        for path, record in self._files(folder):
            try:
                size = path.stat().st_size
            except FileNotFoundError as error:
                raise missing(path) from error
            if size != record.bytes:
                raise DamagedIndex(
                    f"{path}: has {size} bytes where the index has {record.bytes}: "
                    "restore the file, or build the index again"
                )

    def _files(self, folder: str) -> list[tuple[Path, FileRecord]]:
        return [
            (self.root / name, one) for name, one in self.manifest.files.items() if name.startswith(folder)
        ]

    def check_contents(self, folder: str = "") -> None:
        """Read every file, and raise `DamagedIndex` for the first whose size or checksum differs."""
        self.check_sizes(folder)
        for path, record in self._files(folder):
            if sha256_of(path) != record.sha256:
                raise DamagedIndex(
                    f"{path}: its contents changed: restore the file, or build the index again"
                )


def open_version(root: str | os.PathLike[str]) -> Version:
    """The version that the pointer names, with the sizes of its files checked."""
    return reading(root, lambda version: version)


def reading(root: str | os.PathLike[str], open_parts: Callable[[Version], T]) -> T:
    """What `open_parts` makes of the current version.

    Should the version be replaced and its files removed in the meantime, the one that took its place is opened.
    """
    root = Path(root)
    while True:
        pointer = read_pointer(root / POINTER)
        if pointer is None:
            error = no_index(root)
            if read_pointer(root / POINTER) is None:
                raise error
            continue  # the first version was committed just now
        try:
            version = Version(
                root, pointer.name, read_manifest(root / VERSIONS / pointer.name / MANIFEST, pointer.sha256)
            )
            version.check_sizes()
            return open_parts(version)
        except (DamagedIndex, FileNotFoundError) as error:
            if read_pointer(root / POINTER) != pointer:
                continue
            if isinstance(error, FileNotFoundError):
                raise missing(error.filename) from error
            raise


def no_index(root: Path) -> SourcierError:
    """What to tell of a folder without a pointer."""
    if was_committed(root):
        return missing(root / POINTER)
    mend = "a build did not finish: build it again" if (root / VERSIONS).is_dir() else "build one there first"
    return SourcierError(f"{root}: no index here: {mend}")


def was_committed(root: Path) -> bool:
    """Whether a folder without a pointer once had one."""
    written = {path.parent.name for path in (root / VERSIONS).glob(f"*/{MANIFEST}")}
    # Of a first build that was killed just before its commit, the manifest is there, and the note.
    return bool(written - ({"000001"} if noted(root / BUILDING) == 1 else set()))


def missing(path: object) -> DamagedIndex:
    return DamagedIndex(f"{path}: this file of the index is missing: restore it, or build the index again")


def deleted_file(segment: str) -> str:
    """The file of a version that tells which rows of a segment are deleted."""
    return f"deleted-{segment}.npy"
