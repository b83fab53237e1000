"""Distillation losses against arithmetic."""

import math

import pytest
import torch

from sourcier.losses.distillation import kl_divergence, margin_mse

SCORES = torch.tensor([[3.0, 1.0, -2.0], [0.0, 0.5, 0.25]], dtype=torch.float64)


def test_a_student_that_scores_as_its_teacher_has_no_divergence() -> None:
    assert kl_divergence(SCORES, SCORES).abs().max().item() < 1e-15


def test_a_student_that_scores_as_its_teacher_has_no_error_of_margins() -> None:
    assert margin_mse(SCORES, SCORES).tolist() == [0.0, 0.0]


def test_divergence_of_two_candidates() -> None:
    """Teacher (3/4, 1/4), student (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2."""
    found = kl_divergence(torch.zeros(1, 2), torch.tensor([[math.log(3), 0.0]]))
    assert found.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_teacher_scores_are_divided_by_their_temperature() -> None:
    found = kl_divergence(torch.zeros(1, 2), torch.tensor([[2 * math.log(3), 0.0]]), teacher_temperature=2)
    assert found.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_gradient_of_the_divergence_is_the_difference_of_distributions() -> None:
    student = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    kl_divergence(student, torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)).sum().backward()
    assert student.grad is not None
    assert student.grad[0].tolist() == pytest.approx([0.5 - 0.75, 0.5 - 0.25])


def test_margins_are_compared_not_scores() -> None:
    assert margin_mse(SCORES + 100, SCORES).abs().max().item() < 1e-15


def test_error_is_the_mean_over_the_negatives() -> None:
    """Margins 1 and 2 where 3 and 4 are wanted, and 5 and 0 where 3 and 4 are."""
    student = torch.tensor([[2.0, 1.0, 0.0], [5.0, 0.0, 5.0]])
    teacher = torch.tensor([[4.0, 1.0, 0.0], [4.0, 1.0, 0.0]])
    assert margin_mse(student, teacher).tolist() == [4.0, 10.0]
