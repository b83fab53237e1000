"""Attention of texts that lie one behind the other without padding, with dropout, and without keeping its weights.

PyTorch's own attention on a CPU has no lean form with dropout: it keeps three tensors of [texts, heads, L, L]. Here one
text is done at a time, so that its weights never leave the cache, and backward computes them again. Only
which weights were dropped is kept, a byte each.

Shapes: N texts, l tokens of one of them, T tokens of all, A heads, D dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

#: The probability of dropout is rounded to a multiple of one in so many: two random bytes decide on each weight.
_STEPS = 2**16


def packed_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Each token's mean of the values of its own text, weighted by softmax(scale * query · key). [T, A, D]

    `queries`, `keys`, `values` [T, A, D]; `lengths` [N] sums to T. Each weight is dropped with probability `dropout`,
    to the nearest 1/65536, and what stays is scaled up, as `torch.nn.functional.dropout` does. No second derivatives.
    (Vaswani et al. 2017, section 3.2.1.)
    """
    if sum(lengths) != len(queries):
        raise ValueError(f"lengths sum to {sum(lengths)}, but there are {len(queries)} tokens")
    with torch.autocast(queries.device.type, enabled=False):
        share = _kept_share(dropout)
        if share == 1 and not (torch.is_grad_enabled() and queries.requires_grad):
            return _without_gradient(queries, keys, values, lengths, scale)
        kept = draw_kept(lengths, queries.shape[1], dropout, queries.device) if share < 1 else None
        attended: Tensor = _PackedAttention.apply(queries, keys, values, kept, tuple(lengths), scale, share)
        return attended


def packed_attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    kept: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The same with the weights of all tokens with all in memory: what it is tested against. [T, A, D]

    `kept` is what `draw_kept` gave for this dropout.
    """
    text = torch.repeat_interleave(torch.tensor(lengths, device=queries.device))
    own = text[:, None] == text[None, :]  # [T, T]
    scores = torch.einsum("qad,kad->aqk", queries, keys) * scale
    weights = scores.masked_fill(~own, -torch.inf).softmax(dim=-1)
    if kept is not None:
        mask = torch.zeros_like(weights, dtype=torch.bool)
        for tokens, part in zip(_tokens(lengths), _parts(kept, lengths, len(weights)), strict=True):
            if part is not None:
                mask[:, tokens, tokens] = part
        weights = torch.where(mask, weights / _kept_share(dropout), 0)
    return torch.einsum("aqk,kad->qad", weights, values)


def draw_kept(lengths: Sequence[int], heads: int, dropout: float, device: torch.device) -> Tensor:
    """Which attention weights of each text stay, text after text; some do not. [sum of A * l * l] bool"""
    count = heads * sum(length * length for length in lengths)
    # A fourth of the draws that one of each weight would take: the generator is what costs time on a CPU.
    drawn = torch.empty(-(-count // 4), dtype=torch.int64, device=device).random_(-(2**63), None)
    return drawn.view(torch.int16)[:count] < round(_kept_share(dropout) * _STEPS) - _STEPS // 2


class _PackedAttention(torch.autograd.Function):
    """Text by text; only inputs and `kept` are saved."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        kept: Tensor | None,
        lengths: tuple[int, ...],
        scale: float,
        share: float,
    ) -> Tensor:
        ctx.save_for_backward(queries, keys, values, kept)
        ctx.lengths, ctx.scale, ctx.share = lengths, scale, share
        attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for tokens, mask in zip(_tokens(lengths), _parts(kept, lengths, queries.shape[1]), strict=True):
            query, key, value = (tensor[tokens].transpose(0, 1) for tensor in (queries, keys, values))
            weights = _weights(query, key, scale)
            if mask is not None:
                weights.mul_(mask)
            attended[tokens] = (weights @ value).div_(share).transpose(0, 1)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, kept = ctx.saved_tensors
        inputs = (queries, keys, values)
        of_queries, of_keys, of_values = (
            torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in inputs
        )
        for tokens, mask in zip(
            _tokens(ctx.lengths), _parts(kept, ctx.lengths, queries.shape[1]), strict=True
        ):
            query, key, value = (tensor[tokens].transpose(0, 1) for tensor in inputs)  # [A, l, D]
            above = gradient[tokens].transpose(0, 1) / ctx.share
            weights = _weights(query, key, ctx.scale)  # [A, l, l]
            of_weights = above @ value.transpose(1, 2)
            used = weights
            if mask is not None:
                of_weights.mul_(mask)
                used = weights * mask
            of_values[tokens] = (used.transpose(1, 2) @ above).transpose(0, 1)
            # Through the softmax: w * (g - sum of w * g), in the memory of g.
            of_weights.sub_((of_weights * weights).sum(dim=-1, keepdim=True)).mul_(weights).mul_(ctx.scale)
            of_queries[tokens] = (of_weights @ key).transpose(0, 1)
            of_keys[tokens] = (of_weights.transpose(1, 2) @ query).transpose(0, 1)
        return of_queries, of_keys, of_values, None, None, None, None


def _without_gradient(
    queries: Tensor, keys: Tensor, values: Tensor, lengths: Sequence[int], scale: float
) -> Tensor:
    """PyTorch's own form, on all neighbours of equal length at a time."""
    attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
    start = 0
    for length, group in groupby(lengths):
        stop = start + length * len(list(group))
        if length == 0:
            continue
        query, key, value = (  # [n, A, l, D]
            tensor[start:stop].unflatten(0, (-1, length)).transpose(1, 2)
            for tensor in (queries, keys, values)
        )
        own = scaled_dot_product_attention(query, key, value, scale=scale)
        attended[start:stop] = own.transpose(1, 2).flatten(0, 1)
        start = stop
    return attended


def _weights(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """softmax(scale * query · key), at least computed in float32. [A, l, l]"""
    scores = (query @ key.transpose(1, 2)).mul_(scale)
    at_least = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(dim=-1, dtype=at_least).to(scores.dtype)


def _tokens(lengths: Sequence[int]) -> Iterator[slice]:
    """Where each text lies among the tokens."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def _parts(kept: Tensor | None, lengths: Sequence[int], heads: int) -> Iterator[Tensor | None]:
    """The part of `kept` that belongs to each text, [A, l, l]; None for each where nothing is dropped."""
    start = 0
    for length in lengths:
        stop = start + heads * length * length
        yield None if kept is None else kept[start:stop].view(heads, length, length)
        start = stop


def _kept_share(dropout: float) -> float:
    """The probability that a weight stays, as two random bytes can express it."""
    return max(1, round((1 - dropout) * _STEPS)) / _STEPS
