"""The best rows of each query: kept from tile to tile of scores, ties in the order of insertion.

Matrix products round differently with the shape of the product, so one pair can get two scores in two batches. The
kinds that use them (dense, multi-vector) take a few candidates more than were asked for, score those pair by pair in
a fixed order, and prove that no other row can belong to the result: see `settle`. So a result does not depend on what
else is in the batch, and equal documents tie exactly.

Shapes: Q queries, N rows, T rows of a tile, K candidates of each query.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

_NO_ROW = np.iinfo(np.int64).max
#: Queries whose scores for a row are looked at together: most rows are better for none of them.
_BLOCK = 32


class Ranked(NamedTuple):
    """Rows of an index, best first. `rows` [Q, K] int64, `scores` [Q, K] float32."""

    rows: np.ndarray
    scores: np.ndarray


class TopK:
    """Collects the `depth` best of the scores that are offered tile by tile, in rising order of rows.

    At least `depth` scores must be offered for each query, and all must be finite.
    """

    def __init__(self, queries: int, depth: int) -> None:
        self._scores = np.full((queries, depth), -np.inf, dtype=np.float32)
        self._rows = np.full((queries, depth), _NO_ROW, dtype=np.int64)

    def offer(self, scores: np.ndarray, first_row: int) -> None:
        """Scores [T, Q] float32 of the rows from `first_row` on."""
        # Compiled code does not look where it writes.
        if scores.shape[1] != len(self._scores):
            raise ValueError(f"scores of {scores.shape[1]} queries offered, not of {len(self._scores)}")
        _offer(scores, first_row, self._scores, self._rows)

    def ranked(self) -> Ranked:
        return in_order(self._rows, self._scores)


def exclude(scores: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """Scores [T, ...], those of rows that are not allowed [T] put where `TopK` never takes them, in place."""
    if allowed is not None:
        scores[~allowed] = -np.inf
    return scores


def in_order(rows: np.ndarray, scores: np.ndarray) -> Ranked:
    """Candidates of each query by falling score, equal scores by rising row."""
    order = np.lexsort((rows, -scores), axis=-1)
    return Ranked(np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1))


def no_results(queries: int) -> Ranked:
    """The ranking of an index that holds nothing to rank. [Q, 0]"""
    return Ranked(np.empty((queries, 0), dtype=np.int64), np.empty((queries, 0), dtype=np.float32))


def concatenated(groups: Sequence[Ranked], depth: int) -> Ranked:
    """The rankings of groups of queries, one below the other."""
    nothing = Ranked(np.empty((0, depth), dtype=np.int64), np.empty((0, depth), dtype=np.float32))
    parts = [nothing, *groups]
    return Ranked(
        np.concatenate([part.rows for part in parts]), np.concatenate([part.scores for part in parts])
    )


def rounding(terms: int) -> float:
    """A bound on how far two float32 sums of the same products lie apart, relative to the sum of their sizes."""
    return 2 * terms * float(np.finfo(np.float32).eps)


def candidates_for(depth: int, rows: int) -> int:
    """How many candidates `settle` wants for `depth` results: some more, so that near ties seldom cross the edge."""
    return min(depth + 16 + depth // 8, rows)


def settle(
    candidates: Ranked,
    depth: int,
    rows: int,
    error: np.ndarray,
    rescore: Callable[[np.ndarray], np.ndarray],
    rescore_all: Callable[[int], np.ndarray],
) -> Ranked:
    """The `depth` best of `rows` rows by their scores pair by pair, from candidates with rounded scores.

    `error` [Q] bounds the difference of the two scores of a pair; `rescore` scores rows [Q, K] pair by pair,
    `rescore_all` all rows for one query. A row that is no candidate has a rounded score of at most that of the last
    candidate. Where that lies more than two errors below the last result, no such row can get in; elsewhere (many
    equal documents) all rows are scored pair by pair.
    """
    settled = in_order(candidates.rows, rescore(candidates.rows))
    settled = Ranked(settled.rows[:, :depth].copy(), settled.scores[:, :depth].copy())
    if candidates.rows.shape[1] == rows:
        return settled
    gap = candidates.scores[:, depth - 1].astype(np.float64) - candidates.scores[:, -1]
    for query in np.flatnonzero((gap <= 2 * error) & (error > 0)):
        best = TopK(1, depth)
        best.offer(rescore_all(int(query))[:, None], 0)
        settled.rows[query], settled.scores[query] = (found[0] for found in best.ranked())
    return settled


def checked_depth(k: Any) -> int:
    """`k` as the number of results asked for."""
    try:
        depth = operator.index(k)
    except TypeError:
        depth = 0
    if isinstance(k, bool) or depth < 1:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r}")
    return depth


@njit(cache=True, nogil=True)
def _offer(scores: np.ndarray, first_row: int, best_scores: np.ndarray, best_rows: np.ndarray) -> None:
    """Put scores that are better than the worst one kept in its place; [Q, depth] heaps with the worst on top."""
    depth = best_scores.shape[1]
    worst = best_scores[:, 0].copy()
    for row in range(scores.shape[0]):
        for start in range(0, scores.shape[1], _BLOCK):
            stop = min(start + _BLOCK, scores.shape[1])
            better = 0
            for query in range(start, stop):
                # An equal score came later than all that are kept, so it loses the tie.
                better += scores[row, query] > worst[query]
            if better == 0:
                continue
            for query in range(start, stop):
                score = scores[row, query]
                if score > worst[query]:
                    _replace_worst(best_scores[query], best_rows[query], depth, score, first_row + row)
                    worst[query] = best_scores[query, 0]


@njit(cache=True, nogil=True)
def _replace_worst(scores: np.ndarray, rows: np.ndarray, depth: int, score: float, row: int) -> None:
    """Sink a new entry from the top of a heap whose parents are worse than their children."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= depth:
            break
        other = child + 1
        if other < depth and _is_worse(scores[other], rows[other], scores[child], rows[child]):
            child = other
        if not _is_worse(scores[child], rows[child], score, row):
            break
        scores[place], rows[place] = scores[child], rows[child]
        place = child
    scores[place], rows[place] = score, row


@njit(cache=True, nogil=True)
def _is_worse(score: float, row: int, other_score: float, other_row: int) -> bool:
    return score < other_score or (score == other_score and row > other_row)
