"""Finding the best documents of one query: probe lists, sum with imputation, score the best again from their codes.

    1. The `probes` centroids nearest to each query token are probed; the score of the next one stands for all tokens
       that are not in their lists (Scheerer et al. 2025, "WARP": imputation of missing similarities).
    2. Every token of a probed list is scored with the one query token that probed it: the centroid's score, and for
       each byte of the code an entry of a table, so that nothing is decompressed (WARP, implicit decompression).
    3. A document's score is the sum over query tokens of its best token, or of what stands for it.
    4. The best candidates are decoded and scored with all query tokens (PLAID, last stage).

A document is named by its number; a list holds tokens in rising order, so documents come in rising order too.

Shapes: q tokens of the query, C centroids, T tokens of all documents, N documents, D dimensions, L levels, B bytes of a
code, P probes, K candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from sourcier.indexes.warp.codec import Codec, decode

#: Tokens for which the document of the first one is kept, to find that of a token from.
BLOCK = 64


class Lists(NamedTuple):
    """Tokens by document and by centroid, mapped."""

    codes: np.ndarray  # [T, B] uint8, document by document
    own: np.ndarray  # [T] uint16 or uint32: the centroid of each token
    offsets: np.ndarray  # [N + 1]: document n has the tokens `offsets[n]:offsets[n + 1]`
    blocks: np.ndarray  # [T / BLOCK] int32: the document of every BLOCK-th token
    tokens: np.ndarray  # [T] int32: tokens by centroid, rising in each
    list_offsets: np.ndarray  # [C + 1]


def candidates(
    query: np.ndarray, codec: Codec, lists: Lists, probes: int, count: int, allowed: np.ndarray | None
) -> np.ndarray:
    """The `count` documents that look best to a query [q, D], rising; fewer where the probed lists hold no more."""
    scores = query @ codec.centroids.T  # [q, C]
    found, totals = _probe(
        query,
        scores,
        codec.levels,
        codec.bits,
        lists.codes,
        lists.offsets,
        lists.blocks,
        lists.tokens,
        lists.list_offsets,
        min(probes, scores.shape[1]),
        np.empty(0, dtype=np.bool_) if allowed is None else allowed,
    )
    if len(found) > count:
        found = found[np.argpartition(-totals, count - 1)[:count]]
    found.sort()
    return found


def exact_scores(query: np.ndarray, codec: Codec, lists: Lists, documents: np.ndarray) -> np.ndarray:
    """MaxSim of a query [q, D] with documents [K] as their codes tell them. [K] float32"""
    offsets, tokens = tokens_of(lists.offsets, documents)
    vectors = decode(codec, lists.own[tokens], lists.codes[tokens])
    products = vectors @ query.T
    if codec.unit:
        products /= np.sqrt(np.einsum("td,td->t", vectors, vectors))[:, None]
    return _sums_of_maxima(products, offsets[1:])


def tokens_of(offsets: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of some documents begins among their tokens [K + 1], and those tokens."""
    starts, lengths = offsets[documents], offsets[documents + 1] - offsets[documents]
    own = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return own, np.repeat(starts - own[:-1], lengths) + np.arange(own[-1])


@njit(cache=True, nogil=True)
def _probe(
    query: np.ndarray,
    scores: np.ndarray,
    levels: np.ndarray,
    bits: int,
    codes: np.ndarray,
    offsets: np.ndarray,
    blocks: np.ndarray,
    tokens: np.ndarray,
    list_offsets: np.ndarray,
    probes: int,
    allowed: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Documents in probed lists, and their sums above what stands for a document in none. [documents] each"""
    count = len(offsets) - 1
    seen_by = np.zeros(count, dtype=np.int32)  # the last query token that saw a document, from 1; 0 for none
    best = np.empty(count, dtype=np.float32)  # its best token for that query token
    total = np.zeros(count, dtype=np.float32)
    found = np.empty(count, dtype=np.int64)
    known = 0
    table = np.empty((codes.shape[1], 256), dtype=np.float32)
    for own in range(len(query)):
        _fill_table(query[own], levels, bits, table)
        nearest, missing = _largest(scores[own], probes)
        for centroid in nearest:
            base = scores[own, centroid]
            for place in range(list_offsets[centroid], list_offsets[centroid + 1]):
                token = tokens[place]
                document = blocks[token // BLOCK]
                while offsets[document + 1] <= token:
                    document += 1
                if len(allowed) and not allowed[document]:
                    continue
                score = base
                for byte in range(codes.shape[1]):
                    score += table[byte, codes[token, byte]]
                if seen_by[document] != own + 1:
                    if seen_by[document] == 0:
                        found[known] = document
                        known += 1
                    seen_by[document] = own + 1
                    best[document] = score
                    total[document] += score - missing
                elif score > best[document]:
                    total[document] += score - best[document]
                    best[document] = score
    return found[:known].copy(), total[found[:known]]


@njit(cache=True, nogil=True)
def _fill_table(query: np.ndarray, levels: np.ndarray, bits: int, table: np.ndarray) -> None:
    """What each value of each byte of a code adds to the score with a query token [D]. [B, 256]"""
    each, count = 8 // bits, 1 << bits
    for byte in range(len(table)):
        known = 1  # values whose bits are those of the dimensions so far
        table[byte, 0] = 0.0
        for dimension in range(byte * each, (byte + 1) * each):
            for level in range(count - 1, -1, -1):
                added = np.float32(0.0)
                if dimension < len(query):
                    added = query[dimension] * levels[dimension, level]
                for value in range(known):
                    table[byte, level * known + value] = table[byte, value] + added
            known *= count


@njit(cache=True, nogil=True)
def _largest(scores: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """The places of the `count` largest scores, and the largest of the others (the smallest where there is none)."""
    kept = min(count + 1, len(scores))
    places = np.empty(kept, dtype=np.int64)
    values = np.full(kept, -np.inf, dtype=np.float32)
    for place in range(len(scores)):
        score = scores[place]
        if score > values[kept - 1]:
            rank = kept - 1
            while rank > 0 and values[rank - 1] < score:
                values[rank], places[rank] = values[rank - 1], places[rank - 1]
                rank -= 1
            values[rank], places[rank] = score, place
    return places[:count], values[kept - 1]


@njit(cache=True, nogil=True)
def _sums_of_maxima(products: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """From the products [tokens, q] of documents one behind the other: MaxSim of each. [documents] float32"""
    scores = np.empty(len(ends), dtype=np.float32)
    best = np.empty(products.shape[1], dtype=np.float32)
    start = 0
    for document in range(len(ends)):
        best[:] = products[start]
        for token in range(start + 1, ends[document]):
            for column in range(len(best)):
                best[column] = max(best[column], products[token, column])
        scores[document] = best.sum()
        start = ends[document]
    return scores
