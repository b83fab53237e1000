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


def pairwise_cross_entropy(positive: Tensor, negatives: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Cross-entropy of the positive in each pair with one negative, mean over the pairs. [Q]

    RankNet (Burges et al. 2005, section 3), with which ColBERT was trained (Khattab and Zaharia 2020, section 3.3).

    `positive` [Q]; `negatives` [Q, M].
    """
    return functional.softplus((negatives - positive[:, None]) / temperature).mean(dim=1)


def copies_of_positives(document_keys: Tensor, positives: Tensor) -> Tensor:
    """Where a document has the same text as a query's positive without being it. [Q, N] bool

    `document_keys` [N] int64, equal for equal texts; `positives` [Q] columns.
    """
    same = document_keys[None, :] == document_keys[positives][:, None]
    columns = torch.arange(len(document_keys), device=positives.device)
    return same & (columns[None, :] != positives[:, None])
