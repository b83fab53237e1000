"""An index on disk: a folder of immutable versions, and a pointer to the one that counts.

    INDEX/CURRENT                        the name of the version that readers open; replaced atomically
    INDEX/versions/000001/manifest.json  what the version is, and each of its files with size and checksum
    INDEX/versions/000001/...            its files
    INDEX/models/FINGERPRINT/...         an encoder that made the vectors of one version or more
    INDEX/writer.lock                    held by the process that writes

A version becomes visible when `CURRENT` names it, which is the last thing that happens: a crash before that leaves
litter that no reader looks at and the next writer removes. A manifest names its files relative to INDEX, so that a
version can hold files of an earlier one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from sourcier.config import from_dict, replace_text, write_json
from sourcier.types import SourcierError

#: The version of this layout. A reader refuses another one.
FORMAT = 1

POINTER, LOCK, VERSIONS, MODELS, MANIFEST = "CURRENT", "writer.lock", "versions", "models", "manifest.json"


class DamagedIndex(SourcierError):
    """A file of an index is missing, cut short or changed; the text starts with the file's path."""


class IndexBusy(SourcierError):
    """Another writer holds the index."""


@dataclass(frozen=True, kw_only=True)
class ModelReference:
    """The encoder that made the vectors of an index."""

    name: str
    #: A hash of weights and settings; None where a user's own encoder has none.
    fingerprint: str | None = None
    #: Where the encoder is kept, relative to INDEX; None where it cannot be saved.
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What a file of a version must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a version is."""

    kind: str
    family: str | None
    model: ModelReference | None
    #: Of the vectors; None where there are none.
    dimensions: int | None
    counts: dict[str, int]
    #: Figures that the kind itself needs to search.
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Manifest(Description):
    """What a version is, and what it consists of."""

    format: int
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Version:
    """A committed version, as a reader sees it: nothing in it ever changes."""

    root: Path
    name: str
    manifest: Manifest

    @property
    def folder(self) -> Path:
        return self.root / VERSIONS / self.name

    def check_sizes(self) -> None:
        """Raise `DamagedIndex` for the first file that is missing or has another size than when it was committed."""
        for name, record in self.manifest.files.items():
            path = self.root / name
            if not path.is_file():
                raise DamagedIndex(
                    f"{path}: this file of the index is missing: restore it, or build the index again"
                )
            size = path.stat().st_size
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
            if _sha256(path) != record.sha256:
                raise DamagedIndex(
                    f"{path}: its contents changed: restore the file, or build the index again"
                )


def open_version(root: str | os.PathLike[str]) -> Version:
    """The version that the pointer names, with the sizes of its files checked."""
    root = Path(root)
    name = _current(root)
    if name is None:
        mend = (
            "a build did not finish: build it again"
            if (root / VERSIONS).is_dir()
            else "build one there first"
        )
        raise SourcierError(f"{root}: no index here: {mend}")
    version = Version(root, name, _read_manifest(root / VERSIONS / name / MANIFEST))
    version.check_sizes()
    return version


class NewVersion:
    """A version in the making: a folder to write into, and the index's lock until it is committed or abandoned."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        _refuse_foreign_folder(self.root)
        (self.root / VERSIONS).mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(self.root)
        self._models: list[Path] = []
        try:
            number = int(_current(self.root) or 0)
            self._remove_litter(number)
            self.name = f"{number + 1:06d}"
            self.folder.mkdir()
        except BaseException:
            self._lock.close()
            raise

    @property
    def folder(self) -> Path:
        return self.root / VERSIONS / self.name

    def keep_model(self, fingerprint: str, save: Callable[[Path], object]) -> str:
        """Save an encoder into the index, once for all versions that it made; gives the folder relative to INDEX."""
        folder = self.root / MODELS / fingerprint[:16]
        if not folder.is_dir():
            unfinished = folder.with_name(".unfinished")
            unfinished.mkdir(parents=True)
            save(unfinished)
            _sync_tree(unfinished)
            unfinished.rename(folder)
            _sync(folder.parent)
        self._models.append(folder)
        return folder.relative_to(self.root).as_posix()

    def commit(self, description: Description) -> Version:
        """Make the folder a version, durable and visible, and release the lock."""
        _sync_tree(self.folder)
        parts = (self.folder, *self._models)
        files = {
            path.relative_to(self.root).as_posix(): FileRecord(
                bytes=path.stat().st_size, sha256=_sha256(path)
            )
            for part in parts
            for path in _files(part)
        }
        manifest = Manifest(**vars(description), format=FORMAT, files=files)
        write_json(self.folder / MANIFEST, manifest)
        _sync(self.folder)
        _sync(self.root / VERSIONS)
        replace_text(self.root / POINTER, self.name + "\n")
        _sync(self.root)
        self._lock.close()
        return Version(self.root, self.name, manifest)

    def abandon(self) -> None:
        """Remove what was written and release the lock; nothing where the version is committed."""
        if not self._lock.closed:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def _remove_litter(self, current: int) -> None:
        """Remove folders of builds that crashed: versions above the current one, and models under a working name."""
        for folder in (self.root / VERSIONS).iterdir():
            if folder.name.isdecimal() and int(folder.name) > current:
                shutil.rmtree(folder)
        for folder in (self.root / MODELS).glob(".*"):
            shutil.rmtree(folder)


def _current(root: Path) -> str | None:
    """The name of the version that counts, or None where nothing was ever committed."""
    pointer = root / POINTER
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, NotADirectoryError) as error:
        raise DamagedIndex(f"{pointer}: is not the pointer of an index") from error
    if not (name.isascii() and name.isdecimal()):
        raise DamagedIndex(
            f"{pointer}: names no version: restore the file, or remove the index and build it again"
        )
    return name


def _read_manifest(path: Path) -> Manifest:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedIndex(f"{path}: cannot be read: restore the file, or build the index again") from error
    written = values.get("format") if isinstance(values, Mapping) else None
    if written != FORMAT:
        raise SourcierError(
            f"{path}: has index format {written}, and this Sourcier reads format {FORMAT}: "
            "use the Sourcier that wrote it, or build the index again"
        )
    return from_dict(Manifest, values, where=str(path))


def _refuse_foreign_folder(root: Path) -> None:
    """An index goes into a new or empty folder or over an index, never among a user's other files."""
    if root.exists() and not root.is_dir():
        raise SourcierError(f"{root}: is a file: give a folder for the index")
    if root.is_dir() and any(root.iterdir()) and not (root / VERSIONS).is_dir():
        raise SourcierError(f"{root}: holds other files and no index: give a new or an empty folder")


def _take_lock(root: Path) -> IO[bytes]:
    # The system drops the lock with the process that held it, however that ended.
    lock = (root / LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise IndexBusy(f"{root}: another process is writing to this index: wait until it is done") from error
    return lock


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    """Have the contents of a file, or the names in a folder, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
