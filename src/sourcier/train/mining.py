"""Hard negatives for training examples: documents that an index ranks high and that do not answer the query.

    mined = mine(retriever, examples, Rules(ranks="10-100", negatives=4, relative_margin=0.05))
    mined.examples.to_jsonl("mined.jsonl")

Documents are told apart by text, as training does it: one answers a query if its text is known to be relevant to it,
whatever its id. Pairs that came from elsewhere may hold a document's text without its title: that is the document too.
A positive's score is the one that it has as a hit. A positive that is not found down to the last rank
scores no higher than any hit, since search is exact; so no pair of texts has to be scored apart.

A row with fewer negatives than asked for gets documents drawn at random from the index, none of them a match: it keeps
its positive in training, and every row has the same number.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from rich.console import Console
from rich.progress import track

from sourcier.data.examples import Examples
from sourcier.indexes.index import Documents
from sourcier.retrieval.retriever import Retriever
from sourcier.train.negatives import Rules, choose, generator, in_order, matching
from sourcier.types import SourcierError, has_content

#: Queries that are searched for between two moves of the bar.
_GROUP = 128
#: Documents drawn for each negative that is asked for, since some have no content or repeat another.
_SPARE = 8


@dataclass(slots=True, kw_only=True)
class MiningReport:
    """What was found, in rows, hits and negatives."""

    rows: int = 0
    negatives: int = 0  # in all rows, the ones drawn at random among them
    drawn: int = 0  # negatives drawn at random, where hits were too few
    filled: int = 0  # rows that have such negatives
    short: int = 0  # rows for which even those did not suffice
    too_close: int = 0  # hits that the margin alone took out
    not_found: int = 0  # rows whose positive is in the index, but below the last rank
    not_in_index: int = 0  # rows whose positive is no document of the index
    untitled: int = 0  # rows whose positive is one without its title

    def __str__(self) -> str:
        told = [f"{self.negatives:,} negatives for {self.rows:,} rows"]
        if self.too_close:
            told.append(f"{self.too_close:,} hits were too close to the positive")
        if self.not_found:
            told.append(f"{self.not_found:,} positives are below the last rank")
        if self.not_in_index:
            told.append(f"{self.not_in_index:,} positives are no documents of the index")
        if self.untitled:
            told.append(
                f"{self.untitled:,} positives are documents of the index without their titles, which negatives have: "
                "write a positive as title, space, text"
            )
        if self.filled:
            told.append(f"{self.filled:,} rows had too few and got {self.drawn:,} documents drawn at random")
        if self.short:
            told.append(f"{self.short:,} rows still have too few")
        return "; ".join(told)


@dataclass(frozen=True, slots=True)
class Mined:
    """The examples with new negatives, row by row as they came, and what was found."""

    examples: Examples
    report: MiningReport


def mine(retriever: Retriever, examples: Examples, rules: Rules, *, progress: bool = False) -> Mined:
    """Give each example `rules.negatives` negatives from an index, in place of those it has.

    A row has fewer only where the index holds no more documents that could serve.
    """
    if retriever.documents is None:
        raise SourcierError("the index holds no documents: build it from a corpus to mine from it")
    miner = _Miner(retriever.documents, examples, rules, progress)
    rows_of: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        rows_of.setdefault(example.query, []).append(row)
    queries = list(rows_of)
    negatives: list[tuple[str, ...]] = [()] * len(examples)
    starts = range(0, len(queries), _GROUP)
    for start in track(starts, "mining", console=Console(stderr=True), disable=not progress):
        group = queries[start : start + _GROUP]
        hits = retriever.search(group, k=rules.window[1])
        for place, query in enumerate(group):
            for row in rows_of[query]:
                negatives[row] = miner.negatives(row, hits.ids[place], hits.scores[place])
    return Mined(with_negatives(examples, negatives), miner.report)


def with_negatives(examples: Examples, negatives: Sequence[tuple[str, ...]]) -> Examples:
    """The same examples, drawn as before, with other negatives; a teacher's scores were of the former ones."""
    changed = copy.copy(examples)
    changed.rows = [
        replace(example, negatives=texts, scores=None)
        for example, texts in zip(examples, negatives, strict=True)
    ]
    return changed


