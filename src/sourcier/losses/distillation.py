"""Losses that make a student score as a teacher does. Each returns one value a query; whoever calls it takes the mean.

Shapes: Q queries, C candidates a query, the positive first and the negatives behind it.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def kl_divergence(student: Tensor, teacher: Tensor, *, teacher_temperature: float = 1.0) -> Tensor:
    """KL(teacher ‖ student) of the distributions over a query's candidates; 0 where both score alike. [Q]

    As in RocketQAv2 (Ren et al. 2021, section 3.2) and ColBERTv2 (Santhanam et al. 2022, section 3.2).

    `student` [Q, C], divided by its temperature; `teacher` [Q, C] as it scored, divided by `teacher_temperature` here.
    """
    target = functional.log_softmax(teacher / teacher_temperature, dim=1)
    return functional.kl_div(
        functional.log_softmax(student, dim=1), target, reduction="none", log_target=True
    ).sum(dim=1)


def margin_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared error of the margins between the positive and each negative, mean over the negatives. [Q]

    Hofstätter et al. 2020, equation 9. `student`, `teacher` [Q, C]. Only differences count: scores of both may be
    shifted as they like.
    """
    margins = student[:, :1] - student[:, 1:]
    wanted = teacher[:, :1] - teacher[:, 1:]
    return (margins - wanted).square().mean(dim=1)
