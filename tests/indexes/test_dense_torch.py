"""The exact kind on a device: the hits of the one that is mapped, to the last bit, whatever PyTorch is set to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourcier.encodings import DenseVectors
from sourcier.indexes import create, extend, open_index
from sourcier.indexes.changes import delete
from sourcier.types import SourcierError

torch = pytest.importorskip("torch")

from sourcier.indexes import dense_torch  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
every_device = pytest.mark.parametrize("device", DEVICES)


def vectors(seed: int, count: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, 48)).astype(np.float32)


def write(folder: Path, corpus: np.ndarray) -> Path:
    with create("dense", folder) as writer:
        writer.add([f"d{row}" for row in range(len(corpus))], DenseVectors(corpus))
        writer.finish()
    return folder


def assert_same(folder: Path, device: str, queries: np.ndarray, k: int, **options: Any) -> None:
    """The device's hits are the mapped ones, names and scores."""
    asked = DenseVectors(queries)
    expected = open_index(folder).search(asked, k, **options)
    hits = open_index(folder, device=device).search(asked, k, **options)
    assert hits.ids.tolist() == expected.ids.tolist()
    assert hits.scores.tolist() == expected.scores.tolist()


@pytest.fixture(params=["highest", "high", "medium"])
def _precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a training script sets for all of PyTorch."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@every_device
@pytest.mark.parametrize("queries", [1, 8, 300])
def test_hits_are_those_of_the_mapped_index(device: str, queries: int, tmp_path: Path) -> None:
    assert_same(write(tmp_path, vectors(0, 3000)), device, vectors(1, queries), 10)


@every_device
@pytest.mark.usefixtures("_precision")
def test_hits_do_not_depend_on_the_precision_that_pytorch_is_set_to(device: str, tmp_path: Path) -> None:
    assert_same(write(tmp_path, vectors(0, 3000)), device, vectors(1, 20), 10)


@pytest.mark.parametrize("_precision", ["medium"], indirect=True)
@pytest.mark.usefixtures("_precision")
def test_hits_are_right_where_factors_are_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that does not round by itself, the vectors of the device are rounded instead."""
    monkeypatch.setattr(dense_torch, "_MORE", 1)
    folder = write(tmp_path, 1 + 0.01 * vectors(0, 3000))
    asked = DenseVectors(1 + vectors(1, 20))
    expected, index = open_index(folder).search(asked, 10), open_index(folder, device="cpu")
    segment = index.parts[0].segment
    assert isinstance(segment, dense_torch.TorchDenseSegment)
    segment.resident = segment.resident.bfloat16().float()
    assert index.search(asked, 10).ids.tolist() == expected.ids.tolist()


@every_device
def test_hits_do_not_depend_on_autocast(device: str, tmp_path: Path) -> None:
    folder = write(tmp_path, vectors(0, 3000))
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_same(folder, device, vectors(1, 20), 10)


@every_device
def test_tiles_make_no_difference(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_torch, "_SCORES", 100)
    assert_same(write(tmp_path, vectors(0, 1000)), device, vectors(1, 8), 10)


@every_device
def test_equal_documents_come_in_the_order_of_insertion(device: str, tmp_path: Path) -> None:
    folder = write(tmp_path, np.repeat(vectors(0, 5), 100, axis=0))
    assert_same(folder, device, vectors(1, 4), 120)


@every_device
def test_a_query_of_zeros_gets_the_first_documents(device: str, tmp_path: Path) -> None:
    index = open_index(write(tmp_path, vectors(0, 200)), device=device)
    hits = index.search(DenseVectors(np.zeros((1, 48), dtype=np.float32)), 5)
    assert hits.ids.tolist() == [["d0", "d1", "d2", "d3", "d4"]]


@every_device
def test_all_documents_can_be_asked_for(device: str, tmp_path: Path) -> None:
    assert_same(write(tmp_path, vectors(0, 70)), device, vectors(1, 3), 100)


@every_device
def test_segments_and_deleted_documents(device: str, tmp_path: Path) -> None:
    write(tmp_path, vectors(0, 500))
    with extend(tmp_path) as writer:
        writer.add(["d7", "new"], DenseVectors(vectors(2, 2)))
        writer.finish()
    best = open_index(tmp_path).search(DenseVectors(vectors(1, 5)), 10)
    delete(tmp_path, [*best.ids[:, 0], *best.ids[:, 3]])
    assert_same(tmp_path, device, vectors(1, 5), 10)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_on_the_cpu_the_map_is_not_copied(tmp_path: Path) -> None:
    (part,) = open_index(write(tmp_path, vectors(0, 50)), device="cpu").parts
    assert isinstance(part.segment, dense_torch.TorchDenseSegment)
    address = part.segment.resident.data_ptr()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [[int(end, 16) for end in one[0].split("-")] for one in maps if one[-1].endswith("vectors.npy")]
    assert any(start <= address < stop for start, stop in ranges)


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    write(tmp_path, vectors(0, 5))
    with pytest.raises(SourcierError, match=r"^device='gpu0' cannot be used \(.*\): give one that is here"):
        open_index(tmp_path, device="gpu0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path, vectors(0, 5))
    with pytest.raises(SourcierError, match=r"^device='cuda' cannot be used"):
        open_index(tmp_path, device="cuda")


def test_a_kind_without_a_device_says_so(tmp_path: Path) -> None:
    with create("dense-hnsw", tmp_path) as writer:
        writer.add(["a"], DenseVectors(vectors(0, 1)))
        writer.finish()
    with pytest.raises(SourcierError, match="kind 'dense-hnsw' is searched on the CPU"):
        open_index(tmp_path, device="cpu")
