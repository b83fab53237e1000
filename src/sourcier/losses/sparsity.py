"""What keeps sparse representations sparse: regularisers of term activations, and how their weight grows.

Shapes: B texts of the global batch, V terms of the vocabulary.
"""

from __future__ import annotations

from torch import Tensor


def flops(mean_activation: Tensor) -> Tensor:
    """The expected cost of an inverted index: the sum over terms of the squared mean activation. Scalar

    Paria et al. 2020, equation 4; SPLADE (Formal et al. 2021, section 3.2).
    `mean_activation` [V]: the mean over the *global* batch, since a mean of squares of parts is another quantity.
    """
    return mean_activation.square().sum()


def l1(mean_activation: Tensor) -> Tensor:
    """The mean of the L1 norms of the texts, all of whose activations are 0 or above. Scalar

    SPLADE (Formal et al. 2021, section 3.2) compares it with `flops`. `mean_activation` [V] as there.
    """
    return mean_activation.sum()


def quadratic_warmup(step: int, steps: int) -> float:
    """The share of a regulariser's weight that counts at `step` (from 0): (step / steps)², 1 from `steps` on.

    Paria et al. 2020, section 4; it keeps a model from emptying its representations before it can rank.
    """
    return 1.0 if step >= steps else (step / steps) ** 2
