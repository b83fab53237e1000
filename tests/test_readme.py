"""Every line of the README that needs no network runs, with a tiny base where it names one. (Hazard D4.)"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_model

README = Path(__file__).resolve().parents[1] / "README.md"
BASE = "sentence-transformers/all-MiniLM-L6-v2"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to type the lines in: what they name as a hub id is a folder in it."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / BASE).parent.mkdir()
    tiny_model("bert", folder / BASE)
    return folder


def section(title: str) -> str:
    return re.split(r"^## ", README.read_text(encoding="utf-8").split(f"## {title}\n")[1], flags=re.M)[0]


def block(title: str) -> str:
    return re.search(r"^```\w*\n(.*?)^```", section(title), flags=re.M | re.S)[1]  # type: ignore[index]


def lines(title: str) -> list[list[str]]:
    """The commands of a block, as a shell would part them."""
    return [shlex.split(line, comments=True) for line in block(title).splitlines()]


def run(folder: Path, *command: str) -> None:
    finished = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, f"{shlex.join(command)}\n{finished.stderr[-3000:]}"


def sourcier(folder: Path, *arguments: str) -> None:
    run(folder, sys.executable, "-m", "sourcier", *arguments)


def test_the_lines_of_the_readme(folder: Path) -> None:
    """In their order, since each works on what the ones before left."""
    for program, *arguments in lines("From the command line"):
        assert program == "sourcier"
        sourcier(folder, *arguments, *(["--limit", "60"] if arguments[0] == "corpus" else []))

    (folder / "script.py").write_text(block("From Python"))
    run(folder, sys.executable, "script.py")

    output = "run"
    for line in lines("Training"):
        if line[0] == "torchrun":
            line[:1] = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        else:
            assert line[0] == "sourcier"
            line[:1] = [sys.executable, "-m", "sourcier"]
        if "…" in line:
            # What a line does not name; a resumed run goes on in the folder of the line before.
            output = output if "--resume" in line else f"{output}-next"
            place = line.index("…")
            line[place : place + 1] = [
                "--family",
                "colbert",
                "--base",
                BASE,
                "--data",
                "docs",
                "--output",
                output,
            ]
        run(folder, *line)
