"""The optimizer of a run and its learning rate over time."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Optimizer


def adamw(model: nn.Module, *, learning_rate: float, weight_decay: float) -> AdamW:
    """AdamW over what is trainable; matrices alone decay, since a bias or a norm is not to be kept small."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    # The fused form updates all parameters in one pass; elsewhere PyTorch chooses its own fastest.
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in trainable)
    return AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=fused or None)


class LinearSchedule:
    """Rises in a line from near zero to `peak` over the warm-up, then falls to near zero at the last step.

    A pure function of the optimizer step: it does not matter how many processes there are, whether fp16
    skipped an update, or where a run goes on. Neither the first nor the last step is lost to a rate of zero.
    """

    def __init__(self, *, peak: float, steps: int, warmup: float) -> None:
        """`warmup` is the fraction of `steps` over which the rate rises."""
        self.peak = peak
        self.steps = steps
        self.rising = round(warmup * steps)

    def __call__(self, step: int) -> float:
        """The learning rate of optimizer step `step`, counted from 0."""
        if step < self.rising:
            return self.peak * (step + 1) / self.rising
        return self.peak * (self.steps - step) / (self.steps - self.rising)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Gives every group of parameters the same rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
