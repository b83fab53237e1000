"""Sparsity regularisers against arithmetic."""

import pytest
import torch

from sourcier.losses.sparsity import flops, quadratic_warmup


@pytest.mark.parametrize(
    ("activations", "right"),
    [([[0.0, 0.0], [0.0, 0.0]], 0.0), ([[2.0, 0.0], [0.0, 2.0]], 2.0), ([[4.0, 0.0], [0.0, 4.0]], 8.0)],
)
def test_flops(activations: list[list[float]], right: float) -> None:
    assert flops(torch.tensor(activations).mean(dim=0)).item() == right


def test_flops_gradient_of_an_entry() -> None:
    """Four rows, two active in each of two terms: 2 * mean / rows = 2 * 1 / 4."""
    activations = torch.tensor([[2.0, 0, 0, 0]] * 2 + [[0, 2.0, 0, 0]] * 2, requires_grad=True)
    flops(activations.mean(dim=0)).backward()
    assert activations.grad is not None
    assert activations.grad[0, 0].item() == 0.5


@pytest.mark.parametrize(("step", "share"), [(0, 0.0), (5, 0.25), (10, 1.0), (99, 1.0)])
def test_quadratic_warmup(step: int, share: float) -> None:
    assert quadratic_warmup(step, 10) == share


def test_no_warmup_is_the_whole_weight() -> None:
    assert quadratic_warmup(0, 0) == 1.0
