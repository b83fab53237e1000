"""An index on disk: a folder of immutable versions, and a pointer to the one that counts.

    INDEX/CURRENT                        the version that readers open, and the checksum of its manifest
    INDEX/versions/000002/manifest.json  what the version is, its segments, and each file with size and checksum
    INDEX/versions/000002/deleted-000001.npy   which rows of a segment are deleted
    INDEX/segments/000001/...            documents that came together, with what their kind of index made of them
    INDEX/models/FINGERPRINT/...         an encoder that made the vectors of one version or more
    INDEX/building/...                   encoded documents of a build that is not finished (see `spool`)
    INDEX/writer.lock                    held by the process that writes

A version becomes visible when `CURRENT` names it, which is the last thing that happens: a crash before that leaves
litter that no reader looks at and the next writer removes. A version makes at most one segment, which has its name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from sourcier.config import replace_text, write_json
from sourcier.indexes.arrays import map_array
from sourcier.indexes.disk import files_in, release, sweep, sync, sync_tree, take_lock
from sourcier.indexes.manifest import (
    FORMAT,
    DamagedIndex,
    Description,
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
VERSIONS, SEGMENTS, MODELS, BUILDING = "versions", "segments", "models", "building"


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

    def deleted(self, segment: SegmentRecord) -> np.ndarray | None:
        """Which rows of a segment are deleted; None where none is. [documents] bool"""
        if not segment.deleted:
            return None
        packed = map_array(self.folder / _deleted_file(segment.name))
        return np.unpackbits(packed, count=segment.documents).astype(bool)

    def check_sizes(self) -> None:
        """Raise `DamagedIndex` for the first file that is missing or has another size than when it was committed."""
        for name, record in self.manifest.files.items():
            path = self.root / name
            try:
                size = path.stat().st_size
            except FileNotFoundError as error:
                raise DamagedIndex(
                    f"{path}: this file of the index is missing: restore it, or build the index again"
                ) from error
            if size != record.bytes:
                raise DamagedIndex(
                    f"{path}: has {size} bytes where the index has {record.bytes}: "
                    "restore the file, or build the index again"
                )

    def check_contents(self) -> None:
        """Read every file, and raise `DamagedIndex` for the first whose checksum differs."""
        self.check_sizes()
        for name, record in self.manifest.files.items():
            path = self.root / name
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
            mend = (
                "a build did not finish: build it again"
                if (root / VERSIONS).is_dir()
                else "build one there first"
            )
            raise SourcierError(f"{root}: no index here: {mend}")
        try:
            version = Version(
                root, pointer.name, read_manifest(root / VERSIONS / pointer.name / MANIFEST, pointer.sha256)
            )
            version.check_sizes()
            return open_parts(version)
        except (DamagedIndex, FileNotFoundError):
            if read_pointer(root / POINTER) == pointer:
                raise


class NewVersion:
    """A version in the making: folders to write into, and the index's lock until it is committed or abandoned."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        refuse_foreign_folder(self.root)
        _writable(self.root / VERSIONS)
        self._lock = take_lock(self.root)
        self._models: list[Path] = []
        self._committed = False
        try:
            self.before = open_version(self.root) if read_pointer(self.root / POINTER) else None
            number = int(self.before.name) if self.before else 0
            _remove_litter(self.root, number)
            self.name = f"{number + 1:06d}"
            self.folder.mkdir()
            _writable(self.segment_folder)
        except BaseException:
            release(self._lock)
            raise

    @property
    def folder(self) -> Path:
        """For files that belong to this version alone."""
        return self.root / VERSIONS / self.name

    @property
    def segment_folder(self) -> Path:
        """For the segment that this version may add."""
        return self.root / SEGMENTS / self.name

    @property
    def building_folder(self) -> Path:
        return self.root / BUILDING

    def keep_model(self, fingerprint: str, save: Callable[[Path], object]) -> str:
        """Save an encoder into the index, once for all versions that it made; gives the folder relative to INDEX."""
        folder = self.root / MODELS / fingerprint[:16]
        if not folder.is_dir():
            unfinished = folder.with_name(".unfinished")
            unfinished.mkdir(parents=True)
            save(unfinished)
            sync_tree(unfinished)
            unfinished.rename(folder)
            sync(folder.parent)
        self._models.append(folder)
        return folder.relative_to(self.root).as_posix()

    def commit(
        self,
        description: Description,
        segments: Sequence[SegmentRecord],
        deleted: Mapping[str, np.ndarray],
    ) -> Version:
        """Make a version of these segments, durable and visible, and release the lock.

        `deleted`: the deleted rows [documents] bool of each segment, by its name, where there are any.
        """
        for name, rows in deleted.items():
            np.save(self.folder / _deleted_file(name), np.packbits(rows))
        own = next((one for one in segments if one.name == self.name), None)
        if own is None:
            shutil.rmtree(self.segment_folder)
        parts = (self.folder, *([self.segment_folder] if own else []), *self._models)
        for part in parts:
            sync_tree(part)
        files = self._kept_files(description, [one for one in segments if one is not own])
        files |= {
            path.relative_to(self.root).as_posix(): FileRecord(
                bytes=path.stat().st_size, sha256=sha256_of(path)
            )
            for part in parts
            for path in files_in(part)
        }
        manifest = Manifest(**vars(description), format=FORMAT, segments=list(segments), files=files)
        path = self.folder / MANIFEST
        write_json(path, manifest)
        for folder in (self.folder, self.root / VERSIONS, self.root / SEGMENTS):
            sync(folder)
        replace_text(self.root / POINTER, f"{self.name} {sha256_of(path)}\n")
        self._committed = True
        sync(self.root)
        release(self._lock)
        return Version(self.root, self.name, manifest)

    @property
    def committed(self) -> bool:
        """Whether readers came to open this version."""
        # Of the pointer, because an interrupt can come between its move and the end of `commit`.
        if not self._lock.closed:
            self._committed = _named(self.root / POINTER) == self.name
        return self._committed

    def abandon(self) -> None:
        """Remove what was written and release the lock; nothing is removed where the version is committed."""
        if self._lock.closed:
            return
        try:
            if not self.committed:
                shutil.rmtree(self.folder, ignore_errors=True)
                shutil.rmtree(self.segment_folder, ignore_errors=True)
        finally:
            release(self._lock)

    def _kept_files(
        self, description: Description, segments: Sequence[SegmentRecord]
    ) -> dict[str, FileRecord]:
        """The files of the version before that this one takes over: of segments, and of the model."""
        folders = [f"{SEGMENTS}/{segment.name}/" for segment in segments]
        if description.model and description.model.folder and not self._models:
            folders.append(f"{description.model.folder}/")
        known = self.before.manifest.files if self.before else {}
        return {name: record for name, record in known.items() if name.startswith(tuple(folders))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()


def collect_garbage(root: str | os.PathLike[str]) -> int:
    """Remove the versions before the current one, with all that only they need; gives the bytes that are free now.

    Who has an older version open keeps it: the files stay until they are closed.
    """
    version = open_version(root)
    lock = take_lock(version.root)
    try:
        # Another writer may have finished before the lock was taken.
        version = open_version(root)
        _remove_litter(version.root, int(version.name))
        kept = {version.folder.relative_to(version.root)} | {
            Path(*Path(name).parts[:2]) for name in version.manifest.files
        }
        freed = 0
        for kind in (VERSIONS, SEGMENTS, MODELS):
            for folder in sorted((version.root / kind).glob("*")):
                if folder.relative_to(version.root) not in kept:
                    freed += sum(path.stat().st_size for path in files_in(folder))
                    shutil.rmtree(folder)
        return freed
    finally:
        release(lock)


def _remove_litter(root: Path, current: int) -> None:
    """Remove what crashed writers left: versions and segments above the current one, and what they did not finish."""
    for folder in (*(root / VERSIONS).glob("*"), *(root / SEGMENTS).glob("*")):
        if folder.name.isdecimal() and int(folder.name) > current:
            shutil.rmtree(folder)
    sweep(root, POINTER, BUILDING)
    sweep(root / MODELS, "")
    sweep(root / BUILDING, "")


def refuse_foreign_folder(root: str | os.PathLike[str]) -> None:
    """An index goes into a new or empty folder or over an index, never among a user's other files."""
    root = Path(root)
    if root.exists() and not root.is_dir():
        raise SourcierError(f"{root}: is a file: give a folder for the index")
    if root.is_dir() and any(root.iterdir()) and not (root / VERSIONS).is_dir():
        raise SourcierError(f"{root}: holds other files and no index: give a new or an empty folder")


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourcierError(
            f"{folder}: cannot be made ({error.strerror}): check the path, its permissions and the disk"
        ) from error


def _named(pointer: Path) -> str | None:
    """The version that a pointer names, whatever else is the matter with it; None where it names none."""
    text = pointer.read_bytes() if pointer.is_file() else b""
    return text.split()[0].decode("utf-8", "replace") if text.split() else None


def _deleted_file(segment: str) -> str:
    return f"deleted-{segment}.npy"
