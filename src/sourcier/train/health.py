"""How well a model tells documents apart while it trains, and a rule that says early when it does not.

"Compressed similarity" is what users call a model whose hard negatives end up almost as similar to a query as its
positive. The loss alone does not show it. `examine` measures it on a batch, `HealthRule` reads the measurements.

    figures = examine(queries, documents, width=1 + negatives)
    warning = rule.judge(step, steps, figures)      # a line, once, or None

Shapes: B queries, N = B * width documents, row after row, each row's positive first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sourcier.models.representations import Representation, TokenVectorRepresentation
from sourcier.train.gather import sum_over_ranks

#: What stands before the figures' names among the other metrics of a step.
PREFIX = "health/"


@torch.no_grad()
def examine(
    queries: Representation, documents: Representation, *, width: int, excluded: Tensor | None = None
) -> dict[str, Tensor]:
    """How far the positives of a batch stand above other documents, and how far the documents stand apart. Scalars

    Each rank compares its own rows; the figures are means over ranks, weighted by rows. A rank with a single row has
    nothing to compare and does not count. `excluded` [B, N] bool is True where a document is known not to be a
    negative of the query. Every rank has to call it in the same step.

    A similarity is a score divided by the score of the query with itself: 1 is what an exact copy of the query would
    get. For cosine it is the score; for MaxSim the score over the number of query tokens; for sparse families the
    share of the query's own weight that the document reaches, which a heavy document may bring above 1. Dividing by
    something of the query alone changes no ranking, and makes all families comparable.

    positive, random    mean similarity with the positive, and with the documents of other rows
    hardest             mean over queries of the largest similarity with a document that is not the positive
    spread              how far the random ones scatter: standard deviation around each query's mean, pooled
    score_spread        the same of the scores themselves: what a temperature divides
    margin              (positive - hardest) / spread, mean over queries: below 0, others come first
    separation          (positive - random) / spread, likewise: 0 is what a model without knowledge has
    accuracy            share of the queries whose positive is strictly above all others
    distinct_top1       number of different documents in first place over number of queries
    mean_cosine         mean pairwise cosine of the positives among themselves
    effective_rank      how many directions the positives use, from 1 to B: the exponential of the entropy of their
                        normalised singular values (Roy and Vetterli 2007), after each was scaled to length 1

    Cosine and rank are those of the vectors, of the weights of terms, of the vectors of all terms side by side
    (SparseEmbed), and for token vectors of their mean.
    """
    queries, documents = queries.detach().scorable(), documents.detach().scorable()
    scores = queries.scores(documents).float()  # [B, N]
    row = torch.arange(len(scores), device=scores.device)
    column = torch.arange(scores.shape[1], device=scores.device)
    own = queries.pair_scores(queries).float()
    other = column != row[:, None] * width
    if excluded is not None:
        other = other & ~excluded
    random = other & (column // width != row[:, None])
    figures = compare(scores, own, row * width, other=other, random=random) | shape(documents[::width])
    values = torch.stack([*figures.values(), torch.ones_like(own[0])])
    sums = sum_over_ranks(values * len(row) if len(row) > 1 else torch.zeros_like(values))
    return dict(zip(figures, (sums[:-1] / sums[-1]).unbind(), strict=True))


def to_similarities(scores: Tensor, own: Tensor) -> Tensor:
    """Scores [Q, N] over each query's score with itself, `own` [Q]; a query without content is similar to nothing."""
    return scores / torch.where(own > 0, own, 1)[:, None]


def compare(
    scores: Tensor, own: Tensor, positives: Tensor, *, other: Tensor, random: Tensor
) -> dict[str, Tensor]:
    """The figures of `examine` that compare documents as the queries see them. Scalars

    `scores` [Q, N]; `own` [Q] each query's score with itself; `positives` [Q] columns; `other` and `random` [Q, N]
    bool, True where a document is not relevant, and where it was not chosen for the query.
    """
    similarities = to_similarities(scores, own)
    positive = similarities.gather(1, positives[:, None]).squeeze(1)
    hardest = similarities.masked_fill(~other, -torch.inf).amax(dim=1)
    means = _masked_mean(similarities, random)
    spread = _spread(similarities, random)
    ranked = other.scatter(1, positives[:, None], True)
    best = similarities.masked_fill(~ranked, -torch.inf).argmax(dim=1)
    return {
        "positive": positive.mean(),
        "hardest": hardest.mean(),
        "random": means.mean(),
        "spread": spread,
        "score_spread": _spread(scores, random),
        "margin": _over(positive - hardest, spread).mean(),
        "separation": _over(positive - means, spread).mean(),
        "accuracy": (positive > hardest).float().mean(),
        "distinct_top1": similarities.new_tensor(len(best.unique()) / len(best)),
    }


