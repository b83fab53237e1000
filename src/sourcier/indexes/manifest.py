"""What a version of an index is: the contents of its manifest, and of the pointer that vouches for it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sourcier.config import from_dict
from sourcier.types import SourcierError

#: The version of the layout of an index. A reader refuses another one.
FORMAT = 2


class DamagedIndex(SourcierError):
    """A file of an index is missing, cut short or changed; the text starts with the file's path."""


@dataclass(frozen=True, kw_only=True)
class ModelReference:
    """The encoder that made the vectors of an index."""

    name: str
    #: A hash of weights and settings; None where a user's own encoder has none.
    fingerprint: str | None = None
    #: Where the encoder is kept, relative to INDEX; None where it cannot be saved.
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How documents were cut into passages: tokens or words of each, and how many the next one repeats."""

    size: int
    overlap: int


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What a file of a version must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a kind tells of a segment that it wrote; it stands in the manifest and opens the segment again."""

    #: Of the vectors; None where there are none.
    dimensions: int | None
    #: What `sourcier index info` shows: tokens, postings, ...
    counts: dict[str, int]
    #: Figures that a search needs.
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SegmentRecord(Written):
    """A segment as a version sees it."""

    name: str
    #: With and without content, deleted or not.
    documents: int
    #: Without content.
    empty: int
    #: Of documents that are deleted or not; 0 where documents are encoded whole.
    passages: int = 0
    deleted: int = 0


@dataclass(frozen=True, kw_only=True)
class Description:
    """What all versions of an index that come from one build have in common."""

    kind: str
    #: Settings of the kind, see `Segment.Build`.
    build: dict[str, Any]
    family: str | None
    model: ModelReference | None
    #: None where documents are encoded whole.
    passages: Splitting | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest(Description):
    """What a version is, and what it consists of."""

    format: int
    segments: list[SegmentRecord]
    #: Relative to INDEX.
    files: dict[str, FileRecord]

    @property
    def description(self) -> Description:
        """What the next version takes over."""
        return Description(**{one.name: getattr(self, one.name) for one in fields(Description)})

    @property
    def documents(self) -> int:
        """Documents that a search can find."""
        return sum(segment.documents - segment.deleted for segment in self.segments)

    @property
    def counts(self) -> dict[str, int]:
        """Documents that a search can find, those deleted but still there, and the sums of what the kind counts."""
        sums: Counter[str] = Counter()
        for segment in self.segments:
            sums.update({"deleted": segment.deleted, "empty": segment.empty, "passages": segment.passages})
            sums.update(segment.counts)
        if self.passages is None:
            del sums["passages"]
        return {"documents": self.documents, **sums}

    @property
    def dimensions(self) -> int | None:
        return next((one.dimensions for one in self.segments if one.dimensions is not None), None)


@dataclass(frozen=True)
class Pointer:
    """What the file CURRENT says."""

    name: str
    #: Of the manifest.
    sha256: str


def read_pointer(path: Path) -> Pointer | None:
    """The pointer of an index, or None where nothing was ever committed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise DamagedIndex(f"{path}: is not the pointer of an index") from error
    if re.fullmatch(r"\d{6,}\n", text):
        raise SourcierError(
            f"{path}: this index has format 1, and this Sourcier reads format {FORMAT}: build it again"
        )
    found = re.fullmatch(r"(\d{6,}) ([0-9a-f]{64})\n", text)
    if not found:
        raise DamagedIndex(
            f"{path}: names no version: restore the file, or remove the index and build it again"
        )
    return Pointer(*found.groups())


def read_manifest(path: Path, sha256: str) -> Manifest:
    """The manifest in a file, which has to be the one that the pointer means."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedIndex(f"{path}: cannot be read: restore the file, or build the index again") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedIndex(
            f"{path}: is not what CURRENT vouches for: restore the two files, or build the index again"
        )
    values = json.loads(content)
    written = values.get("format") if isinstance(values, Mapping) else None
    if written != FORMAT:
        raise SourcierError(
            f"{path}: has index format {written}, and this Sourcier reads format {FORMAT}: "
            "use the Sourcier that wrote it, or build the index again"
        )
    return from_dict(Manifest, values, where=str(path))


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
