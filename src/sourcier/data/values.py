"""The values of one line by their keys, each checked; a key that is likely a slip of a known one is a fault."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sourcier.data.lines import LineFault, shown

#: Likeness, as difflib measures it, from which a name is taken for a slip of another: one letter of five.
ALIKE = 0.8
WORD = re.compile(r"[^\W\d_]+|[0-9]+")


def read_identifier(values: Mapping[str, Any], *keys: str) -> str:
    """The id under the first of these keys that is there. An integer is read as its digits: 1 and "1" are one id."""
    key = next((key for key in keys if key in values), None)
    if key is None:
        raise _missing(values, keys[0], "give every line an id")
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise LineFault("wrong id type", f'"{key}" is {shown(value)}', "an id is a string or an integer")
    if isinstance(value, int):
        try:
            return str(value)
        except ValueError as error:  # Python refuses to print integers of thousands of digits
            raise LineFault(
                "wrong id type", f'"{key}" is too long a number', "write it as a string"
            ) from error
    if not value.strip():
        raise LineFault("empty id", f'"{key}" is {shown(value)}', "an id holds at least one character")
    return check_unicode(key, value)


def read_text(values: Mapping[str, Any], key: str) -> str:
    """The text under a key that must be there."""
    if key not in values:
        raise _missing(values, key, f'give every line a "{key}"')
    value = values[key]
    if not isinstance(value, str):
        raise LineFault(
            "wrong text type", f'"{key}" is {shown(value)}', 'write a string ("" where there is no text)'
        )
    return check_unicode(key, value)


def check_unicode(key: str, value: str) -> str:
    """The value, unless it holds half of a surrogate pair, which no tokenizer and no file can take."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise LineFault(
            "broken Unicode", f'"{key}" holds half a surrogate pair ({half})', "write both halves"
        ) from error
    return value


@lru_cache(maxsize=4096)
def slip_of(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that this one is likely a slip of: it has as many words, the same numbers, and most letters."""
    words = _words(name)
    spelt = {
        "_".join(_words(one)): one
        for one in known
        if len(_words(one)) == len(words) and _numbers(one) == _numbers(name)
    }
    nearest = difflib.get_close_matches("_".join(words), spelt, n=1, cutoff=ALIKE)
    return spelt[nearest[0]] if nearest else None


@lru_cache(maxsize=4096)
def same_letters(name: str, known: tuple[str, ...]) -> str | None:
    """The known name with the same letters in another order or case, a slip that can be nothing else."""
    letters = sorted("".join(_words(name)))
    return next((one for one in known if letters and sorted("".join(_words(one))) == letters), None)


def refuse_slips(
    values: Mapping[str, Any],
    meanings: Iterable[Sequence[str]],
    *,
    likely: Callable[[str, tuple[str, ...]], str | None] = slip_of,
    mend: str = "",
) -> None:
    """Refuse a key that is likely a slip of one that is not there: without a word its value would be lost.

    Each of `meanings` is the keys that say the same thing: where one of them is there, the others are not missing.
    """
    meanings = list(meanings)
    missing = tuple(key for keys in meanings if not any(one in values for one in keys) for key in keys)
    known = {key for keys in meanings for key in keys}
    for key in values:
        meant = None if key in known else likely(key, missing)
        if meant is not None:
            raise LineFault("misspelt key", f"has the key {shown(key)}", f'did you mean "{meant}"?{mend}')


def _missing(values: Mapping[str, Any], key: str, mend: str) -> LineFault:
    """That a key is missing, with those that are there."""
    there = f" (this one has {shown(list(values))[1:-1]})" if values else ""
    return LineFault("missing key", f'has no "{key}"', mend + there)


def _words(name: str) -> list[str]:
    return WORD.findall(name.casefold())


def _numbers(name: str) -> list[str]:
    return [word for word in _words(name) if word.isdigit()]