def shape(documents: Representation) -> dict[str, Tensor]:
    """The figures of `examine` that tell how documents lie to each other. Scalars"""
    gram = _gram(documents).float()
    norms = gram.diagonal().clamp(min=0).sqrt()
    cosines = _over(gram, norms[:, None] * norms)
    count = len(cosines)
    apart = (cosines.sum() - cosines.diagonal().sum()) / max(1, count * (count - 1))
    # In float64 on the CPU: some accelerators have neither, and roots make small rounding errors large.
    eigenvalues = torch.linalg.eigvalsh(torch.nan_to_num(cosines).cpu().double())
    singular = eigenvalues.clamp(min=0).sqrt()
    shares = singular / singular.sum().clamp(min=torch.finfo(singular.dtype).tiny)
    rank = torch.exp(-torch.xlogy(shares, shares).sum())
    return {"mean_cosine": apart, "effective_rank": rank.to(cosines)}


def _gram(documents: Representation) -> Tensor:
    """Inner products of the documents among themselves. [N, N]

    All scores but MaxSim are inner products; for that one the mean of a text's tokens stands for the text.
    """
    if not isinstance(documents, TokenVectorRepresentation):
        return documents.scores(documents)
    counts = documents.mask.sum(dim=1, keepdim=True).clamp(min=1)
    means = torch.where(documents.mask[:, :, None], documents.vectors, 0).sum(dim=1) / counts
    return means @ means.T


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of each row where the mask is True; 0 where it is nowhere. [B]"""
    return torch.where(mask, values, 0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Standard deviation around the mean of each row, pooled over rows. Scalar

    Within rows, since a query that scores high with everything ranks no better for it.
    """
    squares = torch.where(mask, values - _masked_mean(values, mask)[:, None], 0).square().sum()
    freedom = mask.sum() - mask.any(dim=1).sum()
    return (squares / freedom.clamp(min=1)).sqrt()


def _over(values: Tensor, divisor: Tensor) -> Tensor:
    """A quotient that is 0 where the divisor is: where nothing differs, nothing stands above."""
    return torch.where(divisor > 0, values / torch.where(divisor > 0, divisor, 1), 0)


# Thresholds of the rule. They follow from what the losses see and from how far one batch can be trusted, and were
# fixed before the rule was tried on the runs of benchmarks/compression.py: all but FLAT before the first six, FLAT,
# which was 0.25 and spoke in one of those that do not compress, before the second six.

#: So many logged figures are averaged: at 16 rows one batch tells the margin to about 0.4, three to 0.25.
LOGS = 3
#: Share of their first distance (1 - mean cosine) below which documents have moved together, where the positive is
#: lost too. Neither happens by the chance of one batch, so one is enough.
COLLAPSED = 0.5
#: score_spread / temperature below which a softmax over documents hardly tells them apart: a hard negative, two
#: spreads above the mean, is pushed away exp(2 / 8) = 1.3 times as much as any other, instead of many times.
FLAT = 0.125
#: Separation below which the positive is lost among random documents: one spread leaves every sixth of them above it.
BLIND = 1.0
#: Margin below which the hardest negative of a batch is, on average, above the positive.
CROWDED = 0.0
#: What counts as progress since the first figures, in spreads: twice the error of a mean of three.
PROGRESS = 0.5

#: The figures that the rule reads.
READ = {"margin", "separation", "mean_cosine", "score_spread", "random"}
#: Losses that see scores through a temperature and make a probability of them.
_SOFT = ("contrastive", "symmetric", "pairwise", "kl")


