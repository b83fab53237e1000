"""What a kind of index is: how it writes a segment, and how it searches one.

An index consists of segments. A segment is written once, from encodings of documents, and never changed; documents
that are added later make another one. Inside a segment, documents with content are numbered from 0 without gaps; ids,
texts, deleted documents and documents without content are no concern of a kind.

What a kind is asked, in the order of an index's life: `accept` for each chunk that is to be written, `write` once, then
the class itself to open the segment, `join` once for the segments of a version together, `checked`, `silent` and `best`
in each search, `chunks` when the index is compacted.

Shapes: Q queries, N documents of the segment, K columns of a result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from sourcier.indexes.manifest import Written

if TYPE_CHECKING:
    from sourcier.indexes.ranking import Ranked


class Chunks(Protocol):
    """The encodings of a segment's documents, a chunk at a time, as often as they are asked for.

    Arrays of a chunk may be read-only maps of files. For BM25 a chunk is a list of texts.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int:
        """How many documents there are in all chunks."""


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The settings of a kind that has none."""


class Segment(ABC):
    """One part of an index, opened for reading. Searches may run in several threads."""

    kind: ClassVar[str]
    #: A frozen keyword-only dataclass: the settings of a build, with defaults.
    Build: ClassVar[type] = NoSettings
    #: A frozen keyword-only dataclass: what trades speed for recall in one search, with defaults. Empty where exact.
    Search: ClassVar[type] = NoSettings

    @classmethod
    @abstractmethod
    def accept(cls, ids: Sequence[str], encoding: Any, dimensions: int | None) -> np.ndarray:
        """Which documents have anything to match. [documents] bool

        Refuses, naming the document, what this kind cannot hold. `dimensions`: of the vectors that came before.
        """

    @classmethod
    @abstractmethod
    def write(cls, folder: Path, chunks: Chunks, build: Any, like: Self | None = None) -> Written:
        """Write the files of a segment into an empty folder.

        `like`: the largest segment that the index has. What was learned from its documents (centroids, codebooks) is
        taken over, so that codes of the two can later be put together without a loss. In a compaction the chunks come
        from `chunks` of several segments: codes of those that share what was learned, encodings of others.
        Memory is bounded by a chunk and by what is said of the kind; the same chunks give the same bytes.
        """

    @abstractmethod
    def __init__(self, folder: Path, written: Written) -> None:
        """Open the files of a segment; nothing is read that a search does not touch, where the kind is mapped."""

    @abstractmethod
    def __len__(self) -> int:
        """How many documents with content there are."""

    @abstractmethod
    def checked(self, queries: Any) -> Any:
        """The queries in the form that `best` takes, refused where they are of another kind or size, or not finite."""

    @abstractmethod
    def silent(self, queries: Any) -> np.ndarray:
        """Which of the checked queries have nothing to match with. [Q] bool"""

    @abstractmethod
    def best(self, queries: Any, depth: int, allowed: np.ndarray | None, search: Any) -> Ranked:
        """The best documents of each query among those that are allowed, ties by rising number. [Q, K], K <= depth

        `depth` is at least 1 and at most the number of allowed documents. `allowed` [N] bool, or None for all. Where a
        query has fewer than K, row -1 and score -inf stand at the end. An exact kind gives `depth` of them.
        """

    @abstractmethod
    def chunks(self, keep: np.ndarray) -> Iterator[Any]:
        """The documents of `keep` [N] bool in order, as chunks that `write` takes: what compaction writes anew."""

    @classmethod  # noqa: B027
    def join(cls, segments: Sequence[Self]) -> None:
        """Let the segments of a version know of each other, once, when all are open: for scores that depend on all.

        Deleted documents count until the index is compacted. Kinds that score a document by itself need nothing.
        """
