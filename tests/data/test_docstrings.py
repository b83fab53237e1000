"""Docstrings: what is the summary, what is left of the rest, and what is public."""

from __future__ import annotations

from collections import Counter
from textwrap import indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourcier.data.docstrings import Documented, read_documented, says, split_summary, without_repeats

REST = "The rest has some more words that say what is to be known beside the summary itself."


def _read(source: str | bytes) -> list[Documented]:
    return list(
        read_documented(source.encode() if isinstance(source, str) else source, "pack.mod", Counter())
    )


def _function(docstring: str, head: str = "def f(x):") -> str:
    return f'{head}\n    """{docstring}"""\n'


@pytest.mark.parametrize(
    ("docstring", "summary", "rest"),
    [
        ("Add two numbers.\n\nMore.", "Add two numbers.", "More."),
        ("Add two numbers. Then stop.\nMore.", "Add two numbers.", "Then stop. More."),
        ("Add two\nnumbers.\n\nMore.", "Add two numbers.", "More."),
        ("Add two numbers\n\nMore. Most.", "Add two numbers", "More. Most."),
        ("Add numbers, e.g. 1 and 2. More.", "Add numbers, e.g. 1 and 2.", "More."),
        ("Add the 1.5 to it. More.", "Add the 1.5 to it.", "More."),
        ("Add two numbers\n:param a: one", "Add two numbers", ":param a: one"),
        ("Add two numbers\nArgs:\n    a: one", "Add two numbers", "Args:\n    a: one"),
        (
            "Add two numbers\nParameters\n----------\na: one",
            "Add two numbers",
            "Parameters\n----------\na: one",
        ),
    ],
)
def test_summary_is_the_first_sentence(docstring: str, summary: str, rest: str) -> None:
    assert split_summary(docstring) == (summary, rest)


@pytest.mark.parametrize(
    "docstring", ["", "add(a, b) -> c\n\nAdd.", ">>> add(1)", "Title\n=====\n\nText.", "* a list"]
)
def test_what_begins_with_no_sentence_has_no_summary(docstring: str) -> None:
    assert split_summary(docstring) is None


def test_name_signature_summary_and_text() -> None:
    source = f'''
class Adder(Base):
    """Adds numbers to each other, quickly.

    {REST}
    """

    def __init__(self, start: int, *more, key=None, **rest): ...

    def add(self, number: int = 1) -> int:
        """Add one number to those before.

        {REST}
        """
'''
    assert _read(source) == [
        Documented(
            "pack.mod.Adder",
            "class Adder(start, *more, key, **rest)",
            "Adds numbers to each other, quickly.",
            REST,
        ),
        Documented(
            "pack.mod.Adder.add",
            "def add(self, number: int=1) -> int",
            "Add one number to those before.",
            REST,
        ),
    ]


def test_long_signature_is_names_alone() -> None:
    annotated = ", ".join(f"argument_{number}: dict[str, int] | None = None" for number in range(8))
    (documented,) = _read(
        _function(f"Do several things at once.\n\n    {REST}", f"async def f({annotated}):")
    )
    assert documented.signature == f"def f({', '.join(f'argument_{number}' for number in range(8))})"


@pytest.mark.parametrize(
    ("repeat", "left"),
    [
        ("Add one number to another.", ""),
        ("ADD ONE\n   number -- to another!", ""),
        ("Note: adds one number to another, fast.", "Note: fast."),
        ("Add one add one number to another number to another.", ""),
    ],
    ids=["same", "case and punctuation", "inside a sentence", "one in the other"],
)
def test_summary_that_comes_again_is_taken_out(repeat: str, left: str) -> None:
    text = without_repeats(repeat, "Add one number to another.")
    assert " ".join(text.split()) == left


