"""Makes a collection of the Python documentation that is installed on this machine, for training and trying out.

Each public function, method and class with a docstring of some length gives a document (its qualified name as title;
its signature and the docstring without the summary as text) and a query, its summary. A package is in one split only,
so that dev and test hold packages that training has not seen. Sources are parsed, never imported.

What is said of two things cannot be asked: where two summaries or two texts are the same, both things are left out.
Tests, vendored and private code are left out by the names of their folders and files.

All order comes from digests of names, never from the file system, so that the same packages give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sourcier.config import unknown
from sourcier.data.collections import Query, write_beir
from sourcier.data.docstrings import Documented, read_documented, words
from sourcier.types import Document, SourcierError

SPLITS = ("train", "dev", "test")
SHARES = {"train": 0.7, "dev": 0.1, "test": 0.2}
#: Installers and this package itself, which nobody looks things up in here, and pytorch-lightning, whose modules
#: `lightning` holds too: the two in different splits would show to training what test asks for.
NOT_BY_DEFAULT = frozenset(("pip", "setuptools", "wheel", "sourcier", "pytorch-lightning"))
OTHER_CODE = re.compile(
    r"tests?|testsuite|conftest|test_.*|.*_tests?|vendor|vendored|third_?party|externs?|externals?|benchmarks?|examples?|docs?",
    re.IGNORECASE,
)
#: Documents of a package come in the order of a digest within so many files, which are read when they are needed.
FILES_AT_A_TIME = 25


@dataclass(frozen=True, slots=True)
class PythonCorpus:
    """What was written where: documents of each package by split, and what was left out, by reason."""

    folder: Path
    splits: Mapping[str, Mapping[str, int]]
    left_out: Mapping[str, int]

    def __str__(self) -> str:
        def listed(split: str) -> str:
            packages = self.splits[split]
            return f"{split} {sum(packages.values()):,} ({', '.join(sorted(packages, key=str.lower))})"

        total = sum(sum(packages.values()) for packages in self.splits.values())
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.left_out.items()))
        splits = "; ".join(map(listed, SPLITS))
        return f"{total:,} documents in {self.folder}: {splits}; left out: {left_out or 'nothing'}"


@dataclass(slots=True)
class _Package:
    """An installed distribution, and its public modules: their names and files."""

    name: str
    modules: dict[str, Path]


@dataclass(slots=True)
class _Selection:
    """The documents chosen so far, by qualified name, with their packages, and who said what."""

    chosen: dict[str, tuple[str, Documented]] = field(default_factory=dict)
    said_by: dict[tuple[str, ...], str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def offer(self, package: str, documented: Documented) -> None:
        """Choose this one, unless it says what another said: then neither is left in."""
        if documented.name in self.chosen:
            self.left_out["second definition of a name"] += 1
            return
        sayings = [("summary", *words(documented.summary)), ("text", *words(documented.text))]
        others = [self.said_by[saying] for saying in sayings if saying in self.said_by]
        for saying in sayings:
            self.said_by.setdefault(saying, documented.name)
        if others:
            removed = [self.chosen.pop(other, None) for other in others]
            self.left_out["same summary or text twice"] += 1 + sum(one is not None for one in removed)
        else:
            self.chosen[documented.name] = (package, documented)


def write_python_corpus(
    out: str | Path,
    packages: Sequence[str] | None = None,
    limit: int | None = 3000,
    *,
    dev: Sequence[str] = (),
    test: Sequence[str] = (),
) -> PythonCorpus:
    """Write the documentation of installed packages as a BEIR folder with the splits train, dev and test.

    `packages` are names of distributions or of what they let import (default: all that are installed); `limit` is the
    greatest number of documents, to which each package gives as evenly as it can. Packages are dealt to the splits
    70 : 10 : 20 by documents, unless `dev` and `test` name theirs. Fewer than three packages are dealt by subpackage.
    """
    left_out: Counter[str] = Counter()
    names = None if packages is None else _resolve(packages)
    chosen = _choose(_installed(names, left_out), limit, left_out)
    by_package = Counter(package for package, _ in chosen)
    whole = len(by_package) >= len(SPLITS) or bool(dev or test)
    units = [package if whole else _subpackage(documented.name) for package, documented in chosen]
    split_of = _deal(Counter(units), {"dev": _resolve(dev), "test": _resolve(test)})
    qrels: dict[str, dict[str, dict[str, int]]] = {split: {} for split in SPLITS}
    for unit, (_, documented) in zip(units, chosen, strict=True):
        qrels[split_of[unit]][_query_id(documented)] = {documented.name: 1}
    write_beir(
        out,
        (_document(package, documented) for package, documented in chosen),
        (Query(_query_id(one), one.summary, (one.name,)) for _, one in chosen),
        qrels,
    )
    counts = {split: Counter(unit for unit in units if split_of[unit] == split) for split in SPLITS}
    return PythonCorpus(Path(out), counts, left_out)


def _choose(
    packages: Sequence[_Package], limit: int | None, left_out: Counter[str]
) -> list[tuple[str, Documented]]:
    """Documents of the packages in turn until there are enough, in the order of their names."""
    selection = _Selection(left_out=left_out)
    streams = {package.name: _documented(package, left_out) for package in packages}
    while streams and not (limit and len(selection.chosen) >= limit):
        for name, stream in list(streams.items()):
            documented = next(stream, None)
            if documented is None:
                del streams[name]
            else:
                selection.offer(name, documented)
            if limit and len(selection.chosen) >= limit:
                break
    return [selection.chosen[name] for name in sorted(selection.chosen)]


def _documented(package: _Package, left_out: Counter[str]) -> Iterator[Documented]:
    """What is documented in a package, mixed, and read a few files at a time."""
    modules = sorted(package.modules, key=_digest)
    for start in range(0, len(modules), FILES_AT_A_TIME):
        found: list[Documented] = []
        for module in modules[start : start + FILES_AT_A_TIME]:
            try:
                source = package.modules[module].read_bytes()
            except OSError:
                left_out["source that cannot be read"] += 1
                continue
            found.extend(read_documented(source, module, left_out))
        yield from sorted(found, key=lambda documented: _digest(documented.name))


def _installed(names: set[str] | None, left_out: Counter[str]) -> list[_Package]:
    """The distributions of these names (all but a few where there are none), in the order of their digests."""
    found: dict[str, _Package] = {}
    for distribution in _distributions():
        name = _normalised(distribution.name)
        wanted = name not in NOT_BY_DEFAULT if names is None else name in names
        if wanted and name not in found:
            found[name] = _Package(distribution.name, _modules(distribution))
    return sorted(found.values(), key=lambda package: _digest(package.name))


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """What is installed; folders that an installer left behind have no name, and are passed over."""
    return (one for one in importlib.metadata.distributions() if "Name" in one.metadata)


def _modules(distribution: importlib.metadata.Distribution) -> dict[str, Path]:
    """The public modules of a distribution, as it lists its files."""
    modules: dict[str, Path] = {}
    for file in distribution.files or []:
        parts = list(file.with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if file.suffix == ".py" and parts and all(map(_is_public, parts)):
            modules[".".join(parts)] = Path(str(distribution.locate_file(file)))
    return modules


def _is_public(part: str) -> bool:
    return part.isidentifier() and not part.startswith("_") and not OTHER_CODE.fullmatch(part)


def _resolve(names: Sequence[str]) -> set[str]:
    """Distributions that go by these names, or that let something of these names be imported."""
    if not names:
        return set()  # and spare the look through all that is installed
    installed = {_normalised(distribution.name) for distribution in _distributions()}
    importable = importlib.metadata.packages_distributions()
    resolved: set[str] = set()
    for name in names:
        if _normalised(name) in installed:
            resolved.add(_normalised(name))
        elif name in importable:
            resolved.update(map(_normalised, importable[name]))
        else:
            raise SourcierError(unknown("package", name, installed | set(importable)))
    return resolved


def _deal(sizes: Mapping[str, int], named: Mapping[str, set[str]]) -> dict[str, str]:
    """The split of each package: the named ones as told; of the others the largest first, to whom most is missing."""
    if both := sorted(named["dev"] & named["test"]):
        raise SourcierError(f"package '{both[0]}': is named for dev and for test; name it once")
    if any(named.values()):
        told = {package: split for split in ("dev", "test") for package in named[split]}
        return {package: told.get(_normalised(package), "train") for package in sizes}
    if len(sizes) < len(SPLITS):
        found = ", ".join(sizes) or "nothing"
        raise SourcierError(
            f"documentation of {found}: is too little for three splits; name more packages, or install some"
        )
    missing = {split: share * sum(sizes.values()) for split, share in SHARES.items()}
    split_of: dict[str, str] = {}
    for package in sorted(sizes, key=lambda name: (-sizes[name], _digest(name))):
        split = max(SPLITS, key=lambda one: missing[one])
        split_of[package] = split
        missing[split] -= sizes[package]
    for split in SPLITS:
        if split not in split_of.values():
            giver, _ = Counter(split_of.values()).most_common(1)[0]
            smallest = min((sizes[name], _digest(name), name) for name in sizes if split_of[name] == giver)
            split_of[smallest[-1]] = split
    return split_of


def _subpackage(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _document(package: str, documented: Documented) -> Document:
    text = f"{documented.signature}\n\n{documented.text}"
    return Document(documented.name, text, documented.name, {"package": package})


def _query_id(documented: Documented) -> str:
    return f"q/{documented.name}"


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
