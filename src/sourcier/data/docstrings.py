"""Takes the documentation of functions, methods and classes out of Python source, without running it.

A docstring is parted into its summary, the first sentence, and the rest. The summary is meant to be asked as a query
whose answer is the rest, so wherever the rest says the summary again, those words are taken out.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

SUMMARY_WORDS = range(4, 41)
LEAST_WORDS = 12
LONGEST_SIGNATURE = 240

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

WORD = re.compile(r"[^\W_]+")
# Markup of reStructuredText and of Hugging Face: what it names stays, its last part where it begins with "~".
ROLE = re.compile(r":[a-z][\w:+.-]*:(?=`)")
BRACKETED = re.compile(r"\[(`[^`\n]+`)\](?!\()")
QUOTED = re.compile(r"(`+)(?P<what>[^`\n]+?)(?:\s*<[^<>`\n]+>)?\1_{0,2}")
# A sentence ends at a mark that whitespace and no small letter follows, if the mark does not end an abbreviation.
SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)[.!?](?=\s+[^\sa-z]|\s*$)")
# Lines that end the first paragraph though no blank line stands before them.
BLOCK = re.compile(
    r"\s*(:\w|@\w|>>>|\.\. |[-*+] |\d+[.)] |"
    r"(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?|usage|attributes)\s*:\s*$)",
    re.IGNORECASE,
)
UNDERLINE = re.compile(r"\s*([-=~^\"*#])\1{2,}\s*$")
CALL = re.compile(r"[\w.]+\(.*\)")


@dataclass(frozen=True, slots=True)
class Documented:
    """Something with a docstring that can be asked for: `text` is the docstring without its summary."""

    name: str
    signature: str
    summary: str
    text: str


def read_documented(source: bytes, module: str, left_out: Counter[str]) -> Iterator[Documented]:
    """What is public and documented in a module, in the order of the source; the others are counted by reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in the strings of others
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a wrong encoding is one of the first two
        left_out["source that does not parse"] += 1
        return
    for scope, node in _definitions(tree.body, module):
        docstring = ast.get_docstring(node)
        if not docstring:
            continue
        documented = _documented(f"{scope}.{node.name}", node, docstring)
        if isinstance(documented, str):
            left_out[documented] += 1
        else:
            yield documented


def words(text: str) -> list[str]:
    """The words of a text as they are compared: in small letters, without the s at the end."""
    return [_stem(found) for found in WORD.findall(text)]


def split_summary(docstring: str) -> tuple[str, str] | None:
    """The first sentence of a docstring, on one line, and the rest; None where it begins with something else."""
    lines = docstring.strip().splitlines()
    if not lines or BLOCK.match(lines[0]) or CALL.match(lines[0]) or not lines[0][0].isalnum():
        return None
    end = 1
    while end < len(lines) and lines[end].strip() and not BLOCK.match(lines[end]):
        if UNDERLINE.match(lines[end]):  # the line before is the title of a section
            end -= 1
            break
        end += 1
    paragraph = " ".join(line.strip() for line in lines[:end])
    if not paragraph:
        return None
    sentence_end = SENTENCE_END.search(paragraph)
    stop = sentence_end.end() if sentence_end else len(paragraph)
    rest = [paragraph[stop:].strip(), *lines[end:]]
    return paragraph[:stop].strip(), "\n".join(rest).strip()


def without_repeats(text: str, summary: str) -> str:
    """The text without the places that say the summary again, whatever their case and punctuation."""
    sought = words(summary)
    while sought:
        found = list(WORD.finditer(text))
        stems = [_stem(word.group()) for word in found]
        start = _find(stems, sought)
        if start is None:
            break
        last = found[start + len(sought) - 1].end()
        text = text[: found[start].start()] + text[last:].lstrip(".!?;:,")
    return text


def says(text: str, summary: str) -> bool:
    """Whether the words of the summary stand in the text, one after another."""
    return _find(words(text), words(summary)) is not None


def _find(stems: list[str], sought: list[str]) -> int | None:
    length = len(sought)
    return next(
        (
            start
            for start, stem in enumerate(stems)
            if stem == sought[0] and stems[start : start + length] == sought
        ),
        None,
    )


def _stem(word: str) -> str:
    word = word.casefold()
    return word.removesuffix("s") or word


def _definitions(body: list[ast.stmt], scope: str) -> Iterator[tuple[str, Definition]]:
    """Public functions, classes and methods with the name of what holds them; not what functions define inside."""
    for node in body:
        if isinstance(node, Definition):
            if node.name.startswith(("_", "test_")):
                continue
            yield scope, node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, f"{scope}.{node.name}")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            branches = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            branches += [handler.body for handler in getattr(node, "handlers", [])]
            for branch in branches:
                yield from _definitions(branch, scope)


def _documented(name: str, node: Definition, docstring: str) -> Documented | str:
    """The documentation of a definition, or why it is not used."""
    parts = split_summary(_plain(docstring))
    if parts is None:
        return "docstring without a summary"
    summary, rest = parts
    if len(words(summary)) not in SUMMARY_WORDS:
        return "summary too short or too long"
    text = re.sub(r"\n\s*\n\s*\n+", "\n\n", without_repeats(rest, summary)).strip()
    if len(words(text)) < LEAST_WORDS:
        return "too little text beside the summary"
    documented = Documented(name, _signature(node), summary, text)
    if says(f"{name} {documented.signature} {text}", summary):
        return "summary in the signature"
    try:
        f"{summary}{text}{documented.signature}".encode()
    except UnicodeEncodeError:
        return "broken Unicode"
    return documented


def _plain(docstring: str) -> str:
    """A docstring without the markup around names."""
    text = BRACKETED.sub(r"\1", ROLE.sub("", inspect.cleandoc(docstring)))
    return QUOTED.sub(_quoted_name, text)


def _quoted_name(match: re.Match[str]) -> str:
    what = match["what"].strip()
    return what.rpartition(".")[2] if what.startswith("~") and "." in what else what.lstrip("~")


def _signature(node: Definition) -> str:
    """How a thing is called; without annotations and defaults where it is long with them."""
    if isinstance(node, ast.ClassDef):
        built = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        return f"class {node.name}{_arguments(built[0].args, first=1) if built else ''}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"def {node.name}({ast.unparse(node.args)}){returns}"
    return whole if len(whole) <= LONGEST_SIGNATURE else f"def {node.name}{_arguments(node.args)}"


def _arguments(arguments: ast.arguments, first: int = 0) -> str:
    """The names of the arguments from the first on, in brackets."""
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args][first:]]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(names)})"
