"""Losses that put the positive above the others. Each returns one value a query; whoever calls it takes the mean.

Shapes: Q queries, N documents of the (global) batch, M negatives a query.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def contrastive(
    scores: Tensor, positives: Tensor, *, temperature: float = 1.0, excluded: Tensor | None = None
) -> Tensor:
    """Cross-entropy of the positive among all documents of the batch. [Q]

    InfoNCE (van den Oord et al. 2018, section 2.3) as DPR uses it (Karpukhin et al. 2020, section 3.2).

    `scores` [Q, N]; `positives` [Q] the column of each query's positive; `excluded` [Q, N] bool, True where a document
    is known not to be a negative of the query, such as another copy of its positive.
    """
    logits = scores / temperature
    if excluded is not None:
        logits = logits.masked_fill(excluded, float("-inf"))
    return functional.cross_entropy(logits, positives, reduction="none")


def pairwise_cross_entropy(
    positive: Tensor, negatives: Tensor, *, temperature: float = 1.0, excluded: Tensor | None = None
) -> Tensor:
    """Cross-entropy of the positive in each pair with one negative, mean over the pairs. [Q]

    RankNet (Burges et al. 2005, section 3), with which ColBERT was trained (Khattab and Zaharia 2020, section 3.3).

    `positive` [Q]; `negatives` [Q, M]; `excluded` [Q, M] bool, True where a text is known not to be a negative. A query
    that is left without a negative has the loss 0.
    """
    losses = functional.softplus((negatives - positive[:, None]) / temperature)
    if excluded is None:
        return losses.mean(dim=1)
    return losses.masked_fill(excluded, 0).sum(dim=1) / (~excluded).sum(dim=1).clamp(min=1)


def known_relevant(relevant_keys: Tensor, document_keys: Tensor, positives: Tensor) -> Tensor:
    """Which documents must not be a query's negatives, since their text is known to be relevant to it. [Q, N] bool

    Another copy of the query's positive is one of them; the positive itself is not.

    `relevant_keys` [Q, R] and `document_keys` [N] int64, equal for equal texts; `positives` [Q] columns. A query with
    fewer than R relevant texts repeats one.
    """
    columns = torch.arange(len(document_keys), device=positives.device)
    known = torch.zeros(len(positives), len(document_keys), dtype=torch.bool, device=positives.device)
    for keys in relevant_keys.unbind(dim=1):  # one column at a time: no [Q, N, R] tensor
        known |= keys[:, None] == document_keys
    return known & (columns != positives[:, None])
