"""What all kinds of index share: the checks of a search, documents without content, and ids in the result.

A document without content (see `sourcier.types.has_content`) has no vectors in the index. It is ranked after all
others, with `EMPTY_SCORE`, when more hits are asked for than there are documents with content. So a kind sees only
documents with content, numbered without gaps; `Rows` turns those numbers into rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from sourcier.indexes.arrays import map_array
from sourcier.indexes.directory import Version
from sourcier.indexes.ids import IdTable
from sourcier.indexes.ranking import Ranked, checked_depth
from sourcier.indexes.store import EMPTY_FILE, StoreWriter
from sourcier.types import EMPTY_SCORE, Hits


class IndexBase(ABC):
    """An index of one kind, opened for reading. Searches may run in several threads."""

    kind: ClassVar[str]
    #: What writes an index of this kind.
    writer: ClassVar[type[StoreWriter]]

    def __init__(self, version: Version) -> None:
        self._version = version
        self.ids = IdTable(version.folder)
        self._rows = Rows(len(self.ids), map_array(version.folder / EMPTY_FILE))

    @property
    def version(self) -> str:
        """The name of the version that this reader opened and keeps."""
        return self._version.name

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, queries: Any, k: int) -> Hits:
        """The `k` best documents of each query, or all where there are fewer; no hits for a query without content."""
        depth = min(checked_depth(k), len(self))
        asked = self._checked(queries)
        ranked = self._rows.with_empty(self._best(asked, min(depth, self._rows.filled)), len(asked), depth)
        names = self.ids.names(ranked.rows)
        silent = self._silent(asked)
        names[silent], ranked.scores[silent] = None, -np.inf
        return Hits(names, ranked.scores, self.version)

    @abstractmethod
    def _checked(self, queries: Any) -> Any:
        """The queries in the form that the kind searches with, refused where they are of another kind."""

    @abstractmethod
    def _silent(self, queries: Any) -> np.ndarray:
        """Which queries have nothing to match with. [Q] bool"""

    @abstractmethod
    def _best(self, queries: Any, depth: int) -> Ranked:
        """The `depth` best documents with content, by number; `depth` can be 0."""


class Rows:
    """Rows of documents with content, and of those without."""

    def __init__(self, count: int, empty: np.ndarray) -> None:
        self.filled = count - len(empty)
        self._empty = empty
        # How many documents with content stand before each empty one.
        self._before = empty - np.arange(len(empty))

    def with_empty(self, ranked: Ranked, queries: int, depth: int) -> Ranked:
        """A ranking of documents with content as one of rows, filled up to `depth` with rows without content."""
        rows = ranked.rows + np.searchsorted(self._before, ranked.rows, side="right")
        missing = depth - ranked.rows.shape[1]
        empty = np.broadcast_to(self._empty[:missing], (queries, missing))
        return Ranked(
            np.concatenate([rows, empty], axis=1),
            np.concatenate([ranked.scores, np.full(empty.shape, EMPTY_SCORE, dtype=np.float32)], axis=1),
        )
