"""Batches larger than memory: what GradCache computes (Gao et al. 2021, section 3.2), in one backward.

The loss needs the representations of all texts, but the activations behind them of only a few at a time:

1. graph-less forward: each chunk of texts is encoded; its representations stay, its activations do not;
2. the loss, and its gradient with regard to the representations, of the whole batch;
3. chunk by chunk, the encoder runs again with the same dropout, and the gradients flow on into its weights;
4. the optimizer steps.

Steps 1 and 3 are what PyTorch's activation checkpointing does when the encoder's call on a chunk is the checkpointed
function. Autograd then drives them: whatever reads representations (any loss, gathering across ranks, a regulariser)
works unchanged; DistributedDataParallel sees one backward and reduces once; and ranks may have different numbers
of chunks, since no chunk waits for another process. Where weights are sharded, each chunk gathers them and so does
wait: the step then asks for as many chunks on every rank.

Shapes: B texts, L padded tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sourcier.kernels.best_products import Memo
from sourcier.models.representations import Representation

R = TypeVar("R", bound=Representation)
Features = dict[str, Tensor]

#: The features that tell where a text has tokens: what is True in none of them is padding.
_MASKS = ("attention_mask", "scored")


def encode_in_chunks(
    encode: Callable[[Features], R],
    features: Features,
    chunk: int,
    *,
    cached: bool = True,
    least: int = 1,
) -> R:
    """`encode(features)`, `chunk` texts at a time, with the activations of one chunk in memory. B texts

    Texts of similar length share a chunk, which loses the padding that it does not need. With `cached=False` the
    activations of all chunks are kept, as those of an ordinary forward are: less padding, but no less memory.
    `least` is how many chunks there are at least: where there are too few texts, some are encoded again for nothing.
    """
    run = partial(checkpoint, encode, use_reentrant=False, context_fn=_memory) if cached else encode
    lengths = _lengths(features)
    order = lengths.argsort(descending=True, stable=True)
    count = max(least, chunks(len(order), chunk))
    filled = order[torch.arange(max(count, len(order)), device=order.device) % len(order)]
    parts = [run(_rows(features, rows, lengths)) for rows in filled.tensor_split(count)]
    return parts[0].concatenate(parts)[order.argsort()]


def _memory() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the first run of a chunk and around the second: what was searched for in the one is known in the other.

    The SPLADE activation costs as much as a small encoder. Its answer is as large as the representation, which is there
    anyway.
    """
    memo = Memo()
    return memo.recording(), memo.replaying()


def width(features: Features) -> int:
    """How many columns a batch has; 1 for a model without tokens."""
    tensor = next(iter(features.values()))
    return tensor.shape[1] if tensor.ndim > 1 else 1


def chunks(texts: int, chunk: int) -> int:
    """How many chunks of at most `chunk` texts it takes."""
    return -(-texts // chunk)


def _lengths(features: Features) -> Tensor:
    """How many columns each text needs. [B]"""
    masks = [features[name].bool() for name in _MASKS if name in features]
    if not masks:  # a model without tokens
        return torch.zeros(len(next(iter(features.values()))), dtype=torch.int64)
    used = torch.stack(masks).any(dim=0)
    columns = torch.arange(1, used.shape[1] + 1, device=used.device)
    return torch.where(used, columns, 0).amax(dim=1)


def _rows(features: Features, rows: Tensor, lengths: Tensor) -> Features:
    """Some texts of a batch, padded to the longest of them."""
    longest = max(1, int(lengths[rows].max()))
    return {
        name: value[rows, :longest] if value.ndim > 1 else value[rows] for name, value in features.items()
    }
