"""What the writer of a kind of index must do: take encodings of documents with content, and complete its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sourcier.types import SourcierError

#: Rows of documents without content: [E] int64, rising.
EMPTY_FILE = "empty.npy"


class StoreWriter(ABC):
    """Writes the part of an index that belongs to its kind."""

    #: Of the vectors, once one is known.
    dimensions: int | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def add(self, ids: Sequence[str], encoding: Any) -> np.ndarray:
        """Append documents with content; says which of them have anything to match in the encoding. [N] bool"""

    @abstractmethod
    def finish(self) -> tuple[dict[str, int], dict[str, Any]]:
        """Complete the files; gives counts for the manifest, and settings that a search needs."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open, also when the build is given up."""

    def _check_dimensions(self, vectors: np.ndarray) -> None:
        if self.dimensions is None:
            self.dimensions = vectors.shape[1]
        elif vectors.shape[1] != self.dimensions:
            raise SourcierError(
                f"vectors of {vectors.shape[1]} dimensions cannot join an index of {self.dimensions}: "
                "encode all documents with one model"
            )