class HealthRule:
    """Says once that similarity is compressed, why that is likely, and what to do.

    Four signs are looked for:

    collapsed   documents move together and positives are lost among them            from the second log on
    flat        the loss hardly sees a difference between documents                  from the third log on
    blind       positives are lost among random documents, and there is no progress  from twice the warm-up on
    crowded     hard negatives are above the positives, and there is no progress     likewise

    The first two show in the first tenth of a run. The other two wait until the rate has been at its peak for a while,
    since a base that was never trained for search begins with them.
    """

    def __init__(
        self, *, family: str, loss: str, temperature: float, learning_rate: float, warmup_steps: int
    ) -> None:
        self.family = family
        self.loss = loss
        self.temperature = temperature
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self._warned = False
        self._first: dict[str, float] | None = None
        self._recent: list[dict[str, float]] = []

    def judge(self, step: int, steps: int, metrics: Mapping[str, float | None]) -> str | None:
        """Takes the figures logged at `step` of `steps`; a warning of one line, the first time it is due."""
        figures = {
            name.removeprefix(PREFIX): value
            for name, value in metrics.items()
            if name.startswith(PREFIX) and value is not None and math.isfinite(value)
        }
        if self._warned or not figures.keys() >= READ:
            return None
        self._first = self._first or figures
        self._recent = [*self._recent, figures][-LOGS:]
        found = self._find(settled=step >= max(2 * self.warmup_steps, steps / 10))
        self._warned = found is not None
        return f"step {step}: similarity is compressed: {found}" if found else None

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs so as not to forget, nor to warn twice; plain values."""
        return {"warned": self._warned, "first": self._first, "recent": self._recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._warned, self._first, self._recent = state["warned"], state["first"], list(state["recent"])

    def _find(self, *, settled: bool) -> str | None:
        first, last = self._first, self._recent[-1]
        assert first is not None
        lost = last["separation"] < min(BLIND, first["separation"] / 2)
        if lost and 1 - last["mean_cosine"] < COLLAPSED * (1 - first["mean_cosine"]):
            return self._collapsed(first, last)
        if len(self._recent) < LOGS:
            return None
        now = {name: sum(one[name] for one in self._recent) / LOGS for name in last}
        if self.loss in _SOFT and now["score_spread"] < FLAT * self.temperature:
            return self._flat(now)
        if settled and now["separation"] < min(BLIND, first["separation"] + PROGRESS):
            return self._blind(now)
        if settled and now["margin"] < min(CROWDED, first["margin"] + PROGRESS):
            return self._crowded(now)
        return None

    def _collapsed(self, first: Mapping[str, float], last: Mapping[str, float]) -> str:
        return (
            f"documents move together (mean cosine {first['mean_cosine']:.2f}, now {last['mean_cosine']:.2f}) and "
            f"positives are lost among them: learning_rate={self.learning_rate:g} is likely too high: "
            f"set {_round(self.learning_rate / 10)}" + self._padding(last)
        )

    def _flat(self, now: Mapping[str, float]) -> str:
        spread = now["score_spread"]
        if spread == 0:
            return "all documents have the same score: lower learning_rate and the weights of regularisers"
        return (
            f"scores of documents differ by {spread:.2g}, which temperature={self.temperature:g} hides from the loss, "
            f"so that hard negatives are pushed no more than others: set temperature={_round(spread / 2)}"
        )

    def _blind(self, now: Mapping[str, float]) -> str:
        return (
            f"positives are {now['separation']:.2f} spreads above random documents and get no better: "
            f"change learning_rate={self.learning_rate:g} tenfold, down if the loss jumps, up if it stands"
            + self._narrow_loss()
            + self._padding(now)
        )

    def _crowded(self, now: Mapping[str, float]) -> str:
        wanted = now["score_spread"] / 2
        mends = [f"set temperature={_round(wanted)}"] if self._is_warm(wanted) else []
        mends.append("look for false negatives among the hard ones")
        return (
            f"the hardest negative is {-now['margin']:.2f} spreads above the positive and stays there: "
            + ", ".join(mends)
            + self._narrow_loss()
            + self._padding(now)
        )

    def _is_warm(self, wanted: float) -> bool:
        """Whether the temperature is far above the one wanted."""
        return self.loss in _SOFT and 0 < wanted < self.temperature / 2

    def _narrow_loss(self) -> str:
        """The loss as a cause: one that compares few documents leaves most of them where they are."""
        return ", or use loss=contrastive, which compares all of a batch" if self.loss == "pairwise" else ""

    def _padding(self, now: Mapping[str, float]) -> str:
        """Padding as a cause: it is in every text, so that token by token random texts look the same."""
        if self.family != "colbert" or now["random"] < 0.9:
            return ""
        return f", and see that padding is masked in the score (random pairs: {now['random']:.2f} a token)"


def _round(value: float) -> str:
    """A number with one digit that counts, as one would type it."""
    return f"{value:.0e}" if value < 1e-3 else f"{float(f'{value:.1g}'):g}"