@given(
    parts=st.lists(st.sampled_from(["add", "Adds", "one", "number", ".", "\n", "other"]), max_size=30),
    summary=st.lists(st.sampled_from(["Add", "one", "number"]), min_size=1, max_size=4),
)
def test_nothing_of_the_summary_is_left(parts: list[str], summary: list[str]) -> None:
    assert not says(without_repeats(" ".join(parts), " ".join(summary)), " ".join(summary))


def test_summary_that_stands_in_the_signature_is_left_out() -> None:
    head = "def f(x='add one number to another'):"
    left_out: Counter[str] = Counter()
    source = _function(f"Add one number to another.\n\n    {REST}", head)
    assert list(read_documented(source.encode(), "pack.mod", left_out)) == []
    assert left_out == {"summary in the signature": 1}


@pytest.mark.parametrize(
    ("docstring", "reason"),
    [
        (f"Add it all.\n\n    {REST}", "summary too short or too long"),
        (f"Add {'very ' * 40}much.\n\n    {REST}", "summary too short or too long"),
        (
            "Add one number to another.\n\n    Eleven words are not enough to be found by at all.",
            "too little text beside the summary",
        ),
        (
            "Add one number to another.\n\n    " + "Adds one number to another. " * 9,
            "too little text beside the summary",
        ),
        (f"f(x)\n\n    {REST}", "docstring without a summary"),
    ],
)
def test_what_cannot_be_asked_is_counted(docstring: str, reason: str) -> None:
    left_out: Counter[str] = Counter()
    assert list(read_documented(_function(docstring).encode(), "pack.mod", left_out)) == []
    assert left_out == {reason: 1}


def test_markup_is_taken_off() -> None:
    (documented,) = _read(
        _function(
            f"Return a :class:`~other.pack.Thing` for ``name`` or [`~a.Model`] again.\n\n    `x` is <b>. {REST}"
        )
    )
    assert documented.summary == "Return a Thing for name or Model again."
    assert documented.text == f"x is <b>. {REST}"


@pytest.mark.parametrize(
    "head",
    ["def _f(x):", "def test_f(x):", "class _F:", "def __call__(self):"],
)
def test_private_and_test_code_is_left_out(head: str) -> None:
    assert _read(_function(f"Add one number to another.\n\n    {REST}", head)) == []


def test_what_a_function_or_a_private_class_holds_is_left_out() -> None:
    inner = indent(_function(f"Add one number to another.\n\n    {REST}", "def inner(x):"), "    ")
    assert _read(f"def f():\n{inner}\nclass _F:\n{inner}") == []


def test_definitions_in_branches_are_found() -> None:
    one, two = (
        indent(_function(f"Add {name} number to another.\n\n    {REST}", f"def {name}(x):"), "    ")
        for name in ("one", "two")
    )
    names = [
        documented.name for documented in _read(f"try:\n{one}\nexcept ImportError:\n    pass\nelse:\n{two}")
    ]
    assert names == ["pack.mod.one", "pack.mod.two"]


def test_other_encoding_is_read_by_its_cookie() -> None:
    source = "# -*- coding: latin-1 -*-\n" + _function(f"Add one café to another.\n\n    {REST}")
    assert _read(source.encode("latin-1"))[0].summary == "Add one café to another."


@pytest.mark.parametrize(
    "source",
    [
        b"def f(:",
        b"x = '\xe9'",
        b"# -*- coding: nothing -*-\n",
        b"a\x00b",
        b"(" * 5000 + b")" * 5000,
        b"print 'two'",
    ],
    ids=["syntax", "utf-8", "cookie", "nul", "depth", "python 2"],
)
def test_source_that_does_not_parse_is_counted(source: bytes) -> None:
    left_out: Counter[str] = Counter()
    assert list(read_documented(source, "pack.mod", left_out)) == []
    assert left_out == {"source that does not parse": 1}


def test_half_a_surrogate_pair_is_left_out() -> None:
    assert _read(_function(f"Add one \\ud800 number to another.\n\n    {REST}")) == []
