"""The rooms of the house: imports run one way, files stay short, and only the command line prints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "sourcier"
FILES = sorted(SOURCE.rglob("*.py"))

# Rooms of one floor do not import each other; a room imports from the floors before its own. The modules of the first
# floor form one room.
FLOORS = [
    ["types", "encodings", "files", "ranges", "effects", "config"],
    ["kernels"],
    ["data", "models", "losses", "indexes", "eval"],
    ["retrieval"],
    ["train", "distributed"],
    ["rag"],
    ["cli"],
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
#: Names the public names of all rooms (lazily), and starts the command line.
ENTRANCES = {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_run_one_way(file: Path) -> None:
    relative = file.relative_to(SOURCE)
    if str(relative) in ENTRANCES:
        return
    room = relative.parts[0].removesuffix(".py")
    assert room in FLOOR_OF, f"{relative}: the room '{room}' stands on no floor"
    backward = [
        f"{relative}:{line} imports {other}"
        for line, other in _imported_rooms(file)
        if other != room and not _may_import(room, other)
    ]
    assert not backward


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_has_at_most_400_lines(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_only_the_command_line_prints(file: Path) -> None:
    if file.relative_to(SOURCE).parts[0].removesuffix(".py") == "cli":
        return
    calls = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.Call)]
    prints = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert not prints, f"{file.name}: print on lines {prints}"


def test_a_backward_import_is_found(tmp_path: Path) -> None:
    file = tmp_path / "dense.py"
    file.write_text("def search():\n    from sourcier.retrieval import retriever\n    import sourcier.cli\n")
    assert list(_imported_rooms(file)) == [(2, "retrieval"), (3, "cli")]
    assert not _may_import("indexes", "retrieval")
    assert not _may_import("indexes", "models")
    assert _may_import("retrieval", "indexes")


def _may_import(room: str, other: str) -> bool:
    return FLOOR_OF[other] < FLOOR_OF[room] or FLOOR_OF[other] == FLOOR_OF[room] == 0


def _imported_rooms(file: Path) -> Iterator[tuple[int, str]]:
    """Line and room of every import of our own, those inside functions and for type checkers too."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}:{node.lineno}: relative import; write it out"
            if node.module == "sourcier":
                yield from (
                    (node.lineno, alias.name) for alias in node.names if not alias.name.startswith("_")
                )
            elif node.module and node.module.startswith("sourcier."):
                yield node.lineno, node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name.split(".")[1])
                for alias in node.names
                if alias.name.startswith("sourcier.")
            )


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
