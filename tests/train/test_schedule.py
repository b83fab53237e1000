"""The learning rate by arithmetic, and which parameters decay."""

import pytest
import torch
from torch import nn

from sourcier.train.schedule import LinearSchedule, adamw, set_learning_rate


def test_rises_to_the_peak_and_falls_to_the_last_step() -> None:
    schedule = LinearSchedule(peak=1.0, steps=10, warmup=0.2)
    expected = [1 / 2, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [schedule(step) for step in range(10)] == expected


def test_without_warmup_it_starts_at_the_peak() -> None:
    schedule = LinearSchedule(peak=0.5, steps=4, warmup=0.0)
    assert [schedule(step) for step in range(4)] == [0.5, 0.375, 0.25, 0.125]


def test_a_run_of_one_step_is_at_the_peak() -> None:
    assert LinearSchedule(peak=3.0, steps=1, warmup=0.9)(0) == 3.0


def test_only_matrices_decay() -> None:
    """At gradient 0 AdamW does nothing but decay: 1 - rate × decay."""
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    adamw(model, learning_rate=0.1, weight_decay=0.5).step()
    values = {name: parameter.flatten()[0].item() for name, parameter in model.named_parameters()}
    assert values == pytest.approx({"0.weight": 0.95, "0.bias": 1.0, "1.weight": 1.0, "1.bias": 1.0})


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    groups = adamw(model, learning_rate=0.1, weight_decay=0.5).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [model.bias]


def test_every_group_gets_the_rate() -> None:
    optimizer = adamw(nn.Linear(2, 2), learning_rate=0.1, weight_decay=0.5)
    set_learning_rate(optimizer, 0.02)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.02]
