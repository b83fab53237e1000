"""Lines of files: what ends a line, what a fault says, and what a lenient reader counts."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sourcier.data.lines import ReadReport, read_jsonl, read_lines, write_lines
from sourcier.types import DataError


def _texts(path: Path, *, lenient: bool = False) -> list[tuple[int, str]]:
    return list(read_lines(path, ReadReport(lenient)))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a\nb\n", [(1, "a"), (2, "b")]),
        (b"a\nb", [(1, "a"), (2, "b")]),
        (b"\xef\xbb\xbfa\n", [(1, "a")]),
        (b"a\r\n\r\nb\r\n", [(1, "a"), (3, "b")]),
        (b"\n\na\n\n", [(3, "a")]),
        ("a\u2028b\x0cc\x85d\re\n".encode(), [(1, "a\u2028b\x0cc\x85d\re")]),
        (b"", []),
    ],
    ids=["plain", "no end", "byte order mark", "crlf and blank", "blank", "other separators", "empty file"],
)
def test_lines_end_at_newlines_alone(tmp_path: Path, raw: bytes, expected: list[tuple[int, str]]) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(raw)
    assert _texts(path) == expected


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    assert _texts(path) == [(1, "a"), (2, "b")]


def test_gzip_that_is_not_named_so(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with pytest.raises(
        DataError, match=r"f\.txt:1: .* is not UTF-8; it looks like gzip: end its name in \.gz"
    ):
        _texts(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.txt: there is no such file; "):
        _texts(tmp_path / "nothing.txt")


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r": cannot be read \(Is a directory\); "):
        _texts(tmp_path)


def test_plain_file_that_is_named_gz(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(b"a\n")
    with pytest.raises(DataError, match=r"f\.gz: is not a gzip file; "):
        _texts(path, lenient=True)


def test_invalid_utf8_names_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(b"good\nb\xe9d\n")
    with pytest.raises(DataError, match=r"f\.txt:2: byte 2 of the line \(0xe9\) is not UTF-8; save"):
        _texts(path)


def _truncated(path: Path) -> int:
    """Write a gzip file that breaks off half way; the number of lines it should have had."""
    lines = [f"{number} {number * 7919 % 104729}" for number in range(5000)]
    whole = gzip.compress("\n".join(lines).encode())
    path.write_bytes(whole[: len(whole) // 2])
    return len(lines)


def test_truncated_gzip_names_the_line(tmp_path: Path) -> None:
    _truncated(tmp_path / "f.gz")
    with pytest.raises(DataError, match=r"f\.gz:[0-9]+: the gzip stream breaks off here .*; copy"):
        _texts(tmp_path / "f.gz")


def test_truncated_gzip_is_counted_when_lenient(tmp_path: Path) -> None:
    whole = _truncated(tmp_path / "f.gz")
    report = ReadReport(lenient=True)
    read = len(list(read_lines(tmp_path / "f.gz", report)))
    assert (0 < read < whole, dict(report.skipped)) == (True, {"damaged gzip": 1})


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 1,}',
        "{",
        "[1]",
        "3",
        "null",
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
        '{"a": 1} {"b": 2}',
        '{"a": NaN}',
    ],
    ids=["comma", "open", "list", "number", "null", "deep", "long number", "two objects", "not a number"],
)
def test_what_is_no_object_is_an_error_on_one_short_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        list(read_jsonl(path, ReadReport()))
    message = str(caught.value)
    assert message.startswith(f"{path}:2: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 250


@pytest.mark.parametrize(
    ("line", "key"),
    [('{"a": 1, "b": 2, "a": 3}', "a"), ('{"a": 1, "m": {"b": 1, "b": 1}}', "b")],
    ids=["of the line", "of an object in it"],
)
def test_key_that_stands_twice_is_named_with_its_line(tmp_path: Path, line: str, key: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        list(read_jsonl(path, ReadReport()))
    assert str(caught.value) == f'{path}:2: has the key "{key}" twice; keep one of them'


def test_report_is_one_line_with_a_total_and_a_count_for_each_reason(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": 1}\n{\n{\n3\n')
    report = ReadReport(lenient=True)
    report.read["objects"] = sum(1 for _ in read_jsonl(path, report))
    expected = f"1 objects; skipped 3: 2 broken JSON (first at {path}:2), 1 not an object (first at {path}:4)"
    assert str(report) == expected


def test_reports_add_up() -> None:
    one, two = ReadReport(), ReadReport()
    one.read["queries"], two.read["queries"] = 2, 3
    two.note("a:7", "repeated judgment")
    one.add(two)
    assert str(one) == "5 queries; noted 1: 1 repeated judgment (first at a:7)"


def test_written_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    def failing() -> object:
        yield "first"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_lines(tmp_path / "f.txt", failing())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
