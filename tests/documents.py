"""What a page of the documentation holds: fenced blocks, the command lines in them, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]

#: Languages of blocks that are typed into a shell; a block without one may hold commands and what they print.
_SHELL = ("", "bash", "sh", "shell", "console")
_ENDS_A_COMMAND = {"|", "||", "&&", ";", "&"}
#: What stands in documentation for options that the reader fills in.
REST = "…"


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line at which its text begins, counted from 1."""

    language: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, without the indentation that they have in a list."""
    found: list[Block] = []
    fence, inside = None, []
    for number, line in enumerate(text.splitlines(), start=1):
        opening = re.match(r"( *)(`{3,}|~{3,}) *(\w*)", line)
        if fence is None and opening:
            fence, inside, start = opening, [], number + 1
        elif fence is not None and line.strip() == fence[2]:
            found.append(Block(fence[3], "".join(f"{row}\n" for row in inside), start))
            fence = None
        elif fence is not None:
            inside.append(line.removeprefix(fence[1]))
    assert fence is None, f"the block of line {start - 1} has no end"
    return found


def prose(text: str) -> str:
    """A page without its fenced blocks; the others keep their lines."""
    return re.sub(
        r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S
    )


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level."""
    return re.split(r"^## ", text.split(f"## {title}\n")[1], flags=re.M)[0]


def links(text: str) -> list[str]:
    """Where the links of a page lead."""
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(text)))


def anchors(text: str) -> set[str]:
    """The names by which links reach the headings of a page, as GitHub makes them."""
    names: dict[str, int] = {}
    found = set()
    for title in re.findall(r"^#+ +(.*?) *#*$", prose(text), flags=re.M):
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = names.get(name, 0)
        names[name] = count + 1
        found.add(f"{name}-{count}" if count else name)
    return found


def commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each command that is typed in the shell blocks of a page, and its line."""
    for block in blocks(text):
        if block.language in _SHELL:
            for offset, words in typed(block.text):
                yield block.line + offset, words


def inline_commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """The same for commands with options that stand in the prose."""
    for number, line in enumerate(prose(text).splitlines(), start=1):
        for span in re.findall(r"`([^`]+)`", line):
            # A bar in a table is written with a backslash.
            if " " in span and (REST in span or " --" in span):
                yield from ((number, words) for _, words in typed(span.replace("\\|", "|")))


def typed(script: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each command of a script, as a shell would part them, and the number of its line from 0.

    Variables have the values that the script gives them; others, and what a command in `$(…)` prints, are 1.
    """
    variables: dict[str, str] = {}
    number = 0
    for line in re.sub(r"\\\n", "\0", script).splitlines():
        start, number = number, number + 1 + line.count("\0")
        line = re.sub(r"\$\([^)]*\)", "1", line.replace("\0", " ").removeprefix("$ "))
        if "sourcier" not in line and "=" not in line:
            continue
        for words in _parted(line):
            words = [re.sub(r"\$\{?(\w+)\}?", lambda m: variables.get(m[1], "1"), word) for word in words]
            while words and re.fullmatch(r"\w+=.*", words[0]):
                name, value = words.pop(0).split("=", 1)
                variables[name] = value
            if words:
                yield start, words


def _parted(line: str) -> Iterator[list[str]]:
    """The commands of one line: parted by pipes and the like, without redirections and comments."""
    lexer = shlex.shlex(re.sub(r"(?<=\s)\d(?=[<>])", "", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in lexer:
        if redirected:
            redirected = False
        elif word in _ENDS_A_COMMAND:
            yield words
            words = []
        elif set(word) <= set("<>&"):
            redirected = True
        else:
            words.append(word)
    yield words


def arguments_of_sourcier(words: Sequence[str]) -> list[str] | None:
    """What a command gives to Sourcier, started by itself, by Python or by a launcher; None for other programs."""
    program, *rest = words
    if program == "srun":
        return arguments_of_sourcier(rest)
    if program == "sourcier":
        return rest
    if re.fullmatch(r"python[\d.]*", program):
        return rest[2:] if rest[:2] == ["-m", "sourcier"] else None
    if program == "torchrun":
        return _launched("torchrun", rest)
    if [program, *rest[:1]] == ["accelerate", "launch"]:
        return _launched("accelerate", rest[1:])
    return None


def _launched(launcher: str, words: Sequence[str]) -> list[str] | None:
    """What a launcher gives to the module that it starts, by the launcher's own parser."""
    if launcher == "torchrun":
        from torch.distributed.run import get_args_parser as parser
    else:
        from accelerate.commands.launch import launch_command_parser as parser
    module = words.index("-m") if "-m" in words else 0
    parsed = parser().parse_args([word for place, word in enumerate(words) if place > module or word != REST])
    return list(parsed.training_script_args) if parsed.training_script == "sourcier" else None
