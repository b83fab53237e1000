"""Filters: they print what they were read from, and pass what a plain evaluation with three truth values passes."""

from __future__ import annotations

import fnmatch
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourcier.indexes.columns import passing
from sourcier.indexes.where import (
    SIGNS,
    And,
    Compare,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Where,
    WrongFilter,
    parse,
    refuse_unknown,
)

ROWS: list[dict[str, Any]] = [
    {"lang": "de", "year": 2020, "open": True, "tags": ["a", "b"]},
    {"lang": "en", "year": 1999, "open": False, "tags": []},
    {"lang": "it's", "year": None, "open": None, "tags": None},
    {"lang": None, "year": 2021, "open": True, "tags": ["b"]},
]
TYPES = {"lang": pa.string(), "year": pa.int64(), "open": pa.bool_(), "tags": pa.list_(pa.string())}
#: In two chunks, as columns of a file in batches come.
COLUMNS = {
    field: pa.chunked_array([[row[field] for row in rows] for rows in (ROWS[:1], ROWS[1:])], type=kind)
    for field, kind in TYPES.items()
}

texts = st.sampled_from(["de", "en", "it's", "d%", "_n"])
conditions = st.one_of(
    st.builds(Compare, st.just("lang"), st.sampled_from(SIGNS), texts),
    st.builds(Compare, st.just("year"), st.sampled_from(SIGNS), st.integers(1998, 2022)),
    st.builds(
        Compare,
        st.just("year"),
        st.sampled_from(SIGNS),
        st.floats(1990, 2030) | st.sampled_from([2020.0, 1e300, -1e300, 2**63, -(2**63) - 1]),
    ),
    st.builds(Compare, st.just("tags"), st.just("="), st.sampled_from(["a", "b", "c"])),
    st.builds(In, st.just("tags"), st.sampled_from([("a", "c"), ("c",)])),
    st.builds(In, st.just("year"), st.sampled_from([(2020, 1999.0), (2020.5,)])),
    st.builds(Compare, st.just("open"), st.just("="), st.booleans()),
    st.builds(In, st.just("lang"), st.lists(texts, min_size=1, max_size=3).map(tuple)),
    st.builds(Like, st.just("lang"), texts),
    st.builds(IsNull, st.sampled_from(["lang", "year", "missing field"])),
)
filters = st.recursive(
    conditions,
    lambda parts: st.one_of(
        st.builds(Not, parts),
        st.lists(parts, min_size=2, max_size=3).map(tuple).map(And),
        st.lists(parts, min_size=2, max_size=3).map(tuple).map(Or),
    ),
    max_leaves=6,
)


def truth(where: Where, row: dict[str, Any]) -> bool | None:
    """One row, in plain Python; None is neither true nor false."""
    if isinstance(where, And):
        found = [truth(part, row) for part in where.parts]
        return False if False in found else None if None in found else True
    if isinstance(where, Or):
        found = [truth(part, row) for part in where.parts]
        return True if True in found else None if None in found else False
    if isinstance(where, Not):
        inner = truth(where.part, row)
        return None if inner is None else not inner
    value = row.get(where.field)
    if isinstance(where, IsNull):
        return value is None
    if value is None:
        return None
    if isinstance(value, list):
        return any(one in value for one in (where.values if isinstance(where, In) else [where.value]))  # type: ignore[union-attr]
    if isinstance(where, In):
        return value in where.values
    if isinstance(where, Like):
        return fnmatch.fnmatchcase(value, where.pattern.replace("%", "*").replace("_", "?"))
    other: Any = where.value
    return {
        "=": value == other, "!=": value != other, "<": value < other,
        "<=": value <= other, ">": value > other, ">=": value >= other,
    }[where.sign]  # fmt: skip


@given(filters)
def test_a_filter_reads_what_it_prints(where: Where) -> None:
    assert parse(str(where)) == where


@given(filters)
def test_what_passes_is_what_is_true(where: Where) -> None:
    assert passing(where, COLUMNS, len(ROWS)).tolist() == [truth(where, row) is True for row in ROWS]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lang = 'de'", [0]),
        ("LANG = 'de' or lang='it''s'".replace("LANG", "lang"), [0, 2]),
        ("year >= 2020 and not open = false", [0, 3]),
        ("lang is not null and year is null", [2]),
        ("lang not in ('de', 'en')", [2]),
        ("lang <> 'de'", [1, 2]),
        ("tags = 'b'", [0, 3]),
        ("not tags = 'b'", [1]),
        ("year > 2e3", [0, 3]),
        ("\"lang\" like '%e'", [0]),
        ("lang = 'de' or lang = 'en' and year = 1999", [0, 1]),
        ("(lang = 'de' or lang = 'en') and year = 1999", [1]),
    ],
)
def test_filters_as_they_are_typed(text: str, expected: list[int]) -> None:
    assert passing(parse(text), COLUMNS, len(ROWS)).nonzero()[0].tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1 of '': expected the name of a field, found the end"),
        ("lang", "at character 5 of 'lang': expected =, !="),
        ("lang = ", "expected a value: 'text', a number, TRUE or FALSE, found the end"),
        ("lang = de", "at character 8 .*expected a value.*found 'de'"),
        ("lang = 'de", "at character 8 .*cannot be read"),
        ("lang = 'de' year = 3", "at character 13 .*expected AND, OR or the end, found 'year'"),
        ("(lang = 'de'", r"expected \), found the end"),
        ("lang in 'de'", r"expected \(, found"),
        ("lang like 3", "expected a pattern"),
        ("not", "expected the name of a field"),
        ("lang = null", r"expected a value.*\(IS NULL asks for what is missing\), found 'null'"),
        ("year < 1e999", "at character 8 .*expected a smaller number, found '1e999'"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, message: str) -> None:
    with pytest.raises(WrongFilter, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("year = 'x'", "year holds numbers, and is compared with 'x'"),
        ("lang > 3", "lang holds texts, and is compared with 3"),
        ("open = 1", "open holds TRUE and FALSE, and is compared with 1"),
        ("year like '2%'", "LIKE needs texts, and year holds numbers"),
        ("tags > 'a'", "tags holds lists of texts"),
        ("tags = 1", "tags holds lists of texts, and is compared with 1"),
        ("year in (2020, 'x')", "year holds numbers, and is compared with 'x'"),
        ("year = true", "year holds numbers, and is compared with TRUE"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(WrongFilter, match=message):
        passing(parse(text), COLUMNS, len(ROWS))


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(WrongFilter, match="did you mean 'lang'"):
        refuse_unknown(parse("lnag = 'de'"), {"lang", "year"})


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("50%", ["50%", "50 m"]),
        (r"50\%", ["50%"]),
        (r"a\b", [r"a\b"]),
        (r"a\\b", [r"a\b"]),
        ("x.y", []),
        ("_", ["ü"]),
    ],
)
def test_only_percent_and_underscore_stand_for_others(pattern: str, expected: list[str]) -> None:
    texts = ["50%", "50 m", r"a\b", "xzy", "ü"]
    found = passing(Like("name", pattern), {"name": pa.chunked_array([texts])}, len(texts))
    assert [text for text, one in zip(texts, found, strict=True) if one] == expected


def test_whole_numbers_are_not_rounded() -> None:
    column = pa.chunked_array([[2**53, 2**53 + 1]])
    assert passing(parse(f"n = {2**53 + 1}"), {"n": column}, 2).tolist() == [False, True]
    assert passing(parse(f"n > {float(2**53)}"), {"n": column}, 2).tolist() == [False, True]
