"""Settings as dataclasses: to and from YAML, JSON and command-line flags, strictly.

A field may be an int, float, str, bool, path, `Literal`, `None` or a union of these, a list, tuple or dict of these, or
another dataclass. An unknown key and a value of the wrong type are errors that name the key and the mend.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import types
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from sourcier.ranges import Range
from sourcier.types import NotWritten, SourcierError

T = TypeVar("T")


def setting(default: Any, text: str, **bounds: Any) -> Any:
    """A field of a configuration with its line of help and the bounds of its numbers: the fields of a `Range`.

    With `MISSING` of `dataclasses` as its default it has to be given. `ranges.check_ranges` keeps to the bounds.
    """
    return field(default=default, metadata={"help": text, "range": Range(**bounds)})


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as a dictionary that YAML and JSON can hold; nested dataclasses too."""
    return {item.name: _plain(getattr(config, item.name)) for item in fields(config) if item.init}


def from_dict(cls: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """A dataclass from such a dictionary; `where` names the file (or section of it) in errors."""
    if not isinstance(values, Mapping):
        raise SourcierError(f"{where}: expected keys with values, found {values!r}")
    hints = _init_hints(cls)
    for key in values:
        if key not in hints:
            raise SourcierError(f"{where}: {unknown('key', str(key), hints)}")
    missing = [name for name in _required(cls) if name not in values]
    if missing:
        raise SourcierError(f"{where}: missing key '{missing[0]}': add it")
    converted = {key: _convert(hints[key], value, where, key) for key, value in values.items()}
    try:
        return cls(**converted)
    except SourcierError as error:  # of its __post_init__, which does not know where the values stand
        raise SourcierError(f"{where}: {error}") from error


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys and values of a YAML file; a key that stands twice is an error."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SourcierError(f"{path}: cannot be read: {error}") from error
    try:
        values = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SourcierError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise SourcierError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SourcierError(f"{path}: expected keys with values, found {type(values).__name__}")
    return values


def write_yaml(path: str | os.PathLike[str], values: Any) -> None:
    """Write a dictionary or dataclass as YAML, in the order of its keys."""
    plain = to_dict(values) if is_dataclass(values) else values
    replace_text(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def write_json(path: str | os.PathLike[str], values: Any) -> None:
    """Write a dictionary or dataclass as JSON."""
    plain = to_dict(values) if is_dataclass(values) else values
    replace_text(path, json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file whole or not at all: under another name first, then renamed into place."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:  # which may name the unfinished file, or none
        raise NotWritten(
            f"{path}: cannot be written ({error.strerror}): check the path, its permissions and the disk"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def add_arguments(parser: Any, cls: type, *, exclude: Collection[str] = (), prefix: str = "") -> None:
    """Add one flag a field of `cls` to an argparse-like parser or group; only those that are given count (`overrides`).

    A list or tuple is given separated by commas. Nested dataclasses and dicts have no flag: a file sets them.
    `prefix`, such as `remine_`, comes before the name of each field.
    """
    hints = _init_hints(cls)
    for item in fields(cls):
        hint = hints.get(item.name)
        if hint is None or item.name in exclude or not _has_flag(hint):
            continue
        flag = _flag(prefix + item.name)
        text = _help(item)
        if bool in _members(hint):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            parser.add_argument(flag, type=str, default=None, metavar=_metavar(hint), help=text)


def overrides(namespace: Any, cls: type, *, prefix: str = "") -> dict[str, Any]:
    """The fields of `cls` that were given as flags, converted to the types of the fields."""
    hints = _init_hints(cls)
    given = {name: getattr(namespace, prefix + name, None) for name in hints}
    return {
        name: _convert(hints[name], _from_text(hints[name], value), "command line", _flag(prefix + name))
        for name, value in given.items()
        if value is not None
    }


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not known: the nearest known one, or all where none is near."""
    names = {one.casefold(): one for one in known}
    nearest = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.5)
    mend = (
        f"did you mean '{names[nearest[0]]}'?" if nearest else f"known: {', '.join(sorted(names.values()))}"
    )
    return f"unknown {kind} '{name}': {mend}"


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader to which a repeated key is an error instead of the last one winning in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, str(key_node.value))
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key '{key[1]}' stands twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _init_hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in fields(cls) if item.init}


def _required(cls: type) -> list[str]:
    return [
        item.name
        for item in fields(cls)
        if item.init and item.default is MISSING and item.default_factory is MISSING
    ]


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union; a type that is no union is its only alternative."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


_REFUSED = object()


def _convert(hint: Any, value: Any, where: str, key: str) -> Any:
    """`value` as the type `hint` asks for."""
    for member in _members(hint):
        converted = _convert_member(member, value, where, key)
        if converted is not _REFUSED:
            return converted
    raise SourcierError(f"{where}: '{key}' must be {_describe(hint)}, not {value!r}")


def _convert_member(hint: Any, value: Any, where: str, key: str) -> Any:
    """`value` as one alternative of a type, or `_REFUSED`."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if hint is None or hint is type(None):
        return None if value is None else _REFUSED
    if origin is Literal:
        # `True == 1`, so the type is compared too.
        same = [choice for choice in get_args(hint) if choice == value and type(choice) is type(value)]
        return same[0] if same else _REFUSED
    if is_dataclass(hint):
        if isinstance(value, Mapping):
            return from_dict(cast(type, hint), value, where=f"{where}: {key}")
        return value if isinstance(value, cast(type, hint)) else _REFUSED
    if origin in (list, tuple):
        return _convert_sequence(hint, value, where, key)
    if origin is dict:
        return _convert_dict(hint, value, where, key)
    return _convert_scalar(hint, value)


def _convert_sequence(hint: Any, value: Any, where: str, key: str) -> Any:
    if not isinstance(value, (list, tuple)):
        return _REFUSED
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list or (len(arguments) == 2 and arguments[1] is Ellipsis):
        item_hints = [arguments[0]] * len(value)
    elif len(arguments) == len(value):
        item_hints = list(arguments)
    else:
        return _REFUSED
    return origin(
        _convert(item_hint, item, where, f"{key}[{number}]")
        for number, (item_hint, item) in enumerate(zip(item_hints, value, strict=True))
    )


def _convert_dict(hint: Any, value: Any, where: str, key: str) -> Any:
    if not isinstance(value, Mapping):
        return _REFUSED
    key_hint, value_hint = get_args(hint)
    return {
        _convert(key_hint, name, where, key): _convert(value_hint, item, where, f"{key}.{name}")
        for name, item in value.items()
    }


def _convert_scalar(hint: Any, value: Any) -> Any:
    if hint is float:
        return _convert_float(value)
    if hint is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _REFUSED
    if hint is Path:
        return Path(value) if isinstance(value, (str, os.PathLike)) else _REFUSED
    return value if isinstance(value, hint) else _REFUSED


def _convert_float(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _REFUSED
    try:
        return float(value)  # a string too: YAML 1.1 reads 1e-4, without a dot, as one
    except (ValueError, OverflowError):
        return _REFUSED


def _from_text(hint: Any, value: Any) -> Any:
    """The text of a flag as what YAML would have made of it, where the field is no string."""
    if not isinstance(value, str):
        return value
    members = _members(hint)
    if type(None) in members and value == "none":
        return None
    for member in members:
        origin = get_origin(member)
        if origin in (list, tuple):
            item_hint = get_args(member)[0]
            return [_from_text(item_hint, item.strip()) for item in value.split(",") if item.strip()]
        if member is int or (origin is Literal and not all(isinstance(one, str) for one in get_args(member))):
            return _number(value)
    return value


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _has_flag(hint: Any) -> bool:
    members = [item for member in _members(hint) for item in (member, *get_args(member))]
    return not any(is_dataclass(member) or get_origin(member) is dict for member in members)


def _help(item: Any) -> str:
    text = str(item.metadata.get("help", item.name.replace("_", " ")))
    if item.default is not MISSING and item.default is not None:
        default = ",".join(map(str, item.default)) if isinstance(item.default, tuple) else item.default
        text += f" (default: {default})" if default != "" else ""
    return text.replace("%", "%%")


def _metavar(hint: Any) -> str:
    return "|".join(_names(hint)).upper() if not _choices(hint) else "{" + ",".join(_choices(hint)) + "}"


def _names(hint: Any) -> list[str]:
    """Short names of the alternatives, without None: `int`, `a,b` for a sequence."""
    named = []
    for member in _members(hint):
        if get_origin(member) in (list, tuple):
            named.append(f"{'|'.join(_names(get_args(member)[0]))},…")
        elif member is not type(None):
            named.append(getattr(member, "__name__", str(member)).lower())
    return named


def _choices(hint: Any) -> list[str]:
    literals = [member for member in _members(hint) if get_origin(member) is Literal]
    return [str(choice) for member in literals for choice in get_args(member)]


_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


def _describe(hint: Any) -> str:
    """A type in words, for an error."""
    return " or ".join(_describe_member(member) for member in _members(hint))


def _describe_member(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if origin in (list, tuple):
        items = get_args(hint)
        count = f"{len(items)} times " if origin is tuple and Ellipsis not in items else ""
        return f"a list of {count}{_describe(items[0])}"
    if hint is type(None):
        return "none"
    if is_dataclass(hint) or origin is dict:
        return "keys with values"
    return _WORDS.get(hint, str(hint))
