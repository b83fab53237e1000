"""A teacher's scores for training examples: what distillation compares with."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from sourcier.data.examples import Examples
from sourcier.models.cross_encoder import CrossEncoder


def scored(examples: Examples, teacher: CrossEncoder, *, progress: bool = False) -> Examples:
    """The same examples with the scores of (positive, *negatives)."""
    pairs = [(row.query, text) for row in examples for text in (row.positive, *row.negatives)]
    scores = teacher.scores(pairs, progress=progress)
    ends = np.cumsum([1 + len(row.negatives) for row in examples])
    taught = copy.copy(examples)
    taught.rows = [
        replace(row, scores=tuple(part.tolist()))
        for row, part in zip(examples, np.split(scores, ends[:-1]), strict=True)
    ]
    return taught
