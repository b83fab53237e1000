"""Settings: strict both ways, and the same after a round trip through YAML, JSON and flags."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourcier.config import add_arguments, from_dict, overrides, read_yaml, to_dict, write_json, write_yaml
from sourcier.types import SourcierError


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    rate: float = field(default=1e-4, metadata={"help": "how fast, in % of all"})
    steps: int = 10
    name: str = ""
    pooling: Literal["mean", "cls"] = "mean"
    limit: int | None = None
    frozen: bool = False
    depths: tuple[int, ...] = (10,)
    pair: tuple[int, float] = (1, 0.5)
    labels: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)
    inner: Inner = Inner()


@dataclass(frozen=True, kw_only=True)
class WithRequired:
    path: str


finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]))
settings = st.builds(
    Settings,
    rate=finite,
    steps=st.integers(),
    name=text,
    pooling=st.sampled_from(["mean", "cls"]),
    limit=st.none() | st.integers(),
    frozen=st.booleans(),
    depths=st.lists(st.integers()).map(tuple),
    pair=st.tuples(st.integers(), finite),
    labels=st.lists(text),
    notes=st.dictionaries(text, finite),
    inner=st.builds(Inner, width=st.integers()),
)


@given(settings)
def test_yaml_gives_back_what_it_was_given(tmp_path_factory: pytest.TempPathFactory, value: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.yaml"
    write_yaml(path, value)
    assert from_dict(Settings, read_yaml(path), where="settings.yaml") == value


@given(settings)
def test_json_gives_back_what_it_was_given(value: Settings) -> None:
    assert from_dict(Settings, json.loads(json.dumps(to_dict(value))), where="settings.json") == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rat": 1}, "run.yaml: unknown key 'rat': did you mean 'rate'?"),
        ({"inner": {"widht": 1}}, "run.yaml: inner: unknown key 'widht': did you mean 'width'?"),
        ({"pooling": "max"}, "run.yaml: 'pooling' must be 'mean' or 'cls', not 'max'"),
        ({"steps": "many"}, "run.yaml: 'steps' must be a whole number, not 'many'"),
        ({"steps": True}, "run.yaml: 'steps' must be a whole number, not True"),
        ({"rate": True}, "run.yaml: 'rate' must be a number, not True"),
        ({"rate": "fast"}, "run.yaml: 'rate' must be a number, not 'fast'"),
        ({"frozen": "no"}, "run.yaml: 'frozen' must be true or false, not 'no'"),
        ({"name": 3}, "run.yaml: 'name' must be a text, not 3"),
        ({"limit": "x"}, "run.yaml: 'limit' must be a whole number or none, not 'x'"),
        ({"depths": [1, "x"]}, "run.yaml: 'depths[1]' must be a whole number, not 'x'"),
        ({"depths": 3}, "run.yaml: 'depths' must be a list of a whole number, not 3"),
        ({"pair": [1]}, "run.yaml: 'pair' must be a list of 2 times a whole number, not [1]"),
        ({"notes": {"a": "b"}}, "run.yaml: 'notes.a' must be a number, not 'b'"),
        ({"inner": 3}, "run.yaml: 'inner' must be keys with values, not 3"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SourcierError) as caught:
        from_dict(Settings, values, where="run.yaml")
    assert str(caught.value) == message


def test_a_key_without_a_neighbour_lists_the_known_ones() -> None:
    with pytest.raises(SourcierError, match="unknown key 'zzz': known: width"):
        from_dict(Inner, {"zzz": 1}, where="x")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(SourcierError, match="x: missing key 'path': add it"):
        from_dict(WithRequired, {}, where="x")


def test_a_rate_without_a_dot_is_a_number(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-4 as a text."""
    (tmp_path / "run.yaml").write_text("rate: 1e-4\n")
    assert from_dict(Settings, read_yaml(tmp_path / "run.yaml"), where="run.yaml").rate == 1e-4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: [1\n", ":3: not valid YAML"),
        ("a: 1\na: 2\n", ":2: not valid YAML: key 'a' stands twice"),
        ("- 1\n", ": expected keys with values, found list"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(content)
    with pytest.raises(SourcierError) as caught:
        read_yaml(tmp_path / "run.yaml")
    assert str(caught.value).startswith(f"{tmp_path / 'run.yaml'}{message}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match=r"absent\.yaml: cannot be read"):
        read_yaml(tmp_path / "absent.yaml")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert read_yaml(tmp_path / "run.yaml") == {}


def test_writing_leaves_no_other_file(tmp_path: Path) -> None:
    write_json(tmp_path / "deep" / "a.json", {"a": 1})
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(SourcierError, match=f"^{path}: cannot be written"):
        write_json(path, {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def _given(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser, Settings, exclude=["name"])
    return overrides(parser.parse_args(arguments), Settings)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--rate", "1e-3"], {"rate": 1e-3}),
        (["--steps", "3", "--limit", "4"], {"steps": 3, "limit": 4}),
        (["--limit", "none"], {"limit": None}),
        (["--frozen"], {"frozen": True}),
        (["--no-frozen"], {"frozen": False}),
        (["--depths", "5, 10", "--labels", "a,b"], {"depths": (5, 10), "labels": ["a", "b"]}),
        (["--pair", "2,0.25"], {"pair": (2, 0.25)}),
    ],
)
def test_only_flags_that_are_given_override(arguments: list[str], expected: dict[str, Any]) -> None:
    assert _given(*arguments) == expected


def test_a_flag_of_the_wrong_type_is_named() -> None:
    with pytest.raises(SourcierError, match="command line: '--steps' must be a whole number, not 'few'"):
        _given("--steps", "few")


def test_help_tells_purpose_and_default() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, Settings)
    assert "how fast, in % of all (default: 0.0001)" in " ".join(parser.format_help().split())


def test_a_prefix_keeps_equal_names_apart() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, Inner)
    add_arguments(parser, Inner, prefix="other_")
    given = parser.parse_args(["--width", "2", "--other-width", "3"])
    assert overrides(given, Inner) == {"width": 2}
    assert overrides(given, Inner, prefix="other_") == {"width": 3}


def test_nested_settings_have_no_flag() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, Settings)
    assert "--inner" not in parser.format_help()
