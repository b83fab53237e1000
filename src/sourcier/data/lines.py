"""Reads files line by line, and JSONL object by object, so that every fault has a place and a reason.

A line ends at `\\n` and nowhere else: U+2028, form feeds and lone carriage returns belong to the text. A byte order
mark, `\\r\\n` and blank lines are read over. A file whose name ends in `.gz` is unpacked.

A fault is an error `path:line: what is wrong; what to do`, or, for a lenient report, a counted skip.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from sourcier.types import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MARK = b"\x1f\x8b"
LONGEST_VALUE_SHOWN = 60


class LineFault(Exception):
    """What is wrong with one line: a reason to count it under, a sentence with the value, and the mend."""

    def __init__(self, reason: str, what: str, mend: str) -> None:
        super().__init__(f"{what}; {mend}")
        self.reason = reason


@dataclass(slots=True)
class ReadReport:
    """What was read, what was skipped and why, as counts; as a string it is one line.

    A strict report (the default) turns a fault into a `DataError`; a lenient one counts it.
    `noted` counts what is harmless, such as a judgment that is given twice; `first` is the first place of each reason.
    """

    lenient: bool = False
    read: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def fault(self, place: str, fault: LineFault) -> None:
        """Stop with an error at this place or, where the report is lenient, count the fault."""
        if not self.lenient:
            raise DataError(f"{place}: {fault}") from fault
        self.skipped[fault.reason] += 1
        self.first.setdefault(fault.reason, place)

    def note(self, place: str, reason: str) -> None:
        """Count something harmless."""
        self.noted[reason] += 1
        self.first.setdefault(reason, place)

    def add(self, other: ReadReport) -> None:
        """Take the counts of another report into this one."""
        self.read += other.read
        self.skipped += other.skipped
        self.noted += other.noted
        self.first = other.first | self.first

    def __str__(self) -> str:
        parts = [", ".join(f"{count:,} {what}" for what, count in self.read.items()) or "nothing read"]
        for word, counts in (("skipped", self.skipped), ("noted", self.noted)):
            if counts:
                reasons = (f"{count:,} {why} (first at {self.first[why]})" for why, count in counts.items())
                parts.append(f"{word} {counts.total():,}: {', '.join(reasons)}")
        return "; ".join(parts)


def read_lines(path: Path, report: ReadReport) -> Iterator[tuple[int, str]]:
    """Number and text of every line that is not blank, without its end."""
    with _open(path) as stream:
        number = 0
        while True:
            number += 1
            try:
                raw = stream.readline()
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                fault = LineFault(
                    "damaged gzip", f"the gzip stream breaks off here ({error})", "copy the file again"
                )
                return report.fault(f"{path}:{number}", fault)
            except OSError as error:
                raise DataError(
                    f"{path}:{number}: cannot be read ({error.strerror}); check the disk"
                ) from error
            if not raw:
                return
            if number == 1:
                raw = raw.removeprefix(BYTE_ORDER_MARK)
            if not raw.strip():
                continue
            try:
                yield number, raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                what = f"byte {error.start + 1} of the line (0x{error.object[error.start]:02x}) is not UTF-8"
                packed = number == 1 and raw.startswith(GZIP_MARK)
                mend = "it looks like gzip: end its name in .gz" if packed else "save the file as UTF-8"
                report.fault(f"{path}:{number}", LineFault("invalid UTF-8", what, mend))


def read_jsonl(path: Path, report: ReadReport) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line of a JSONL file."""
    for number, line in read_lines(path, report):
        try:
            yield number, _json_object(line)
        except LineFault as fault:
            report.fault(f"{path}:{number}", fault)


def is_named(path: Path, extension: str) -> bool:
    """Whether a file's name ends in this extension, packed or not."""
    return path.name.lower().removesuffix(".gz").endswith(extension)


def shown(value: object) -> str:
    """A value as JSON shows it, on one line and not too long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= LONGEST_VALUE_SHOWN else f"{text[:LONGEST_VALUE_SHOWN]}…"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a UTF-8 file of lines; it appears when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{line}\n" for line in lines)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _open(path: Path) -> IO[bytes]:
    try:
        with path.open("rb") as stream:
            begins_as_gzip = stream.read(len(GZIP_MARK)) == GZIP_MARK
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; check the path") from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error
    if path.suffix != ".gz":
        return path.open("rb")
    if not begins_as_gzip:
        raise DataError(f"{path}: is not a gzip file; pack it, or take .gz off its name")
    return cast(IO[bytes], gzip.open(path, "rb"))


def _refuse_constant(name: str) -> NoReturn:
    # Python's reader takes NaN and Infinity, which no other takes back.
    raise LineFault("broken JSON", f"holds {name}, which is not JSON", "write null or a number")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key stands twice: Python's reader would keep the last one without a word."""
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise LineFault("repeated key", f"has the key {shown(repeated)} twice", "keep one of them")
    return values


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated)


def _json_object(line: str) -> dict[str, Any]:
    try:
        value = _DECODER.decode(line)
    except json.JSONDecodeError as error:
        what = f"is not JSON ({error.msg}, column {error.colno})"
        raise LineFault("broken JSON", what, "write one JSON object on each line") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of thousands of digits; brackets of thousands of levels
        raise LineFault(
            "broken JSON", f"is JSON that cannot be read ({error})", "make the values simpler"
        ) from error
    if not isinstance(value, dict):
        raise LineFault(
            "not an object", f"is {shown(value)}", 'write one JSON object ({"key": value}) on each line'
        )
    return value
