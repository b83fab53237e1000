"""The SPLADE activation without the logits of all tokens: memory grows with B * V, not with B * L * V.

log(1 + ReLU(x)) rises with x, so the maximum over the tokens is taken on the logits.

Shapes: B texts, L padded tokens, H hidden dimensions, V terms of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sourcier.kernels.best_products import best_products


def splade_pool(hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The weight of each term in each text: max over the tokens of log(1 + ReLU(logit)). [B, V]

    `hidden` [B, L, H]; `mask` [B, L] bool; `weight` [V, H] and `bias` [V] of the language-model head.
    Padding may be anything, NaN included; a text that is all padding gives zeros. Only terms with a weight above 0 pass
    gradient, each to the token where its logit is largest (to the first of equals). No second derivatives.
    (SPLADE v2, Formal et al. 2021, section 3.)
    """
    logits = best_products(weight, hidden, mask)
    if bias is not None:
        logits = logits + bias  # after the maximum: the bias of a term is the same for every token
    return torch.log1p(torch.relu(logits))


def splade_pool_reference(hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same with all logits in memory: what `splade_pool` is tested against. [B, V]"""
    hidden = torch.where(mask[:, :, None], hidden, 0)
    logits = torch.nn.functional.linear(hidden, weight, bias)
    weights = torch.log1p(torch.relu(logits))
    return torch.where(mask[:, :, None], weights, 0).amax(dim=1)