class _Miner:
    """Chooses the negatives of one row after another, and counts what it meets."""

    def __init__(self, documents: Documents, examples: Examples, rules: Rules, progress: bool) -> None:
        self.report = MiningReport(rows=len(examples))
        self._documents = documents
        self._examples = examples
        self._rules = rules
        texts = {text for example in examples for text in (example.query, example.positive)}
        self._ids_of, self._untitled = _ids_of(texts, documents, progress)

    def negatives(self, row: int, ids: np.ndarray, scores: np.ndarray) -> tuple[str, ...]:
        """The negatives of a row whose query has these hits [K], with empty places at their end only."""
        wanted = self._rules.negatives
        answering = self._answering(row)
        allowed = self._allowed(row, ids, scores, answering)
        preferred = [str(identifier) for identifier in ids[in_order(allowed, self._rules, row)]]
        hard = _distinct(self._texts(preferred), wanted)
        chosen = _distinct(chain(hard, self._drawn(row, answering.union(ids[matching(scores)]))), wanted)
        self.report.negatives += len(chosen)
        self.report.drawn += len(chosen) - len(hard)
        self.report.filled += len(chosen) > len(hard)
        self.report.short += len(chosen) < wanted
        return tuple(chosen)

    def _answering(self, row: int) -> set[str]:
        """Ids of the documents that answer a row's query, or repeat it."""
        known = {self._examples[row].query, *self._examples.relevant(row)}
        return {identifier for text in known for identifier in self._ids_of.get(text, ())}

    def _allowed(self, row: int, ids: np.ndarray, scores: np.ndarray, answering: set[str]) -> np.ndarray:
        """Which hits the rules leave. [K] bool"""
        positives = self._ids_of.get(self._examples[row].positive, [])
        found = np.array([identifier in positives for identifier in ids], dtype=bool)
        positive = float(scores[found].max()) if found.any() else -math.inf
        self.report.not_in_index += not positives
        self.report.untitled += self._examples[row].positive in self._untitled
        self.report.not_found += bool(positives) and not found.any()
        excluded = np.array([identifier in answering for identifier in ids], dtype=bool)
        choice = choose(scores, excluded, positive, self._rules)
        self.report.too_close += choice.too_close
        return choice.allowed

    def _texts(self, ids: Iterable[str]) -> Iterator[str]:
        return (self._documents.get([identifier])[0].content for identifier in ids)

    def _drawn(self, row: int, refused: set[str]) -> Iterator[str]:
        """Texts of documents drawn at random, for a row that hits do not suffice for."""
        total = len(self._documents)
        # More than can be refused, so that a document is left over wherever the index has one.
        size = min(total, len(refused) + _SPARE * self._rules.negatives)
        for number in generator(self._rules, row).choice(total, size, replace=False):
            document = self._documents[int(number)]
            if document.id not in refused and has_content(document.content):
                yield document.content


def _distinct(texts: Iterable[str], count: int) -> list[str]:
    """The first `count` different texts."""
    chosen: dict[str, None] = {}
    for text in texts:
        if len(chosen) == count:
            break
        chosen[text] = None
    return list(chosen)


def _ids_of(texts: set[str], documents: Documents, progress: bool) -> tuple[dict[str, list[str]], set[str]]:
    """The ids of the documents with these texts, in one pass over the index; and the texts that lack a title there."""
    ids: dict[str, list[str]] = {}
    whole: set[str] = set()
    reading = track(
        documents,
        "reading the index",
        total=len(documents),
        console=Console(stderr=True),
        disable=not progress,
    )
    for document in reading:
        for text in {document.content, document.text} & texts:
            ids.setdefault(text, []).append(document.id)
        if document.content in texts:
            whole.add(document.content)
    return ids, ids.keys() - whole
