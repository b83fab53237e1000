"""What stops a run that computes with numbers that are none: its loss after each step, its weights before each save."""

from __future__ import annotations

import math
from pathlib import Path

from accelerate.utils import gather_object
from torch import Tensor, nn

from sourcier.models.checkpoints import not_finite
from sourcier.types import SourcierError


class Guard:
    """Stops all processes of a run at the same step, and tells where the run was still whole.

    It looks at the loss of a step when the next one is under way, so that a GPU never waits for the question.
    """

    def __init__(self, states: Path) -> None:
        """`states` is the folder of the run's states, for those who read the error."""
        self._states = states
        self._unseen: tuple[int, list[int], Tensor] | None = None
        #: The step of the last state that was saved, or read.
        self.saved: int | None = None

    def watch(self, step: int, rows: list[int], loss: Tensor) -> None:
        """Checks the step before this one. `rows` are this process' own, the loss that of all."""
        self.check_loss()
        self._unseen = (step, rows, loss)

    def check_loss(self) -> None:
        """Checks the last step that was watched."""
        if self._unseen is None:
            return
        (step, rows, loss), self._unseen = self._unseen, None
        if not math.isfinite(loss):
            # The loss is the same everywhere, so that all come here.
            named = ", ".join(map(str, sorted(gather_object(rows))))
            raise SourcierError(
                f"the loss is {float(loss)} at step {step} (rows {named} of the examples){self._before()}: "
                "lower learning_rate, set precision=fp32, or look at these rows"
            )

    def check_weights(self, step: int, model: nn.Module) -> None:
        """Refuses a model that is to be saved, with the name of the first weight that is not finite on any process."""
        named = next((name for name in gather_object([not_finite(model)]) if name is not None), None)
        if named is None:
            return
        if step == 0:
            raise SourcierError(f"weight '{named}' is not finite before the first step: choose another base")
        raise SourcierError(
            f"weight '{named}' is not finite after step {step}, which is not saved{self._before()}: "
            "lower learning_rate, or set precision=fp32"
        )

    def _before(self) -> str:
        return "" if self.saved is None else f"; {self._states} holds the finite state of step {self.saved}"
