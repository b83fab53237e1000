"""Arrays on disk: what is written is what is read, and what is cut short is found."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sourcier.indexes import NotWritten
from sourcier.indexes.arrays import map_array, refuse_short, save_array


@pytest.mark.parametrize("shape", [(0,), (3,), (0, 4), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, bool, "S16"])
def test_an_array_comes_back(tmp_path: Path, shape: tuple[int, ...], dtype: type) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    save_array(tmp_path / "a.npy", array)
    found = map_array(tmp_path / "a.npy")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_columns_that_lie_together_come_back_too(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(12).reshape(3, 4))
    save_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(map_array(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("save", [save_array, np.save])
def test_a_file_that_lacks_its_end_is_refused(tmp_path: Path, save: object) -> None:
    path = tmp_path / "a.npy"
    save(path, np.zeros((10, 4), dtype=np.float32))  # type: ignore[operator]
    refuse_short(path)
    whole = path.stat().st_size
    os.truncate(path, whole - 1)
    with pytest.raises(NotWritten, match=rf"a\.npy: .*no space left: {whole - 1} of {whole} bytes arrived"):
        refuse_short(path)
