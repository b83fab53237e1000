"""Training examples: a query, a text that answers it, texts that do not, and what a teacher thinks of them.

A JSONL file has one object on each line:

    {"query": "…", "positive": "…", "negatives": ["…", "…"], "scores": [9.1, 3.2, 0.4]}

`anchor` may stand for `query`; `negatives`, `negative`, and `negative_1`, `negative_2` … are each a text or a list of
texts, and may be left out, as may `scores`: the teacher's, of the positive and then of each negative. Other keys are
read over, unless they are likely slips of these. A TSV file has the columns query, positive and any number of
negatives, the same in every line. Columns of a Hugging Face dataset are named as the keys of JSONL are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from sourcier.data.collections import read_beir
from sourcier.data.columns import Columns, read_tsv
from sourcier.data.lines import LineFault, ReadReport, is_named, read_jsonl, shown, write_lines
from sourcier.data.values import check_unicode, read_text, refuse_slips
from sourcier.types import DataError, SourcierError, has_content

HUB_PREFIX = "hf:"
NEGATIVE_KEY = re.compile(r"negatives?|negative_[0-9]+")
MEANINGS = (("query", "anchor"), ("positive",), ("negative",), ("negatives",), ("scores",))
NUMBERED = re.compile(r".*?(?P<number>[0-9]+)")
MOST_NEGATIVES_IN_HEADER = 256


def _tsv_layout(width: int) -> tuple[str, ...]:
    if width < 2:
        mend = "write query, positive and negatives with tabs between them"
        raise LineFault("wrong number of columns", f"has {width} column", mend)
    return ("query", "positive", *(f"negative_{number}" for number in range(1, width - 1)))


COLUMNS = Columns(
    header={
        **dict.fromkeys(("query", "anchor"), "query"),
        **{key: key for key in ("positive", "negative")},
        **{key: key for key in (f"negative_{number}" for number in range(MOST_NEGATIVES_IN_HEADER))},
    },
    required={"query": "query", "positive": "positive"},
    layout=_tsv_layout,
    expected="query, positive and any of negative, negative_1, negative_2 …",
)
MIXTURE_PART = re.compile(r"\s*(?P<source>[^,]+?)\s*=\s*(?P<weight>[^,=]+?)\s*")


@dataclass(frozen=True, slots=True)
class Example:
    """A query with one relevant text; `scores` are a teacher's, of (positive, *negatives)."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[float, ...] | None = None


