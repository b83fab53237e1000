"""Exact search over one vector a document by PyTorch: the vectors lie in the memory of a device, which may be a GPU.

The files are those of the exact kind, and so are the hits, to the last bit: the device finds candidates, which are
scored pair by pair from the mapped file, as `settle` wants it.

Shapes: Q queries, N documents with content, T documents of a tile, D dimensions, K candidates of a query.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sourcier.indexes.checks import refuse_overflow
from sourcier.indexes.dense import VECTORS, DenseSegment, norms
from sourcier.indexes.manifest import Written
from sourcier.indexes.ranking import Ranked, candidates_for, rounding
from sourcier.types import SourcierError

#: Scores that are in the memory of the device at a time (256 MB).
_SCORES = 2**26
#: A bound on the error of a product whose factors were rounded to bfloat16, or to TF32, relative to its size.
_ROUNDED_FACTORS = 2.0**-6
#: Times as many candidates are taken then, since more of them lie within the error.
_MORE = 32


class TorchDenseSegment(DenseSegment):
    """The exact kind on a device. Opened through the class that `on_device` gives."""

    device: ClassVar[torch.device]

    def __init__(self, folder: Path, written: Written) -> None:
        super().__init__(folder, written)
        # A map that could be written to, and never is: PyTorch warns of others. On the CPU it is not copied.
        vectors = torch.from_numpy(np.load(folder / VECTORS, mmap_mode="c"))
        try:
            self.resident = vectors.to(self.device)  # [N, D]
        except torch.OutOfMemoryError as error:
            raise SourcierError(
                f"{folder / VECTORS}: {vectors.nbytes / 1e9:.1f} GB of vectors do not fit into the memory of "
                f"'{self.device}': leave device= out, or take a larger one"
            ) from error

    def _best_of_group(self, queries: np.ndarray, depth: int, allowed: np.ndarray | None) -> Ranked:
        count = len(self) if allowed is None else int(np.count_nonzero(allowed))
        lengths = self._largest_norm * norms(queries)
        wanted, error = candidates_for(depth, count), rounding(queries.shape[1])
        refuse_overflow(error * lengths)
        if _rounds_factors():
            wanted, error = min(_MORE * wanted, count), error + _ROUNDED_FACTORS
        candidates = self._candidates(queries, wanted, allowed)
        # Of equal scores the device keeps any: an error above 0 has all ties looked after.
        return self._settled(
            queries, candidates, depth, np.maximum(error * lengths, np.finfo(np.float64).tiny), allowed
        )

    @torch.inference_mode()
    def _candidates(self, queries: np.ndarray, wanted: int, allowed: np.ndarray | None) -> Ranked:
        """The rows with the best scores, as the device rounds them. [Q, K]"""
        asked = torch.from_numpy(queries).to(self.device)
        passes = None if allowed is None else torch.from_numpy(allowed).to(self.device)
        found: list[tuple[Tensor, Tensor]] = []
        size = max(wanted, _SCORES // len(queries))
        # What the caller has PyTorch compute in 16 bits is no concern of ours.
        with torch.autocast(self.device.type, enabled=False):
            for start in range(0, len(self), size):
                scores = asked @ self.resident[start : start + size].T  # [Q, T]
                if passes is not None:
                    scores.masked_fill_(~passes[start : start + size], -torch.inf)
                best, rows = scores.topk(min(wanted, scores.shape[1]), dim=1)
                found.append((best, rows + start))
        scores, places = torch.cat([best for best, _ in found], dim=1).topk(wanted, dim=1)
        rows = torch.cat([rows for _, rows in found], dim=1).gather(1, places)
        return Ranked(rows.cpu().numpy(), scores.cpu().numpy())


def on_device(name: str) -> type[TorchDenseSegment]:
    """The exact kind on the device that PyTorch calls so: 'cuda', 'cuda:1', 'cpu'."""
    try:
        found = torch.empty(0, device=name).device
    # The second comes from a PyTorch that was built without this kind of device.
    except (RuntimeError, AssertionError) as error:
        raise SourcierError(
            f"device='{name}' cannot be used ({str(error).splitlines()[0]}): give one that is here, or leave it out"
        ) from error

    class OnDevice(TorchDenseSegment):
        device: ClassVar[torch.device] = found

    return OnDevice


def _rounds_factors() -> bool:
    """Whether PyTorch is allowed to round the factors of float32 products (TF32, bfloat16)."""
    if not hasattr(torch.backends, "fp32_precision"):  # before PyTorch 2.9
        return torch.get_float32_matmul_precision() != "highest"
    products = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    return any(one.fp32_precision not in ("ieee", "none") for one in products)
