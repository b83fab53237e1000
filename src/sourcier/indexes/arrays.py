"""Arrays on disk: `.npy` files that are written piece by piece and read through a memory map."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np


class ArrayWriter:
    """Appends rows to a `.npy` file whose number of rows is known only at the end.

    `row_shape` None: that of the first rows; (0,) where none come.
    """

    def __init__(self, path: Path, dtype: type | np.dtype, row_shape: tuple[int, ...] | None = ()) -> None:
        self._path = path
        self._dtype, self._row_shape = np.dtype(dtype), row_shape
        self._rows = 0
        self._file: BinaryIO = path.open("wb")
        if row_shape is not None:
            self._write_header()

    def append(self, rows: np.ndarray) -> None:
        if self._row_shape is None:
            self._row_shape = rows.shape[1:]
            self._write_header()
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} cannot follow rows of shape {self._row_shape}")
        with naming(self._path):
            self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._rows += len(rows)

    def close(self, rows: int | None = None) -> None:
        """Complete the file; nothing where that is done. `rows`: how many there will be, where they are yet to come."""
        if self._file.closed:
            return
        self._rows = self._rows if rows is None else rows
        self._row_shape = (0,) if self._row_shape is None else self._row_shape
        with naming(self._path), self._file:
            # numpy leaves room in the header for the row count to grow, so it fits over the first one.
            self._file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self._rows, *(self._row_shape or ())),
            },
        )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an error of the system name the file, which one from a write (a full disk) does not do by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def map_array(path: Path) -> np.ndarray:
    """The array in a `.npy` file, read-only and mapped: processes that read it share one copy."""
    # As a plain array over the map: slices of `np.memmap` itself cost several times as much.
    return np.asarray(np.load(path, mmap_mode="r"))


def new_mapped_array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """A `.npy` file of a known shape that is filled through a map, in any order."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with naming(path), path.open("r+b") as file:
        # A full disk is an error here, and not the end of the process when the map is written to.
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array
