"""Ranking losses against arithmetic."""

import math

import pytest
import torch

from sourcier.losses.ranking import contrastive, known_relevant, pairwise_cross_entropy


@pytest.mark.parametrize(("documents", "right"), [(4, 6.1834e-9), (12, 2.2673e-8)])
def test_one_hot_pairs_at_scale_20(documents: int, right: float) -> None:
    """ln(1 + (N - 1) e^-20): a label on the wrong column would give about 20."""
    queries = torch.eye(4, documents, dtype=torch.float64)
    scores = queries @ torch.eye(documents, dtype=torch.float64).T
    losses = contrastive(scores, torch.arange(4), temperature=1 / 20)
    torch.testing.assert_close(losses, torch.full((4,), right, dtype=torch.float64), rtol=1e-3, atol=0)
    assert losses[0].item() == pytest.approx(math.log1p((documents - 1) * math.exp(-20)), rel=1e-6)


def test_excluded_documents_do_not_count() -> None:
    scores = torch.tensor([[1.0, 3.0, 0.0]])
    losses = contrastive(scores, torch.tensor([0]), excluded=torch.tensor([[False, True, False]]))
    assert losses.item() == pytest.approx(math.log1p(math.exp(-1)))


def test_pairwise_is_the_mean_over_pairs() -> None:
    losses = pairwise_cross_entropy(torch.tensor([2.0]), torch.tensor([[1.0, 3.0]]))
    assert losses.item() == pytest.approx((math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 2)


def test_pairwise_divides_by_the_temperature() -> None:
    losses = pairwise_cross_entropy(torch.tensor([2.0]), torch.tensor([[1.0]]), temperature=0.5)
    assert losses.item() == pytest.approx(math.log1p(math.exp(-2)))


def test_pairwise_leaves_out_what_is_excluded() -> None:
    excluded = torch.tensor([[False, True]])
    losses = pairwise_cross_entropy(torch.tensor([2.0]), torch.tensor([[1.0, 3.0]]), excluded=excluded)
    assert losses.item() == pytest.approx(math.log1p(math.exp(-1)))


def test_pairwise_without_a_true_negative_is_zero() -> None:
    excluded = torch.tensor([[True]])
    losses = pairwise_cross_entropy(torch.tensor([2.0]), torch.tensor([[3.0]]), excluded=excluded)
    assert losses.item() == 0.0


def test_copies_of_a_positive_are_found_but_not_itself() -> None:
    keys = torch.tensor([7, 8, 7, 9])
    found = known_relevant(torch.tensor([[7], [7], [9]]), keys, torch.tensor([0, 2, 3]))
    assert found.tolist() == [[False, False, True, False], [True, False, False, False], [False] * 4]


def test_every_known_relevant_text_is_found() -> None:
    keys = torch.tensor([7, 8, 5, 9])
    found = known_relevant(torch.tensor([[7, 5, 9]]), keys, torch.tensor([0]))
    assert found.tolist() == [[False, False, True, True]]
