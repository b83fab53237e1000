"""The documentation says what is so: links lead somewhere, commands are understood, code compiles, the README runs."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import documents
import pytest
from documents import PAGES, README, REST, ROOT
from tiny import tiny_model

from sourcier.cli import entry
from sourcier.cli.command import WrongUse
from sourcier.data.collections import read_beir
from sourcier.models.checkpoints import FAMILIES

BASE = "sentence-transformers/all-MiniLM-L6-v2"
#: What a command has to be given, which a line of the documentation may leave to the reader.
NEEDED = {
    "train": {"--base": "base", "--data": "data", "--output": "run"},
    "verify": {"--base": "base", "--data": "data"},
    "index": {"--data": "data", "--output": "index"},
}

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
on_every_page = pytest.mark.parametrize("page", TEXTS)


@on_every_page
def test_links_lead_to_files_and_headings(page: str) -> None:
    for link in documents.links(TEXTS[page]):
        name, _, anchor = link.partition("#")
        if "://" in name:
            continue
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: ({link}) leads nowhere"
        if anchor:
            known = documents.anchors(target.read_text(encoding="utf-8"))
            assert anchor in known, f"{page}: ({link}) leads to no heading; there are {sorted(known)}"


@on_every_page
def test_command_lines_are_understood(page: str) -> None:
    """By the parsers of the launcher and of the command; nothing is run."""
    for place in (documents.commands, documents.inline_commands):
        for line, words in place(TEXTS[page]):
            arguments = documents.arguments_of_sourcier(words)
            if arguments is not None:
                assert understood(arguments) is None, f"{page}:{line}: {understood(arguments)}"


def understood(arguments: list[str]) -> str | None:
    """What the command line has against arguments of the documentation."""
    failure = None
    for whole in completions(arguments):
        try:
            entry.read(whole)
        except WrongUse as error:
            failure = f"{shlex.join(whole)}: {error}"
        else:
            return None
    return failure


def completions(arguments: list[str]) -> Iterator[list[str]]:
    """The arguments with what the reader, a file or the run that is resumed adds: some family has to know them all."""
    given = [argument for argument in arguments if argument != REST]
    named = {argument.split("=")[0] for argument in given}
    if not {REST, "--resume", "--config"} & set(arguments):
        yield given
        return
    needed = NEEDED.get(arguments[0], {})
    added = [word for flag, value in needed.items() if flag not in named for word in (flag, value)]
    if arguments[0] not in ("train", "verify") or "--family" in named:
        yield given + added
        return
    for family in FAMILIES:
        yield [*given, *added, "--family", family]


@pytest.mark.parametrize(
    "command",
    [
        "sourcier train --family splade --base B --data D --output R",
        "sourcier train --family splade \\\n  --base B --data D --output R",
        "RUN=R\nOMP_NUM_THREADS=1 sourcier train --family splade --base B --data D --output $RUN  # a comment",
        "sourcier train --family splade --base B --data D --output R 2> log | tee out",
        "python -m sourcier train --family splade --base B --data D --output R",
        "torchrun --nproc_per_node 2 -m sourcier train --family splade --base B --data D --output R",
        "accelerate launch --multi_gpu -m sourcier train --family splade --base B --data D --output R",
    ],
)
def test_a_command_is_found_however_it_is_written(command: str) -> None:
    page = f"Some words.\n\n```bash\n{command}\n```\n"
    found = [documents.arguments_of_sourcier(words) for _, words in documents.commands(page)]
    (arguments,) = [part for part in found if part]
    assert shlex.join(arguments) == "train --family splade --base B --data D --output R"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("trian --data D", "did you mean 'train'?"),
        ("train … --chunks 8", "did you mean '--chunk'?"),
        ("index build --data D", "required: output"),
        ("train --family dense … --query-terms 9", "unknown option '--query-terms'"),
    ],
)
def test_a_command_that_is_wrong_is_seen(command: str, message: str) -> None:
    assert message in (understood(command.split()) or "")


@on_every_page
def test_python_compiles_and_its_names_are_there(page: str) -> None:
    for block in documents.blocks(TEXTS[page]):
        if block.language in ("python", "py"):
            where = f"{page}:{block.line}"
            tree = ast.parse(block.text, filename=where)
            for name in names_of_sourcier(tree):
                assert is_there(name), f"{where}: there is no {name}"


def names_of_sourcier(tree: ast.AST) -> Iterator[str]:
    """What code imports of Sourcier, and what it takes from `sourcier` itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "sourcier")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sourcier":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"sourcier(\.\w+)+", ast.unparse(node)):
            yield ast.unparse(node)


def is_there(name: str) -> bool:
    """Whether a module, or what it holds under the rest of the name, can be imported."""
    module, names = import_module("sourcier"), name.split(".")[1:]
    path = "sourcier"
    found: object = module
    for part in names:
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = import_module(path)
            except ModuleNotFoundError:
                return False
    return True


def test_pairs_become_a_folder_to_evaluate_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = (
        block.text for block in documents.blocks(TEXTS["docs/data.md"]) if "write_beir" in block.text
    )
    (tmp_path / "pairs.tsv").write_text("".join(f"question {n}\tanswer {n // 2}\n" for n in range(20)))
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "docs/data.md", "exec"), {})
    made = {split: read_beir("my-data", split) for split in ("train", "dev", "test")}
    assert {split: len(one.queries) for split, one in made.items()} == {"train": 16, "dev": 2, "test": 2}
    assert made["dev"].qrels == {"q0": {"d0": 1}, "q10": {"d5": 1}}
    assert len(made["dev"].corpus) == 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to type the lines in: what they name as a hub id is a folder in it."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / BASE).parent.mkdir()
    tiny_model("bert", folder / BASE)
    return folder


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


@pytest.mark.slow
def test_the_lines_of_the_readme(folder: Path) -> None:
    """Every one that needs no network, in their order, since each works on what the ones before left. (Hazard D4.)"""
    text = README.read_text(encoding="utf-8")
    python = [sys.executable, "-m", "sourcier"]
    for _, (program, *arguments) in documents.commands(documents.section(text, "From the command line")):
        assert program == "sourcier"
        run(folder, *python, *arguments, *(["--limit", "60"] if arguments[0] == "corpus" else []))

    (script,) = documents.blocks(documents.section(text, "From Python"))
    (folder / "script.py").write_text(script.text)
    run(folder, sys.executable, "script.py")

    output = "run"
    for _, line in documents.commands(documents.section(text, "Training")):
        if line[0] == "torchrun":
            line[:1] = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        else:
            assert line[0] == "sourcier"
            line[:1] = python
        if REST in line:
            # What a line does not name; a resumed run goes on in the folder of the line before.
            output = output if "--resume" in line else f"{output}-next"
            place = line.index(REST)
            what = {"--family": "colbert", "--base": BASE, "--data": "docs", "--output": output}
            line[place : place + 1] = [word for pair in what.items() for word in pair]
        run(folder, *line)
