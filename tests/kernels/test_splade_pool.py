"""The lean SPLADE activation against the plain one: values, gradients, padding, types and memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sourcier.kernels import best_products
from sourcier.kernels.splade_pool import splade_pool, splade_pool_reference

BATCH, LENGTH, WIDTH, TERMS = 5, 13, 8, 70
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several groups of texts and several tiles of the vocabulary, also at the sizes of these tests."""
    monkeypatch.setattr(best_products, "_ON_CPU", best_products._TileSize(tokens=30, products=600))


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a mask with gaps inside a text and one text that is all padding, a head."""
    random = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=random, dtype=dtype, requires_grad=True)
        for shape in [(BATCH, LENGTH, WIDTH), (TERMS, WIDTH), (TERMS,)]
    )
    mask = torch.rand(BATCH, LENGTH, generator=random) > 0.4
    mask[2] = False
    return hidden, mask, weight, bias


def gradients(pooled: Tensor, *wanted: Tensor) -> list[Tensor]:
    upstream = torch.linspace(-1, 2, pooled.numel(), dtype=pooled.dtype).view_as(pooled)
    return list(torch.autograd.grad(pooled, wanted, upstream))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_the_reference(dtype: torch.dtype, with_bias: bool) -> None:
    hidden, mask, weight, bias = inputs(dtype)
    wanted = [hidden, weight, bias] if with_bias else [hidden, weight]
    ours = splade_pool(hidden, mask, weight, bias if with_bias else None)
    plain = splade_pool_reference(hidden, mask, weight, bias if with_bias else None)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(ours, plain, **close)
    torch.testing.assert_close(gradients(ours, *wanted), gradients(plain, *wanted), **close)


def test_gradcheck() -> None:
    hidden, mask, weight, bias = inputs()
    assert torch.autograd.gradcheck(
        lambda *tensors: splade_pool(tensors[0], mask[1:4, :7], tensors[1], tensors[2]),
        (hidden[1:4, :7], weight[:25], bias[:25]),
        fast_mode=True,
    )


def test_arithmetic_of_one_text() -> None:
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    weight = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [-1.0, -1.0]])
    bias = torch.tensor([0.5, 0.0, 0.0])
    # logits of the two tokens: 1.5 and 2.5; -1 and 0; -1 and -2
    torch.testing.assert_close(
        splade_pool(hidden, mask, weight, bias), torch.tensor([[math.log(3.5), 0.0, 0.0]])
    )


def test_padding_that_is_nan_reaches_neither_values_nor_gradients() -> None:
    hidden, mask, weight, bias = inputs()
    poisoned = torch.where(mask[:, :, None], hidden.detach(), torch.nan).requires_grad_()
    clean, ours = splade_pool(hidden, mask, weight, bias), splade_pool(poisoned, mask, weight, bias)
    assert torch.equal(ours, clean)
    assert all(
        torch.equal(got, right)
        for got, right in zip(
            gradients(ours, poisoned, weight, bias), gradients(clean, hidden, weight, bias), strict=True
        )
    )


def test_a_text_that_is_all_padding_gives_zeros_and_takes_no_gradient() -> None:
    hidden, mask, weight, bias = inputs()
    pooled = splade_pool(hidden, mask, weight, bias)
    (of_hidden,) = gradients(pooled, hidden)
    assert not pooled[2].any()
    assert not of_hidden[2].any()


def test_a_batch_that_is_all_padding_gives_zeros() -> None:
    hidden, mask, weight, bias = inputs()
    pooled = splade_pool(hidden, torch.zeros_like(mask), weight, bias)
    assert pooled.shape == (BATCH, TERMS)
    assert not pooled.any()
    assert not any(gradient.any() for gradient in gradients(pooled, hidden, weight, bias))


def test_a_text_does_not_depend_on_its_batch() -> None:
    hidden, mask, weight, bias = inputs()
    alone = splade_pool(hidden[3:4][mask[3:4]][None], mask[3:4][mask[3:4]][None], weight, bias)
    torch.testing.assert_close(alone[0], splade_pool(hidden, mask, weight, bias)[3], rtol=1e-12, atol=1e-12)


def test_of_equal_tokens_the_first_takes_the_gradient() -> None:
    hidden = torch.ones(1, 9, 2, requires_grad=True)
    mask = torch.tensor([[False] + [True] * 8])
    pooled = splade_pool(hidden, mask, torch.ones(3, 2), None)
    pooled.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[0].any(dim=1).tolist() == [False, True] + [False] * 7


def test_inputs_need_not_be_contiguous() -> None:
    hidden, mask, weight, bias = (tensor.detach() for tensor in inputs())
    wide = torch.stack([hidden, hidden], dim=-1)
    ours = splade_pool(wide[..., 1], mask.T.contiguous().T, weight.T.contiguous().T, bias)
    torch.testing.assert_close(ours, splade_pool(hidden, mask, weight, bias), rtol=1e-12, atol=1e-12)


def test_a_frozen_head_gets_no_gradient_and_changes_none() -> None:
    hidden, mask, weight, bias = inputs()
    frozen = splade_pool(hidden, mask, weight.detach(), bias.detach())
    free = splade_pool(hidden, mask, weight, bias)
    assert torch.equal(gradients(frozen, hidden)[0], gradients(free, hidden)[0])


def test_without_gradients_the_values_are_the_same() -> None:
    hidden, mask, weight, bias = inputs()
    with torch.inference_mode():
        pooled = splade_pool(hidden, mask, weight, bias)
    assert torch.equal(pooled, splade_pool(hidden, mask, weight, bias).detach())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_no_gradient(reentrant: bool) -> None:
    hidden, mask, weight, bias = inputs()
    again = checkpoint(splade_pool, hidden, mask, weight, bias, use_reentrant=reentrant)
    again.square().sum().backward()
    expected = torch.autograd.grad(splade_pool(hidden, mask, weight, bias).square().sum(), hidden)[0]
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, expected)


def test_bfloat16_is_near_float32() -> None:
    hidden, mask, weight, bias = inputs(torch.float32)
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in (hidden, weight, bias)]
    ours = splade_pool(narrow[0], mask, narrow[1], narrow[2])
    ours.sum().backward()
    assert ours.dtype == torch.bfloat16
    assert all(tensor.grad is not None and tensor.grad.dtype == torch.bfloat16 for tensor in narrow)
    torch.testing.assert_close(ours.float(), splade_pool(hidden, mask, weight, bias), rtol=0.05, atol=0.05)


def test_autocast_computes_narrow_and_gives_gradients_in_the_type_of_the_weights() -> None:
    hidden, mask, weight, bias = inputs(torch.float32)
    exact = splade_pool(hidden, mask, weight, bias)
    with torch.autocast("cpu", torch.bfloat16):
        ours = splade_pool(hidden.bfloat16(), mask, weight, bias)
    ours.sum().backward()
    assert ours.dtype == torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert not torch.equal(ours, exact)
    torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.05)


def test_a_second_derivative_is_refused() -> None:
    hidden, mask, weight, bias = inputs()
    (first,) = torch.autograd.grad(splade_pool(hidden, mask, weight, bias).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_no_tensor_of_all_tokens_and_all_terms_is_made(largest_tensor) -> None:  # type: ignore[no-untyped-def]
    hidden, mask, weight, bias = inputs()
    with largest_tensor() as lean:
        splade_pool(hidden, mask, weight, bias).sum().backward()
    with largest_tensor() as plain:
        splade_pool_reference(hidden, mask, weight, bias).sum().backward()
    assert plain.numbers == BATCH * LENGTH * TERMS  # so the record sees what it is meant to see
    assert lean.numbers <= max(600, WIDTH * TERMS, BATCH * LENGTH * WIDTH, 2 * BATCH * TERMS)
