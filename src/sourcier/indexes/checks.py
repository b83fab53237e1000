"""What an index refuses, from documents and from queries: another family, another size, numbers that are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sourcier.encodings import Encoding
from sourcier.types import DataError, SourcierError


def expect(kind: str, encoding: Any, wanted: type[Encoding]) -> None:
    """Refuse an encoding of another family than the index holds."""
    if not isinstance(encoding, wanted):
        raise SourcierError(
            f"an index of kind '{kind}' takes {wanted.__name__}, not {type(encoding).__name__}: "
            "use the model that the index was built with"
        )


def expect_dimensions(vectors: np.ndarray, dimensions: int | None) -> None:
    """Refuse queries whose vectors have another size than the documents'; an index without vectors takes all."""
    if dimensions is not None and vectors.shape[1] != dimensions:
        raise SourcierError(
            f"the queries have {vectors.shape[1]} dimensions and the index has {dimensions}: "
            "use the model that the index was built with"
        )


def accept_vectors(
    ids: Sequence[str], vectors: np.ndarray, dimensions: int | None, offsets: np.ndarray | None = None
) -> None:
    """Refuse vectors of documents that have another size than those before, or numbers that are none."""
    if not len(vectors):
        return
    if dimensions is not None and vectors.shape[1] != dimensions:
        raise SourcierError(
            f"vectors of {vectors.shape[1]} dimensions cannot join an index of {dimensions}: "
            "encode all documents with one model"
        )
    refuse_non_finite_documents(as_float32(vectors), ids, offsets)


def refuse_non_finite_documents(
    values: np.ndarray, ids: Sequence[str], offsets: np.ndarray | None = None
) -> None:
    """Refuse NaN and infinity from an encoder, naming the first document that has one."""
    row = _first_non_finite(values, offsets)
    if row is not None:
        raise DataError(
            f"document '{ids[row]}': its vectors hold NaN or infinity: look at the model that made them"
        )


def refuse_non_finite_queries(values: np.ndarray, offsets: np.ndarray | None = None) -> None:
    """Refuse NaN and infinity from an encoder, naming the first query that has one."""
    row = _first_non_finite(values, offsets)
    if row is not None:
        raise SourcierError(
            f"query {row}: its vectors hold NaN or infinity: look at the model that made them"
        )


def _first_non_finite(values: np.ndarray, offsets: np.ndarray | None) -> int | None:
    """The row of the first number that is not finite; `offsets` where rows are ragged."""
    finite = np.isfinite(values)
    if finite.all():
        return None
    entry = np.argwhere(~finite)[0, 0]
    return int(entry if offsets is None else np.searchsorted(offsets, entry, side="right") - 1)


def as_float32(values: np.ndarray) -> np.ndarray:
    """Contiguous float32, which is what every index computes with."""
    # What float32 cannot hold becomes infinite, and is refused with a word about whose it is.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def refuse_overflow(error: np.ndarray) -> None:
    """Refuse queries whose scores could leave float32, from the bounds on their rounding errors."""
    if (error > 1e30).any():
        raise SourcierError("the vectors are so long that scores overflow: look at the model that made them")


def refuse_negative_terms(terms: np.ndarray) -> None:
    """A term is a place in the vocabulary."""
    if (np.asarray(terms) < 0).any():
        raise SourcierError("a term of an encoding is negative: terms are numbers in the model's vocabulary")
