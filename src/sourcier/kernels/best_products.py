"""The best token of each text for each of many vectors, without the products of all with all in memory.

MaxSim (vectors: the query's tokens) and the SPLADE activation (vectors: the rows of the vocabulary matrix) both rest
on this one function. The products are made tile by tile, so that a tile never leaves the cache, and only the best one
of each text and its position are kept. Backward goes through those best tokens alone, and among them through those
whose gradient is not zero.

Padding is neither masked nor multiplied by zero: it is never read. Texts of similar length share a tile, and
the shorter ones repeat their own first token, which changes no maximum.

Shapes: R vectors, B texts, L padded tokens, D dimensions; in a tile, b texts, l tokens and r vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sourcier.kernels.sparse_sums import weighted_sums

#: The maximum over tokens is taken in two levels, over blocks of so many tokens and then over blocks: only the second
#: has to know positions, which is the slow part on a CPU.
_BLOCK = 6


class _TileSize(NamedTuple):
    """How much one tile holds: enough for a fast matrix product, little enough for the cache."""

    tokens: int
    products: int


_ON_CPU = _TileSize(tokens=512, products=2**18)
_ON_ACCELERATOR = _TileSize(tokens=2**14, products=2**24)


class Memo:
    """What searches found, so that a forward that is computed again for its activations need not search again.

    The searches of `replaying` have to be those of `recording`, in the same order. An answer is B * R numbers and
    places; the search makes B * L * R products.
    """

    def __init__(self) -> None:
        self._found: deque[tuple[Tensor, Tensor]] = deque()

    @contextmanager
    def recording(self) -> Iterator[None]:
        with _use(_RECORDER, self._found):
            yield

    @contextmanager
    def replaying(self) -> Iterator[None]:
        with _use(_REPLAYED, self._found):
            yield


_RECORDER: ContextVar[deque[tuple[Tensor, Tensor]] | None] = ContextVar("recorder", default=None)
_REPLAYED: ContextVar[deque[tuple[Tensor, Tensor]] | None] = ContextVar("replayed", default=None)


@contextmanager
def _use(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def best_products(vectors: Tensor, texts: Tensor, mask: Tensor) -> Tensor:
    """The largest dot product of each vector with the unmasked tokens of each text. [B, R]

    `vectors` [R, D]; `texts` [B, L, D]; `mask` [B, L] bool. A text without an unmasked token gives -inf.
    Under autocast the products are made in its type; the result has the type of the inputs.
    The gradient goes to the best token; where several are equally good, to the first of them.
    """
    dtype = torch.promote_types(vectors.dtype, texts.dtype)
    device = texts.device.type
    narrow = torch.is_autocast_enabled(device) and dtype != torch.float64
    computed_in = torch.get_autocast_dtype(device) if narrow else dtype
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled() and (vectors.requires_grad or texts.requires_grad):
            best: Tensor = _BestProducts.apply(vectors, texts, mask, computed_in)
            return best
        return _search(vectors, texts, mask, computed_in, keep_tokens=False)[0]


class _BestProducts(torch.autograd.Function):
    """`_search` forward; sparse sums over the best tokens backward."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, texts: Tensor, mask: Tensor, computed_in: torch.dtype) -> Tensor:
        replayed, recorder = _REPLAYED.get(), _RECORDER.get()
        if replayed is None:
            best, tokens = _search(vectors, texts, mask, computed_in, keep_tokens=True)
        else:
            best, tokens = replayed.popleft()
        if recorder is not None:
            recorder.append((best.detach(), tokens))
        ctx.save_for_backward(vectors, texts, tokens)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        vectors, texts, tokens = ctx.saved_tensors
        text, vector = gradient.nonzero(as_tuple=True)
        values, token = gradient[text, vector], tokens[text, vector]
        of_vectors = of_texts = None
        if ctx.needs_input_grad[0]:
            sums = weighted_sums(texts.flatten(0, 1), token, vector, values, len(vectors))
            of_vectors = sums.to(vectors.dtype)
        if ctx.needs_input_grad[1]:
            sums = weighted_sums(vectors, vector, token, values, texts.shape[0] * texts.shape[1])
            of_texts = sums.view(texts.shape).to(texts.dtype)
        return of_vectors, of_texts, None, None


def _search(
    vectors: Tensor, texts: Tensor, mask: Tensor, computed_in: torch.dtype, *, keep_tokens: bool
) -> tuple[Tensor, Tensor]:
    """The best products [B, R], and the number in [0, B * L) of the token that gave each (empty if not kept). [B, R]"""
    size = _ON_CPU if texts.device.type == "cpu" else _ON_ACCELERATOR
    shape = len(texts), len(vectors)
    best = vectors.new_full(shape, -torch.inf, dtype=torch.promote_types(vectors.dtype, texts.dtype))
    tokens = torch.zeros(shape if keep_tokens else (0, 0), dtype=torch.int32, device=texts.device)
    flat = texts.flatten(0, 1)
    for members, numbers in _groups(mask, size.tokens):
        group = flat[numbers.flatten()].to(computed_in)  # [b * l, D]
        width = max(1, size.products // len(group))
        for first in range(0, len(vectors), width):
            tile = slice(first, first + width)
            products = (group @ vectors[tile].to(computed_in).T).view(*numbers.shape, -1)  # [b, l, r]
            if keep_tokens:
                products, places = _best_places(products)
                tokens[members, tile] = numbers.gather(1, places).to(torch.int32)
            else:
                products = products.amax(dim=1)
            best[members, tile] = products.to(best.dtype)
    return best, tokens


def _groups(mask: Tensor, budget: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Texts of similar length, about `budget` tokens at a time: their numbers [b], those of their tokens [b, l].

    Only unmasked tokens are given. Shorter texts of a group repeat their first one. Texts without any are left out.
    """
    lengths, texts = mask.sum(dim=1).sort(descending=True, stable=True)
    counts = [count for count in lengths.tolist() if count > 0]
    places = mask.to(torch.int32).argsort(dim=1, descending=True, stable=True)  # unmasked places first
    column = torch.arange(mask.shape[1], device=mask.device)
    places = torch.where(column < mask.sum(dim=1, keepdim=True), places, places[:, :1])
    start = 0
    while start < len(counts):
        longest = -(-counts[start] // _BLOCK) * _BLOCK
        stop = min(len(counts), start + max(1, budget // longest))
        members = texts[start:stop]
        wanted = torch.arange(longest, device=mask.device).clamp(max=mask.shape[1] - 1)
        yield members, members[:, None] * mask.shape[1] + places[members][:, wanted]
        start = stop


def _best_places(products: Tensor) -> tuple[Tensor, Tensor]:
    """The largest product over the tokens and the first place where it stands, `max(dim=1)`, faster. [b, r] each"""
    blocks = products.unflatten(1, (-1, _BLOCK))
    best, block = blocks.amax(dim=2).max(dim=1)
    inside = blocks.gather(1, block[:, None, None].expand(-1, 1, _BLOCK, -1)).squeeze(1).max(dim=1).indices
    return best, block * _BLOCK + inside
