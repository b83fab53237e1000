"""Which documents pass a filter: the filters of `where`, evaluated on Arrow columns of metadata.

Shapes: N documents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sourcier.indexes.where import (
    And,
    Compare,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Value,
    Where,
    WrongFilter,
    shown_field,
    shown_value,
)

_SIGNS: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def passing(where: Where, columns: Mapping[str, pa.ChunkedArray], count: int) -> np.ndarray:
    """Which of `count` documents pass. A field without a column is missing everywhere. [N] bool"""
    return _truth(where, columns, count).true


@dataclass(frozen=True)
class _Truth:
    """Where a filter is true, and where it is false; it is neither where a value is missing. [N] bool each"""

    true: np.ndarray
    false: np.ndarray

    def both(self, other: _Truth) -> _Truth:
        return _Truth(self.true & other.true, self.false | other.false)

    def either(self, other: _Truth) -> _Truth:
        return _Truth(self.true | other.true, self.false & other.false)

    def opposite(self) -> _Truth:
        return _Truth(self.false, self.true)


def _truth(where: Where, columns: Mapping[str, pa.ChunkedArray], count: int) -> _Truth:
    if isinstance(where, And):
        return reduce(_Truth.both, (_truth(part, columns, count) for part in where.parts))
    if isinstance(where, Or):
        return reduce(_Truth.either, (_truth(part, columns, count) for part in where.parts))
    if isinstance(where, Not):
        return _truth(where.part, columns, count).opposite()
    column = columns.get(where.field)
    there = np.zeros(count, dtype=bool) if column is None else _bools(pc.is_valid(column))
    if isinstance(where, IsNull):
        return _Truth(~there, there)
    if column is None:
        return _Truth(there, there)
    found = _found(where, column)
    return _Truth(found & there, ~found & there)


def _found(where: Compare | In | Like, column: pa.ChunkedArray) -> np.ndarray:
    """Which values of a column are as wanted; where one is missing the answer means nothing. [N] bool"""
    if isinstance(where, Like):
        if not is_text(column.type):
            raise WrongFilter(
                f"--where: LIKE needs texts, and {shown_field(where.field)} holds {_held(column.type)}"
            )
        return _bools(pc.match_like(column, _pattern(where.pattern)))
    values = where.values if isinstance(where, In) else (where.value,)
    for value in values:
        _refuse_misfit(column.type, where.field, value)
    if pa.types.is_list(column.type):
        if isinstance(where, Compare) and where.sign != "=":
            raise WrongFilter(
                f"--where: {shown_field(where.field)} holds lists of texts: ask for one of them with = 'text'"
            )
        return _holds(column.combine_chunks(), values)
    if isinstance(where, In):
        return reduce(np.logical_or, (_compared(column, "=", value) for value in values))
    return _compared(column, where.sign, where.value)


def _compared(column: pa.ChunkedArray, sign: str, value: Value) -> np.ndarray:
    if pa.types.is_integer(column.type) and not isinstance(value, bool):
        return _compared_whole(column, sign, value)  # type: ignore[arg-type]
    if pa.types.is_floating(column.type):
        value = float(value)
    return _bools(_SIGNS[sign](column, value))


def _compared_whole(column: pa.ChunkedArray, sign: str, value: float) -> np.ndarray:
    """Whole numbers against any number, without rounding them to floating point."""
    nearest = math.floor(value)
    if nearest != value and sign in ("=", "!="):
        return np.full(len(column), sign == "!=")
    if nearest != value:  # below 2.5 is at most 2, above it is more than 2
        sign = "<=" if sign in ("<", "<=") else ">"
    if not _SMALLEST <= nearest <= _LARGEST:
        return np.full(len(column), sign in (("!=", "<", "<=") if nearest > 0 else ("!=", ">", ">=")))
    return _bools(_SIGNS[sign](column, nearest))


def _holds(column: pa.Array, values: tuple[Value, ...]) -> np.ndarray:
    """Which lists hold one of the values."""
    equal = pc.is_in(pc.list_flatten(column), value_set=pa.array(values, type=pa.string()))
    found = np.zeros(len(column), dtype=bool)
    found[pc.list_parent_indices(column).to_numpy()[_bools(equal)]] = True
    return found


def _pattern(text: str) -> str:
    r"""A pattern for Arrow, to which any backslash is special: here only \%, \_ and \\ are."""
    return re.sub(r"\\([%_\\])|\\", lambda found: found[0] if found[1] else r"\\", text)


def _refuse_misfit(kind: pa.DataType, field: str, value: Value) -> None:
    texts = is_text(kind) or pa.types.is_list(kind)
    if isinstance(value, str) != texts or isinstance(value, bool) != pa.types.is_boolean(kind):
        raise WrongFilter(
            f"--where: {shown_field(field)} holds {_held(kind)}, and is compared with {shown_value(value)}"
        )


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _held(kind: pa.DataType) -> str:
    """What a column of a type holds, in words."""
    if pa.types.is_list(kind):
        return "lists of texts"
    if pa.types.is_boolean(kind):
        return "TRUE and FALSE"
    return "texts" if is_text(kind) else "numbers"


def _bools(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column of truth values, a missing one as False. [N] bool"""
    filled = pc.fill_null(column, False)
    return np.asarray(
        filled.to_numpy(zero_copy_only=False) if isinstance(filled, pa.Array) else filled.to_numpy()
    )
