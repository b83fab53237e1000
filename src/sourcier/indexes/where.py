"""A filter on documents: `lang = 'de' AND year >= 2020`, as a value that prints in the syntax that `parse` reads.

    condition = condition OR condition | condition AND condition | NOT condition | ( condition )
              | field = value (or != < <= > >=) | field [NOT] IN (value, ...) | field IS [NOT] NULL
              | field [NOT] LIKE 'text with % and _'
    field     = a name, or any text in "double quotes"
    value     = 'a text' (a quote in it is doubled), a number, TRUE, FALSE

In a pattern, a backslash before %, _ or another backslash takes that as it is. Of a field that holds lists of texts, =
and IN ask whether one of the texts is in the list. Words of the language may be written in any case. As in SQL, a
comparison with a value that is missing is neither true nor false, its negation is not either, and only what is true
passes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, Union

from sourcier.config import unknown
from sourcier.types import SourcierError

Value = Union[str, int, float, bool]
SIGNS = ("=", "!=", "<", "<=", ">", ">=")


class WrongFilter(SourcierError):
    """A filter that cannot be read, or that does not fit the documents."""


@dataclass(frozen=True)
class Compare:
    """A field against a value; `sign` is one of SIGNS."""

    field: str
    sign: str
    value: Value

    def __str__(self) -> str:
        return f"{shown_field(self.field)} {self.sign} {shown_value(self.value)}"


@dataclass(frozen=True)
class In:
    """A field that has one of some values."""

    field: str
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{shown_field(self.field)} IN ({', '.join(map(shown_value, self.values))})"


@dataclass(frozen=True)
class Like:
    """A text that fits a pattern: % stands for any characters, _ for one."""

    field: str
    pattern: str

    def __str__(self) -> str:
        return f"{shown_field(self.field)} LIKE {shown_value(self.pattern)}"


@dataclass(frozen=True)
class IsNull:
    """A field that is missing."""

    field: str

    def __str__(self) -> str:
        return f"{shown_field(self.field)} IS NULL"


@dataclass(frozen=True)
class Not:
    """What is not so."""

    part: Where

    def __str__(self) -> str:
        return f"NOT ({self.part})"


@dataclass(frozen=True)
class And:
    """What is so in all parts."""

    parts: tuple[Where, ...]

    def __str__(self) -> str:
        return " AND ".join(f"({part})" if isinstance(part, (And, Or)) else str(part) for part in self.parts)


@dataclass(frozen=True)
class Or:
    """What is so in one part at least."""

    parts: tuple[Where, ...]

    def __str__(self) -> str:
        return " OR ".join(f"({part})" if isinstance(part, (And, Or)) else str(part) for part in self.parts)


Where = Union[Compare, In, Like, IsNull, Not, And, Or]


def parse(text: str) -> Where:
    """The filter that a text says."""
    return _Parser(text).whole()


def fields(where: Where) -> set[str]:
    """The fields that a filter reads."""
    if isinstance(where, (And, Or)):
        return set().union(*(fields(part) for part in where.parts))
    return fields(where.part) if isinstance(where, Not) else {where.field}


def refuse_unknown(where: Where, known: set[str]) -> None:
    """Refuse a filter on a field that no document has."""
    for field in sorted(fields(where)):
        if field not in known:
            raise WrongFilter(f"--where: {unknown('field', field, sorted(known))}")


def shown_field(field: str) -> str:
    """A field as a filter names it."""
    plain = re.fullmatch(r"[^\W\d]\w*", field) and field.upper() not in _WORDS
    return field if plain else '"' + field.replace('"', '""') + '"'


def shown_value(value: Value) -> str:
    """A value as a filter writes it."""
    if isinstance(value, bool):
        return str(value).upper()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


_WORDS = {"AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "TRUE", "FALSE"}
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")+")|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|!=|<>|==|[=<>(),]))"""
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    place: int


class _Parser:
    """Reads one filter from left to right."""

    def __init__(self, text: str) -> None:
        self._source = text
        self._tokens = [*_tokens(text), _Token("end", "", len(text))]
        self._next = 0

    def whole(self) -> Where:
        found = self._either()
        if self._token.kind != "end":
            self._fail("AND, OR or the end")
        return found

    def _either(self) -> Where:
        parts = [self._both()]
        while self._takes("OR"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self) -> Where:
        parts = [self._negated()]
        while self._takes("AND"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _negated(self) -> Where:
        if self._takes("NOT"):
            return Not(self._negated())
        if self._takes("("):
            found = self._either()
            self._expect(")")
            return found
        return self._condition()

    def _condition(self) -> Where:
        field = self._field()
        if self._takes("IS"):
            negated = self._takes("NOT")
            self._expect("NULL")
            return Not(IsNull(field)) if negated else IsNull(field)
        negated = self._takes("NOT")
        if self._takes("IN"):
            return Not(In(field, self._values())) if negated else In(field, self._values())
        if self._takes("LIKE"):
            pattern = self._value()
            if not isinstance(pattern, str):
                self._fail("a pattern in 'quotes'", back=1)
            found = Like(field, str(pattern))
            return Not(found) if negated else found
        sign = {"<>": "!=", "==": "="}.get(self._token.text, self._token.text)
        if negated or sign not in SIGNS:
            self._fail("IN or LIKE" if negated else "=, !=, <, <=, >, >=, IN, LIKE, NOT or IS")
        self._next += 1
        return Compare(field, sign, self._value())

    def _field(self) -> str:
        token = self._token
        if token.kind == "quoted":
            self._next += 1
            return token.text[1:-1].replace('""', '"')
        if token.kind != "word" or token.text.upper() in _WORDS:
            self._fail("the name of a field")
        self._next += 1
        return token.text

    def _values(self) -> tuple[Value, ...]:
        self._expect("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _value(self) -> Value:
        token = self._token
        self._next += 1
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if token.kind == "number":
            return self._number(token.text)
        if token.kind == "word" and token.text.upper() in ("TRUE", "FALSE"):
            return token.text.upper() == "TRUE"
        hint = " (IS NULL asks for what is missing)" if token.text.upper() == "NULL" else ""
        return self._fail(f"a value: 'text', a number, TRUE or FALSE{hint}", back=1)

    def _number(self, text: str) -> int | float:
        if math.isinf(float(text)):
            self._fail("a smaller number", back=1)
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _takes(self, word: str) -> bool:
        """Whether the next token is this one, which is then behind."""
        taken = self._token.kind in ("word", "sign") and self._token.text.upper() == word
        self._next += taken
        return taken

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            self._fail(word)

    def _fail(self, wanted: str, back: int = 0) -> NoReturn:
        token = self._tokens[self._next - back]
        found = f"'{token.text}'" if token.text else "the end"
        raise WrongFilter(
            f"--where: at character {token.place + 1} of {self._source!r}: expected {wanted}, found {found}"
        )


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            raise WrongFilter(f"--where: at character {start + 1} of {text!r}: this cannot be read")
        kind = str(found.lastgroup)
        yield _Token(kind, found[kind], found.start(kind))
        place = found.end()
