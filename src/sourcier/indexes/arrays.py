"""Arrays on disk: `.npy` files that are written piece by piece and read through a memory map."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np


class ArrayWriter:
    """Appends rows to a `.npy` file whose number of rows is known only at the end."""

    def __init__(self, path: Path, dtype: type | np.dtype, row_shape: tuple[int, ...] = ()) -> None:
        self._dtype, self._row_shape = np.dtype(dtype), row_shape
        self._rows = 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} cannot follow rows of shape {self._row_shape}")
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._rows += len(rows)

    def close(self) -> None:
        """Complete the file; nothing where that is done."""
        if self._file.closed:
            return
        # numpy leaves room in the header for the row count to grow, so it fits over the first one.
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self._rows, *self._row_shape),
            },
        )


def map_array(path: Path) -> np.ndarray:
    """The array in a `.npy` file, read-only and mapped: processes that read it share one copy."""
    # As a plain array over the map: slices of `np.memmap` itself cost several times as much.
    return np.asarray(np.load(path, mmap_mode="r"))


def new_mapped_array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """A `.npy` file of a known shape that is filled through a map, in any order."""
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
