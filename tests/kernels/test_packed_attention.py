"""Attention of packed texts against the plain form: values, gradients, dropout, separation of texts and memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sourcier.kernels.packed_attention import draw_kept, packed_attention, packed_attention_reference

LENGTHS = [5, 1, 0, 7, 7, 3]
TOKENS, HEADS, WIDTH, SCALE = sum(LENGTHS), 3, 4, 0.7


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values as an encoder makes them: one tensor with the heads inside, seen head by head."""
    random = torch.Generator().manual_seed(0)
    return [
        torch.randn(TOKENS, HEADS, WIDTH, generator=random, dtype=dtype, requires_grad=True) for _ in range(3)
    ]


def gradients(attended: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    upstream = torch.linspace(-1, 2, attended.numel(), dtype=attended.dtype).view_as(attended)
    return torch.autograd.grad(attended, tensors, upstream)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_values_and_gradients_are_those_of_the_reference(
    dtype: torch.dtype, tolerance: float, dropout: float
) -> None:
    tensors = inputs(dtype)
    torch.manual_seed(1)
    ours = packed_attention(*tensors, LENGTHS, scale=SCALE, dropout=dropout)
    torch.manual_seed(1)
    kept = draw_kept(LENGTHS, HEADS, dropout, ours.device) if dropout else None
    plain = packed_attention_reference(*tensors, LENGTHS, scale=SCALE, kept=kept, dropout=dropout)
    torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        gradients(ours, tensors), gradients(plain, tensors), rtol=tolerance, atol=tolerance
    )


def test_the_reference_is_torch_on_each_text() -> None:
    queries, keys, values = (tensor.detach() for tensor in inputs())
    plain = packed_attention_reference(queries, keys, values, LENGTHS, scale=SCALE)
    last = slice(TOKENS - LENGTHS[-1], TOKENS)
    alone = torch.nn.functional.scaled_dot_product_attention(
        *(tensor[last].transpose(0, 1) for tensor in (queries, keys, values)), scale=SCALE
    )
    torch.testing.assert_close(plain[last], alone.transpose(0, 1))


def test_gradcheck() -> None:
    assert torch.autograd.gradcheck(
        lambda *tensors: packed_attention(*tensors, LENGTHS, scale=SCALE), inputs(), fast_mode=True
    )


def test_without_gradients_the_values_are_the_same() -> None:
    tensors = inputs()
    with torch.no_grad():
        attended = packed_attention(*tensors, LENGTHS, scale=SCALE)
    torch.testing.assert_close(attended, packed_attention(*tensors, LENGTHS, scale=SCALE).detach())


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.999])
def test_weights_stay_with_the_probability_asked_for(dropout: float) -> None:
    torch.manual_seed(0)
    kept = draw_kept([400], 5, dropout, torch.device("cpu"))
    assert kept.numel() == 5 * 400 * 400
    deviation = (dropout * (1 - dropout) / kept.numel()) ** 0.5
    assert abs(kept.double().mean() - (1 - dropout)) < 4 * deviation + 2**-17


def test_dropout_that_rounds_to_none_drops_nothing() -> None:
    tensors = inputs()
    least = packed_attention(*tensors, LENGTHS, scale=SCALE, dropout=1e-7)
    assert torch.equal(least, packed_attention(*tensors, LENGTHS, scale=SCALE))


def test_dropout_leaves_the_mean_as_it_is() -> None:
    ones = torch.ones(200, 2, 4)
    torch.manual_seed(0)
    attended = packed_attention(ones, ones, ones, [200], scale=1.0, dropout=0.4)
    assert abs(attended.mean() - 1) < 0.02


def test_another_seed_drops_other_weights_and_the_same_one_the_same() -> None:
    def attended(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return packed_attention(*inputs(), LENGTHS, scale=SCALE, dropout=0.5)

    assert torch.equal(attended(3), attended(3))
    assert not torch.equal(attended(3), attended(4))


def test_checkpointing_drops_the_same_weights_again() -> None:
    tensors = inputs()

    def run(*parts: Tensor) -> Tensor:
        return packed_attention(*parts, LENGTHS, scale=SCALE, dropout=0.5)

    torch.manual_seed(2)
    right = gradients(run(*tensors), tensors)
    torch.manual_seed(2)
    again = checkpoint(run, *tensors, use_reentrant=False)
    assert all(map(torch.equal, gradients(again, tensors), right))


def test_a_text_neither_reads_nor_moves_another() -> None:
    queries, keys, values = inputs()
    attended = packed_attention(queries, keys, values, LENGTHS, scale=SCALE)
    (of_values,) = torch.autograd.grad(attended[:5].sum(), values)
    assert of_values[:5].any()
    assert not of_values[5:].any()


def test_lengths_that_do_not_sum_to_the_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="lengths sum to 4, but there are 23 tokens"):
        packed_attention(*inputs(), [4], scale=SCALE)


def test_bfloat16_is_near_float32() -> None:
    tensors = inputs(torch.float32)
    narrow = packed_attention(*(tensor.bfloat16() for tensor in tensors), LENGTHS, scale=SCALE)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(
        narrow.float(), packed_attention(*tensors, LENGTHS, scale=SCALE), rtol=0.05, atol=0.05
    )


def test_no_weights_of_all_texts_are_made(largest_tensor) -> None:  # type: ignore[no-untyped-def]
    lengths = [16] * 40
    tensors = [torch.randn(640, 2, 4, requires_grad=True) for _ in range(3)]
    with largest_tensor() as lean:
        packed_attention(*tensors, lengths, scale=1.0).sum().backward()
    assert lean.numbers <= 640 * 2 * 4
