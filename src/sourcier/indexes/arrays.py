"""Arrays on disk: `.npy` files that are written piece by piece and read through a memory map."""

from __future__ import annotations

import errno
import math
import os
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from sourcier.indexes.disk import not_written, writing


class ArrayWriter:
    """Appends rows to a `.npy` file whose number of rows is known only at the end.

    `row_shape` None: that of the first rows; (0,) where none come.
    """

    def __init__(self, path: Path, dtype: type | np.dtype, row_shape: tuple[int, ...] | None = ()) -> None:
        self._path = path
        self._dtype, self._row_shape = np.dtype(dtype), row_shape
        self._rows = 0
        with writing(path):
            self._file: BinaryIO = path.open("wb")
            if row_shape is not None:
                self._write_header()

    def append(self, rows: np.ndarray) -> None:
        if self._row_shape is None:
            self._row_shape = rows.shape[1:]
            self._write_header()
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} cannot follow rows of shape {self._row_shape}")
        with writing(self._path):
            self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._rows += len(rows)

    def close(self, rows: int | None = None) -> None:
        """Complete the file; nothing where that is done. `rows`: how many there will be, where they are yet to come."""
        if self._file.closed:
            return
        self._rows = self._rows if rows is None else rows
        self._row_shape = (0,) if self._row_shape is None else self._row_shape
        with writing(self._path), self._file:
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


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array into a `.npy` file. (`np.save` can lose bytes on a full disk without a word.)"""
    with closing(ArrayWriter(path, array.dtype, array.shape[1:])) as file:
        file.append(array)


def refuse_short(path: Path) -> None:
    """Refuse a `.npy` file, written by others than us, that lacks a part of what its header tells of."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = header(file)
        expected = file.tell() + math.prod(shape) * dtype.itemsize
    size = path.stat().st_size
    if size != expected:
        raise not_written(path, f"no space left: {size} of {expected} bytes arrived")


def map_array(path: Path) -> np.ndarray:
    """The array in a `.npy` file, read-only and mapped: processes that read it share one copy."""
    # As a plain array over the map: slices of `np.memmap` itself cost several times as much.
    return np.asarray(np.load(path, mmap_mode="r"))


def map_file(path: Path) -> pa.MemoryMappedFile:
    """A file, read-only and mapped, for Arrow."""
    try:
        return pa.memory_map(str(path))
    except FileNotFoundError as error:  # Arrow's own does not name the file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error


def new_mapped_array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """A `.npy` file of a known shape that is filled through a map, in any order."""
    with writing(path):
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with writing(path), path.open("r+b") as file:
        # A full disk is an error here, and not the end of the process when the map is written to.
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array
