"""What each loss compares, through the training step on a table of vectors: against arithmetic."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sourcier.data.examples import Example, Examples
from sourcier.models.representations import DenseRepresentation
from sourcier.train.step import Collator, TrainingStep
from sourcier.types import SourcierError


class Numbers(nn.Module):
    """A text is a number, and its vector: the score of two texts is their product."""

    default_temperature = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def tokenize(self, texts: list[str], side: str) -> dict[str, Tensor]:
        return {"numbers": torch.tensor([[float(text)] for text in texts], dtype=torch.float64)}

    def forward(self, features: dict[str, Tensor], side: str) -> DenseRepresentation:
        return DenseRepresentation(features["numbers"] * self.scale)


def loss_of(rows: list[Example], *, negatives: int = 0, relevant: Any = None, **settings: Any) -> float:
    model = Numbers()
    batch = Collator(model, negatives, relevant=relevant)(rows)  # type: ignore[arg-type]
    output = TrainingStep.Config(**settings).build(model)(batch)  # type: ignore[arg-type]
    return output.loss.item()


def cross_entropy(right: float, *others: float) -> float:
    return math.log(sum(math.exp(score) for score in (right, *others))) - right


def test_symmetric_is_the_mean_of_both_directions() -> None:
    """Queries 1 and 2, documents 3 and -1."""
    found = loss_of([Example("1", "3"), Example("2", "-1")], loss="symmetric")
    of_queries = (cross_entropy(3, -1) + cross_entropy(-2, 6)) / 2
    of_documents = (cross_entropy(3, 6) + cross_entropy(-2, -1)) / 2
    assert found == pytest.approx((of_queries + of_documents) / 2)


def test_symmetric_has_hard_negatives_in_the_first_direction_alone() -> None:
    found = loss_of([Example("1", "3", ("2",))], loss="symmetric", negatives=1)
    assert found == pytest.approx((cross_entropy(3, 2) + 0) / 2)


def test_symmetric_does_not_push_a_query_from_a_text_that_is_relevant_to_it() -> None:
    """Document 3 is relevant to query 2 as well: in the second direction it has no other query left."""
    rows = [Example("1", "3"), Example("2", "-1")]
    known = {"1": ["3"], "2": ["-1", "3"]}
    found = loss_of(rows, loss="symmetric", relevant=known.__getitem__)
    of_queries = (cross_entropy(3, -1) + 0) / 2
    of_documents = (0 + cross_entropy(-2, -1)) / 2
    assert found == pytest.approx((of_queries + of_documents) / 2)


def test_a_relevant_text_among_the_hard_negatives_is_no_negative() -> None:
    examples = Examples([Example("1", "3", ("2", "0")), Example("1", "2", ("0", "0"))])
    found = loss_of(examples[:1], negatives=2, relevant=examples.relevant_to)
    assert found == pytest.approx(cross_entropy(3, 0))


def test_a_relevant_text_is_no_negative_of_the_pairwise_loss() -> None:
    examples = Examples([Example("1", "3", ("2", "0")), Example("1", "2", ("0", "0"))])
    found = loss_of(examples[:1], negatives=2, relevant=examples.relevant_to, loss="pairwise")
    assert found == pytest.approx(cross_entropy(3, 0))


def test_divergence_is_from_the_teachers_scores() -> None:
    """Student (1/2, 1/2), teacher (3/4, 1/4)."""
    row = Example("0", "1", ("2",), (math.log(3), 0.0))
    assert loss_of([row], loss="kl", negatives=1) == pytest.approx(
        0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    )


@pytest.mark.parametrize("loss", ["kl", "margin_mse"])
def test_a_student_that_scores_as_its_teacher_has_no_loss(loss: str) -> None:
    row = Example("2", "3", ("1", "-1"), (6.0, 2.0, -2.0))
    assert loss_of([row], loss=loss, negatives=2) == pytest.approx(0.0, abs=1e-12)


def test_margins_are_those_of_scores_over_the_temperature() -> None:
    """Margin 4 at temperature 2 is 2, where the teacher has 5."""
    row = Example("2", "3", ("1",), (5.0, 0.0))
    assert loss_of([row], loss="margin_mse", negatives=1, temperature=2.0) == pytest.approx(9.0)


def test_distillation_without_scores_says_what_is_missing() -> None:
    with pytest.raises(SourcierError, match="loss=kl needs a teacher's scores"):
        loss_of([Example("2", "3", ("1",))], loss="kl", negatives=1)


@pytest.mark.parametrize("loss", ["pairwise", "kl", "margin_mse"])
def test_losses_over_a_rows_own_documents_need_negatives(loss: str) -> None:
    with pytest.raises(SourcierError, match="set negatives=1"):
        loss_of([Example("2", "3", (), (1.0,))], loss=loss)


@pytest.mark.parametrize("name", ["temperature", "teacher_temperature"])
def test_a_temperature_is_above_zero(name: str) -> None:
    with pytest.raises(SourcierError, match=f"{name}=0.0 must be above 0"):
        TrainingStep.Config(**{name: 0.0})


def test_health_is_examined_where_it_is_asked_for() -> None:
    model = Numbers()
    batch = Collator(model)([Example("1", "3"), Example("-2", "-1")])  # type: ignore[arg-type]
    metrics = TrainingStep.Config().build(model)(batch, examine=True).metrics  # type: ignore[arg-type]
    assert metrics["health/accuracy"].item() == 1.0