class Examples(Sequence[Example]):
    """Examples in memory, which know for each query all texts that are relevant to it."""

    def __init__(
        self, rows: Iterable[Example], *, name: str = "examples", report: ReadReport | None = None
    ) -> None:
        self.rows = list(rows)
        self.name = name
        self.report = report or ReadReport()
        if not self.rows:
            raise DataError(f"{name}: holds no example that can be used; check what it should be read from")

    @classmethod
    def from_beir(cls, folder: str | Path, split: str = "train", *, lenient: bool = False) -> Examples:
        """One example for each judgment above 0 of a split; a document without content is noted and left out."""
        collection = read_beir(folder, split, lenient=lenient)
        pairs = [
            (collection.queries[query].text, document)
            for query, judgments in collection.qrels.items()
            for document, grade in judgments.items()
            if grade > 0
        ]
        documents = collection.corpus.get(document for _, document in pairs)
        rows = []
        for query, document in pairs:
            if has_content(documents[document].content):
                rows.append(Example(query, documents[document].content))
            else:
                collection.report.note(
                    f"{folder}: document {shown(document)}", "relevant document without content"
                )
        return cls(rows, name=f"{folder} ({split})", report=collection.report)

    @classmethod
    def from_jsonl(cls, path: str | Path, *, lenient: bool = False) -> Examples:
        """Examples of a `.jsonl` file."""
        report = ReadReport(lenient)
        placed = ((f"{path}:{number}", record) for number, record in read_jsonl(Path(path), report))
        return cls(_parsed(placed, report), name=str(path), report=report)

    @classmethod
    def from_tsv(cls, path: str | Path, *, lenient: bool = False) -> Examples:
        """Examples of a `.tsv` file."""
        report = ReadReport(lenient)
        lines = read_tsv(Path(path), report, COLUMNS)
        return cls(
            _parsed(((f"{path}:{number}", record) for number, record in lines), report),
            name=str(path),
            report=report,
        )

    @classmethod
    def from_dataset(cls, source: Any, split: str = "train", *, lenient: bool = False) -> Examples:
        """Examples of a Hugging Face dataset: the object, a folder it was saved to, or `hf:NAME[:CONFIGURATION]`."""
        name = source if isinstance(source, str | Path) else type(source).__name__
        report = ReadReport(lenient)
        rows = _dataset_split(source, split, str(name))
        placed = ((f"{name}: row {number}", record) for number, record in enumerate(rows, start=1))
        return cls(_parsed(placed, report), name=str(name), report=report)

    @staticmethod
    def mix(parts: Sequence[tuple[Examples, float]], seed: int = 0) -> Examples:
        """Examples of several sources, of which an epoch draws by weight: see `Mixture`."""
        return Mixture(parts, seed)

    def relevant(self, index: int) -> frozenset[str]:
        """All texts that are known to be relevant to this example's query, its own positive included."""
        return frozenset(self.relevant_to(self.rows[index].query))

    def relevant_to(self, query: str) -> Sequence[str]:
        """All texts that are known to be relevant to a query, in the order of the examples."""
        return self._relevant.get(query, ())

    def draw(self, epoch: int) -> np.ndarray:
        """Which rows an epoch is made of, before they are shuffled: here, each row once."""
        return np.arange(len(self.rows))

    def to_jsonl(self, path: str | Path) -> None:
        """Write the examples as `from_jsonl` reads them."""
        write_lines(Path(path), (json.dumps(_record(row), ensure_ascii=False) for row in self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        return self.rows[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self.rows)

    @cached_property
    def _relevant(self) -> dict[str, list[str]]:
        relevant: dict[str, list[str]] = {}
        for row in self.rows:
            relevant.setdefault(row.query, []).append(row.positive)
        return relevant


class Mixture(Examples):
    """Several sources, one after another as a sequence, of which each epoch draws rows by weight.

    An epoch is as long as all sources together, and each source has its weight's share of it. A source goes on in the
    next epoch where it stopped in the last: a small one is repeated only when all of it was drawn, and of a large one
    everything is drawn in time. The draw depends on the seed and the epoch alone; `BatchSampler` asks for it.
    """

    def __init__(self, parts: Sequence[tuple[Examples, float]], seed: int = 0) -> None:
        for source, weight in parts:
            if isinstance(source, Mixture):
                raise SourcierError("a mixture cannot be mixed again; mix its sources with their own weights")
            if not (math.isfinite(weight) and weight > 0):
                raise SourcierError(f"{source.name}: its weight is {weight}; give a number above 0")
        report = ReadReport()
        for source, _ in parts:
            report.add(source.report)
        rows = (row for source, _ in parts for row in source.rows)
        super().__init__(rows, name=" + ".join(source.name for source, _ in parts), report=report)
        self.seed = seed
        self.sizes = [len(source) for source, _ in parts]
        self.shares = _shares(len(self.rows), [weight for _, weight in parts])

    def draw(self, epoch: int) -> np.ndarray:
        starts = np.cumsum([0, *self.sizes])
        drawn = [
            starts[number] + self._stream(number, size, epoch * share, (epoch + 1) * share)
            for number, (size, share) in enumerate(zip(self.sizes, self.shares, strict=True))
        ]
        return np.concatenate(drawn)

    def _stream(self, source: int, size: int, start: int, stop: int) -> np.ndarray:
        """Positions start to stop of an endless row of permutations of a source."""
        if start == stop:
            return np.empty(0, dtype=np.int64)
        first, last = start // size, (stop - 1) // size
        rounds = [
            np.random.default_rng((self.seed, source, turn)).permutation(size)
            for turn in range(first, last + 1)
        ]
        return np.concatenate(rounds)[start - first * size : stop - first * size]


def read_examples(spec: str, split: str = "train", *, lenient: bool = False, seed: int = 0) -> Examples:
    """Examples of a BEIR folder, a `.jsonl` or `.tsv` file, a saved dataset, `hf:NAME`, or a mixture `a=0.7,b=0.3`."""
    parts = [MIXTURE_PART.fullmatch(part) for part in spec.split(",")]
    if Path(spec).exists() or not any(parts):
        return _read_source(spec, split, lenient)
    mixed = []
    for part, text in zip(parts, spec.split(","), strict=True):
        if part is None:
            raise SourcierError(f"data '{spec}': '{text}' has no weight; write SOURCE=WEIGHT,SOURCE=WEIGHT")
        try:
            weight = float(part["weight"])
        except ValueError as error:
            raise SourcierError(f"data '{spec}': the weight '{part['weight']}' is not a number") from error
        mixed.append((_read_source(part["source"], split, lenient), weight))
    return Examples.mix(mixed, seed)


def _read_source(source: str, split: str, lenient: bool) -> Examples:
    path = Path(source)
    if source.startswith(HUB_PREFIX):
        return Examples.from_dataset(source, split, lenient=lenient)
    if not path.exists():
        raise DataError(f"{source}: there is no such file or folder; for a dataset of the hub write hf:NAME")
    if path.is_dir():
        saved = (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()
        read: Callable[..., Examples] = Examples.from_dataset if saved else Examples.from_beir
        return read(source, split, lenient=lenient)
    if is_named(path, ".jsonl"):
        return Examples.from_jsonl(path, lenient=lenient)
    if is_named(path, ".tsv"):
        return Examples.from_tsv(path, lenient=lenient)
    raise DataError(
        f"{source}: is of no known kind; name it .jsonl or .tsv (.gz may follow), or give a folder"
    )


def _dataset_split(source: Any, split: str, name: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a dataset, or of the split of a dictionary of them."""
    try:
        import datasets
    except ImportError as error:
        raise SourcierError(f"{name}: needs the package datasets; run: pip install datasets") from error
    if isinstance(source, str | Path):
        try:
            if name.startswith(HUB_PREFIX):
                repository, _, configuration = name.removeprefix(HUB_PREFIX).partition(":")
                return datasets.load_dataset(repository, configuration or None, split=split)
            source = datasets.load_from_disk(name)
        except (
            Exception
        ) as error:  # of many kinds: hub, network, files, configuration; all end in one line with the cause
            cause = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"{name}: cannot be loaded as a dataset, split '{split}' ({cause}); check the name"
            ) from error
    if isinstance(source, Mapping):
        if split not in source:
            raise DataError(f"{name}: holds no split '{split}'; there are: {', '.join(map(str, source))}")
        return source[split]
    return source


def _parsed(placed: Iterable[tuple[str, Mapping[str, Any]]], report: ReadReport) -> Iterator[Example]:
    for place, record in placed:
        try:
            example = _example(record)
        except LineFault as fault:
            report.fault(place, fault)
            continue
        report.read["examples"] += 1
        yield example


def _example(record: Mapping[str, Any]) -> Example:
    refuse_slips(record, [*MEANINGS, *_numbered(record)])
    query = _content(record, "anchor" if "anchor" in record and "query" not in record else "query")
    positive = _content(record, "positive")
    negatives = _negatives(record)
    if positive in negatives:
        raise LineFault(
            "contradicting example", "the positive is also a negative", "take it out of the negatives"
        )
    return Example(query, positive, negatives, _scores(record, 1 + len(negatives)))


def _numbered(record: Mapping[str, Any]) -> Iterator[tuple[str]]:
    """The key of a negative for each number that a key ends in, of which that key may be a slip."""
    for key in record:
        if match := NUMBERED.fullmatch(key):
            yield (f"negative_{match['number']}",)


def _content(record: Mapping[str, Any], key: str) -> str:
    text = read_text(record, key)
    if not has_content(text):
        raise LineFault(
            "no content", f'"{key}" is {shown(text)}', "give a text with a letter, a number or a symbol"
        )
    return text


def _negatives(record: Mapping[str, Any]) -> tuple[str, ...]:
    negatives: list[str] = []
    for key in sorted(filter(NEGATIVE_KEY.fullmatch, record), key=_negative_order):
        value = record[key]
        texts = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise LineFault(
                "wrong text type", f'"{key}" is {shown(value)}', "write a text or a list of texts"
            )
        negatives.extend(check_unicode(key, text) for text in texts)
    return tuple(negatives)


def _negative_order(key: str) -> tuple[str, int]:
    stem, _, number = key.partition("_")
    return stem, int(number or 0)


def _scores(record: Mapping[str, Any], expected: int) -> tuple[float, ...] | None:
    scores = record.get("scores")
    if scores is None:
        return None
    if not isinstance(scores, list | tuple) or not all(_is_finite(score) for score in scores):
        raise LineFault("wrong scores", f'"scores" is {shown(scores)}', "write a list of finite numbers")
    if len(scores) != expected:
        mend = "give one for the positive and one for each negative"
        raise LineFault("wrong scores", f'"scores" holds {len(scores)} for {expected} texts', mend)
    return tuple(float(score) for score in scores)


def _is_finite(score: object) -> bool:
    if isinstance(score, bool) or not isinstance(score, int | float):
        return False
    try:
        return math.isfinite(score)
    except OverflowError:  # an integer that no float can hold
        return False


def _record(example: Example) -> dict[str, Any]:
    record: dict[str, Any] = {"query": example.query, "positive": example.positive}
    if example.negatives:
        record["negatives"] = list(example.negatives)
    if example.scores is not None:
        record["scores"] = list(example.scores)
    return record


def _shares(total: int, weights: Sequence[float]) -> list[int]:
    """The total shared out by weight in whole rows, the largest remainders rounded up."""
    exact = np.asarray(weights, dtype=np.float64) / sum(weights) * total
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return [int(share) for share in shares]
