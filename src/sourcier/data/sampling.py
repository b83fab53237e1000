"""Batches for contrastive training: of similar lengths, without false negatives, the same plan on every rank.

Two rows may not share a batch where one would serve the other as a wrong negative: they have the same query, or a
positive or negative of one is known to be relevant to the other's query.

The plan of an epoch depends on the seed and the epoch alone, so that every rank makes the same one and takes its
slice. Rows that cannot share a batch come late in batches that stay smaller; what is done with those is declared:

- by default they are kept, unless they have fewer rows than there are ranks, since each rank must take part in a step,
  or than `least`: a row that is compared with the others of its batch alone would learn nothing in a batch of one;
- with `drop_last` every batch that is not full is dropped.

Dropped rows are counted in `dropped`, and differ from epoch to epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sourcier.data.examples import Examples
from sourcier.types import SourcierError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ties:
    """What keeps rows apart: equal queries, and texts that concern more than one query.

    A text concerns a query that it is relevant to, and the queries of the rows that hold it. One that concerns a
    single query is left out, since the query says all. Texts and queries are numbered; Python lists, for the loop
    over rows, hold `query_of` each row, `texts[text_offsets[row]:text_offsets[row + 1]]` that a row holds, and
    `relevant[relevant_offsets[query]:relevant_offsets[query + 1]]`. `tied` [rows] tells who has any tie.
    """

    query_of: list[int]
    texts: list[int]
    text_offsets: list[int]
    relevant: list[int]
    relevant_offsets: list[int]
    tied: np.ndarray


@dataclass(slots=True)
class Plan:
    """The batches of an epoch: batch b is `rows[offsets[b]:offsets[b + 1]]`; `dropped` rows are in none."""

    rows: np.ndarray
    offsets: np.ndarray
    dropped: int


class BatchSampler:
    """Yields, for each global batch of an epoch, this rank's rows of it; `len()` is the number that comes.

    `batch_size` counts the rows of all ranks together; a batch is sliced over the ranks as evenly as can be.
    `bucket` is how many batches are sorted by length together: more of them means less padding and less mixing.
    `least` is the fewest rows that a batch may have; smaller ones are left out.
    `lengths` may give the length of each row; else it is the characters of its longest text.
    The number of batches may differ a little from epoch to epoch where rows exclude each other.
    """

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        bucket: int = 50,
        drop_last: bool = False,
        least: int = 1,
        lengths: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        if batch_size < world:
            raise SourcierError(
                f"batch size {batch_size}: {world} processes cannot share it; make it {world} or more"
            )
        if not 0 <= rank < world:
            raise SourcierError(f"rank {rank}: is not one of {world} processes; count ranks from 0")
        if bucket < 1:
            raise SourcierError(
                f"bucket {bucket}: at least 1 batch is sorted at a time; 1 sorts nothing across batches"
            )
        if lengths is not None and len(lengths) != len(examples):
            raise SourcierError(f"lengths: {len(lengths)} for {len(examples)} examples; give one for each")
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world = world
        self.bucket = bucket
        self.drop_last = drop_last
        self.least = max(least, world)
        self.epoch = 0
        self._lengths = _characters(examples) if lengths is None else np.asarray(lengths)
        self._ties = _find_ties(examples)
        self._plan: Plan | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make the plan of this epoch the one that is iterated."""
        if epoch != self.epoch:
            self.epoch, self._plan = epoch, None

    def __len__(self) -> int:
        return len(self.plan.offsets) - 1

    def __iter__(self) -> Iterator[list[int]]:
        plan = self.plan
        for start, stop in zip(plan.offsets[:-1].tolist(), plan.offsets[1:].tolist(), strict=True):
            first = start + (stop - start) * self.rank // self.world
            last = start + (stop - start) * (self.rank + 1) // self.world
            yield plan.rows[first:last].tolist()

    @property
    def dropped(self) -> int:
        """How many rows of this epoch are in no batch."""
        return self.plan.dropped

    @property
    def plan(self) -> Plan:
        """The batches of this epoch."""
        if self._plan is None:
            self._plan = self._make_plan()
            if self._plan.dropped and not self.drop_last:
                logger.warning(
                    "epoch %d leaves out %d of %d rows: their batches would hold fewer than %d (%s)",
                    self.epoch, self._plan.dropped, self._plan.dropped + len(self._plan.rows), self.least,
                    "as many as processes" if self.least == self.world else "what the loss compares",
                )  # fmt: skip
        return self._plan

    def _make_plan(self) -> Plan:
        random = np.random.default_rng((self.seed, self.epoch))
        order = self._order(self.examples.draw(self.epoch), random)
        batch_of = _pack(order, self._ties, self.batch_size)
        sizes = np.bincount(batch_of)
        kept = sizes >= (self.batch_size if self.drop_last else self.least)
        # Full batches in any order, then the smaller ones; a batch is mixed, so that no rank gets its long rows.
        sequence = np.lexsort((random.random(len(sizes)), sizes < self.batch_size, ~kept))
        place = np.argsort(sequence)
        mixed = np.lexsort((random.random(len(order)), place[batch_of]))
        offsets = np.concatenate([[0], np.cumsum(sizes[sequence][: kept.sum()])]).astype(np.int64)
        return Plan(order[mixed][: offsets[-1]], offsets, len(order) - int(offsets[-1]))

    def _order(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """The rows shuffled, then sorted by length within each bucket."""
        shuffled = random.permutation(rows)
        bucket_of = np.arange(len(shuffled)) // (self.bucket * self.batch_size)
        return shuffled[np.lexsort((self._lengths[shuffled], bucket_of))]


def _characters(examples: Examples) -> np.ndarray:
    longest = (
        max(len(row.query), len(row.positive), *map(len, row.negatives)) if row.negatives
        else max(len(row.query), len(row.positive))
        for row in examples
    )  # fmt: skip
    return np.fromiter(longest, dtype=np.int64, count=len(examples))


def _find_ties(examples: Examples) -> Ties:
    queries: dict[str, int] = {}
    texts: dict[str, int] = {}
    query_of: list[int] = []
    relevant = _Lists()
    for row, example in enumerate(examples):
        query = queries.setdefault(example.query, len(queries))
        query_of.append(query)
        if query == len(relevant.ends):
            relevant.append(texts.setdefault(text, len(texts)) for text in examples.relevant(row))
    held = _Lists()
    for example in examples:
        held.append(texts[text] for text in (example.positive, *example.negatives) if text in texts)

    queries_of_rows = np.asarray(query_of)
    concerned = np.concatenate([relevant.owners(), queries_of_rows[held.owners()]])
    concerning = np.concatenate([relevant.values, held.values]).astype(np.int64)
    least, most = np.full(len(texts), len(queries)), np.full(len(texts), -1)
    np.minimum.at(least, concerning, concerned)
    np.maximum.at(most, concerning, concerned)
    held_shared, held_offsets = held.only(least != most)
    relevant_shared, relevant_offsets = relevant.only(least != most)

    common_query = np.bincount(queries_of_rows) > 1
    has_relevant = np.diff(relevant_offsets) > 0
    tied = (common_query | has_relevant)[queries_of_rows] | (np.diff(held_offsets) > 0)
    return Ties(
        query_of,
        held_shared.tolist(),
        held_offsets.tolist(),
        relevant_shared.tolist(),
        relevant_offsets.tolist(),
        tied,
    )


@dataclass(slots=True)
class _Lists:
    """Many short lists of numbers, kept as one."""

    values: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def append(self, numbers: Iterable[int]) -> None:
        self.values.extend(numbers)
        self.ends.append(len(self.values))

    def owners(self) -> np.ndarray:
        """For each value, the number of its list."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    def only(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values that are wanted, and the offsets of the lists among them."""
        values = np.asarray(self.values, dtype=np.int64)
        keep = wanted[values]
        counts = np.bincount(self.owners()[keep], minlength=len(self.ends))
        return values[keep], np.concatenate([[0], np.cumsum(counts)])


@dataclass(slots=True)
class _Batches:
    """Batches being filled: how full each is, and, through `forward`, the next one with room at or after each."""

    size: int
    filled: list[int] = field(default_factory=list)
    forward: list[int] = field(default_factory=lambda: [0])

    def put(self, at_least: int) -> int:
        """Put a row into the first batch with room from this one on; the number of that batch."""
        number = self._with_room(at_least)
        if number == len(self.filled):
            self.filled.append(0)
            self.forward.append(number + 1)
        self.filled[number] += 1
        if self.filled[number] == self.size:
            self.forward[number] = number + 1
        return number

    def _with_room(self, number: int) -> int:
        """Follow the pointers to a batch with room, and shorten the way for the next who asks."""
        target = number
        while self.forward[target] != target:
            target = self.forward[target]
        while number != target:
            self.forward[number], number = target, self.forward[number]
        return target


def _pack(order: np.ndarray, ties: Ties, size: int) -> np.ndarray:
    """The batch of each position of the order: the first with room after all that hold something tied to the row.

    For each text it is enough to know the last batch that it concerns, so this takes one look at each tie.
    """
    batches = _Batches(size)
    last_query: dict[int, int] = {}
    last_holding: dict[int, int] = {}
    last_relevant: dict[int, int] = {}
    placed: list[int] = []
    repeated = np.bincount(order, minlength=len(ties.tied)) > 1
    is_tied = (ties.tied | repeated)[order]
    for row, tied in zip(order.tolist(), is_tied.tolist(), strict=True):
        if not tied:
            placed.append(batches.put(0))
            continue
        query = ties.query_of[row]
        texts = ties.texts[ties.text_offsets[row] : ties.text_offsets[row + 1]]
        relevant = ties.relevant[ties.relevant_offsets[query] : ties.relevant_offsets[query + 1]]
        last = max(
            last_query.get(query, -1),
            max((last_relevant.get(text, -1) for text in texts), default=-1),
            max((last_holding.get(text, -1) for text in relevant), default=-1),
        )
        number = batches.put(last + 1)
        placed.append(number)
        last_query[query] = number
        _raise_to(last_holding, texts, number)
        _raise_to(last_relevant, relevant, number)
    return np.asarray(placed, dtype=np.int64)


def _raise_to(last: dict[int, int], texts: Iterable[int], number: int) -> None:
    """Note that these texts concern this batch, unless they concern a later one."""
    for text in texts:
        last[text] = max(last.get(text, -1), number)
