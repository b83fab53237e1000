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

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from sourcier.config import replace_text, write_json
from sourcier.indexes.arrays import refuse_short, save_array
from sourcier.indexes.disk import (
    LOCK,
    files_in,
    make_folder,
    not_written,
    release,
    remove_folder,
    sweep,
    sync,
    sync_tree,
    take_lock,
    writing,
)
from sourcier.indexes.finished import noted, settle
from sourcier.indexes.manifest import (
    FORMAT,
    Description,
    FileRecord,
    Manifest,
    SegmentRecord,
    read_manifest,
    read_pointer,
    sha256_of,
)
from sourcier.indexes.version import (
    BUILDING,
    MANIFEST,
    POINTER,
    SEGMENTS,
    VERSIONS,
    Version,
    deleted_file,
    no_index,
    open_version,
    was_committed,
)
from sourcier.types import NotWritten, SourcierError

MODELS = "models"


class NewVersion:
    """A version in the making: folders to write into, and the index's lock until it is committed or abandoned.

    `anew`: it takes the place of whatever is there, be that damaged; otherwise it comes after the version that counts,
    which is `before`.
    """

    def __init__(self, root: str | os.PathLike[str], *, anew: bool = False) -> None:
        self.root = Path(root)
        refuse_foreign_folder(self.root)
        if not anew and read_pointer(self.root / POINTER) is None:
            raise no_index(self.root)
        make_folder(self.root / VERSIONS)
        self._lock = take_lock(self.root)
        self._models: list[Path] = []
        self._saved: list[Path] = []
        self._committed = False
        try:
            self.before = None if anew else open_version(self.root)
            number = _current_number(self.root)
            if number is None:  # any of the versions that are there may be the one that counted
                number = _highest_number(self.root)
            else:
                _remove_litter(self.root, number)
            self.name = f"{number + 1:06d}"
            make_folder(self.folder)
            make_folder(self.segment_folder)
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
    def existing(self) -> Version:
        """The version before."""
        assert self.before is not None, "a version that is made anew comes after none"
        return self.before

    @property
    def building_folder(self) -> Path:
        return self.root / BUILDING

    def keep_model(self, fingerprint: str, save: Callable[[Path], object]) -> str:
        """Save an encoder into the index, once for all versions that it made; gives the folder relative to INDEX."""
        folder = self._model_folder(fingerprint)
        if not folder.is_dir():
            unfinished = folder.with_name(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            make_folder(unfinished)
            try:
                _save(unfinished, save)
                sync_tree(unfinished)
                unfinished.rename(folder)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
            self._saved.append(folder)
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
            save_array(self.folder / deleted_file(name), np.packbits(rows))
        own = next((one for one in segments if one.name == self.name), None)
        if own is None:
            shutil.rmtree(self.segment_folder)
        parts = (self.folder, *([self.segment_folder] if own else []), *self._models)
        for part in parts:
            for path in part.rglob("*.npy"):
                refuse_short(path)
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
                for folder in (self.folder, self.segment_folder, *self._saved):
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            release(self._lock)

    def _model_folder(self, fingerprint: str) -> Path:
        """Where an encoder is, whole, or where it is to go."""
        folder = self.root / MODELS / fingerprint[:16]
        if not folder.is_dir() or _is_whole(folder, self.root):
            return folder
        # Another version names the damaged one, and may be read from.
        return folder.with_name(f"{folder.name}-{self.name}")

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
                    freed += _size(folder)
                    shutil.rmtree(folder)
        building = version.root / BUILDING
        if noted(building) is not None:
            freed += _size(building)
            remove_folder(building)
        return freed
    finally:
        release(lock)


def _size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in files_in(folder))


def _save(folder: Path, save: Callable[[Path], object]) -> None:
    """Have an encoder written, by libraries whose errors of a full disk are their own."""
    full = os.strerror(errno.ENOSPC)
    try:
        with writing(folder):
            save(folder)
    except NotWritten:
        raise
    except Exception as error:
        if full in str(error):
            raise not_written(folder, full) from error
        raise


def _current_number(root: Path) -> int | None:
    """The number of the version that counts, 0 for none; None where that cannot be told."""
    try:
        pointer = read_pointer(root / POINTER)
        if pointer is None:
            return None if was_committed(root) else 0
        read_manifest(root / VERSIONS / pointer.name / MANIFEST, pointer.sha256)
    except SourcierError:
        return None
    return int(pointer.name)


def _highest_number(root: Path) -> int:
    """The highest number that a version has or had."""
    names = [path.name for kind in (VERSIONS, SEGMENTS) for path in (root / kind).glob("*")]
    names.append(_named(root / POINTER) or "")
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _remove_litter(root: Path, current: int) -> None:
    """Remove what crashed writers left: all above the current version, models of none, and what is half-written."""
    for folder in (*(root / VERSIONS).glob("*"), *(root / SEGMENTS).glob("*")):
        if folder.name.isdecimal() and int(folder.name) > current:
            shutil.rmtree(folder)
    settle(root / BUILDING, current)
    sweep(root, POINTER, BUILDING)
    sweep(root / MODELS, "")
    sweep(root / BUILDING, "")
    unnamed = set((root / MODELS).glob("*"))
    for files in _recorded(root):
        if not unnamed:
            break
        unnamed -= {root / Path(*Path(name).parts[:2]) for name in files}
    for folder in unnamed:
        shutil.rmtree(folder)


def _recorded(root: Path) -> Iterator[dict[str, FileRecord]]:
    """The files of each version whose manifest can be read, the latest first."""
    for path in sorted((root / VERSIONS).glob(f"*/{MANIFEST}"), reverse=True):
        with suppress(SourcierError, OSError):
            yield read_manifest(path, sha256_of(path)).files


def _is_whole(folder: Path, root: Path) -> bool:
    """Whether a folder holds what a version has in it, as it was written."""
    found = {path.relative_to(root).as_posix(): sha256_of(path) for path in files_in(folder)}
    start = f"{folder.relative_to(root).as_posix()}/"
    recorded = (
        {name: one.sha256 for name, one in files.items() if name.startswith(start)}
        for files in _recorded(root)
    )
    return bool(found) and found in recorded


def refuse_foreign_folder(root: str | os.PathLike[str]) -> None:
    """An index goes into a new or empty folder or over an index, never among a user's other files."""
    root = Path(root)
    if root.exists() and not root.is_dir():
        raise SourcierError(f"{root}: is a file: give a folder for the index")
    ours = (root / VERSIONS).is_dir() or (root / LOCK).is_file()
    if root.is_dir() and any(root.iterdir()) and not ours:
        raise SourcierError(f"{root}: holds other files and no index: give a new or an empty folder")


def _named(pointer: Path) -> str | None:
    """The version that a pointer names, whatever else is the matter with it; None where it names none."""
    text = pointer.read_bytes() if pointer.is_file() else b""
    return text.split()[0].decode("utf-8", "replace") if text.split() else None
