"""The SparseEmbed score through equal terms alone against the one through all pairs of terms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sourcier.kernels import term_match as module
from sourcier.kernels.term_match import term_match, term_match_reference

QUERIES, DOCUMENTS, QUERY_TERMS, TERMS, WIDTH, VOCABULARY = 4, 9, 6, 11, 5, 30


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks of pairs, also at the sizes of these tests."""
    monkeypatch.setattr(module, "_PAIRS", 7)


def batch(rows: int, kept: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Texts with distinct terms, some of them inactive; the second text has no active term."""
    random = torch.Generator().manual_seed(seed)
    terms = torch.rand(rows, VOCABULARY, generator=random).argsort(dim=1)[:, :kept]
    active = torch.rand(rows, kept, generator=random) > 0.2
    active[1] = False
    return terms, active, torch.randn(rows, kept, WIDTH, generator=random, dtype=dtype, requires_grad=True)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return batch(QUERIES, QUERY_TERMS, 0, dtype) + batch(DOCUMENTS, TERMS, 1, dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_values_and_gradients_are_those_of_the_reference(dtype: torch.dtype, tolerance: float) -> None:
    tensors = inputs(dtype)
    ours, plain = term_match(*tensors), term_match_reference(*tensors)
    upstream = torch.linspace(-1, 2, ours.numel(), dtype=dtype).view_as(ours)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(ours, plain, **close)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (tensors[2], tensors[5]), upstream),
        torch.autograd.grad(plain, (tensors[2], tensors[5]), upstream),
        **close,
    )


def test_gradcheck() -> None:
    terms, active, vectors, others, others_active, other_vectors = inputs()
    assert torch.autograd.gradcheck(
        lambda query, document: term_match(terms, active, query, others, others_active, document),
        (vectors, other_vectors),
    )


def test_arithmetic_of_one_pair() -> None:
    active = torch.tensor([[True, True, False]])
    score = term_match(
        torch.tensor([[7, 3, 5]]),
        active,
        torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]]),
        torch.tensor([[3, 5, 7]]),
        active,
        torch.tensor([[[10.0, 1.0], [9.0, 9.0], [9.0, 9.0]]]),
    )
    assert score.tolist() == [[34.0]]  # term 3 alone: 3 * 10 + 4 * 1; 5 and 7 are active on one side only


def test_what_is_inactive_may_be_nan() -> None:
    terms, active, vectors, others, others_active, other_vectors = inputs()
    left = torch.where(active[:, :, None], vectors.detach(), torch.nan).requires_grad_()
    right = torch.where(others_active[:, :, None], other_vectors.detach(), torch.nan).requires_grad_()
    scores = term_match(terms, active, left, others, others_active, right)
    assert torch.equal(scores, term_match(*inputs()))
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(scores.sum(), (left, right)))


def test_without_common_terms_scores_and_gradients_are_zero() -> None:
    terms, active, vectors, others, others_active, other_vectors = inputs()
    scores = term_match(terms, active, vectors, others + VOCABULARY, others_active, other_vectors)
    assert scores.shape == (QUERIES, DOCUMENTS)
    assert not scores.any()
    assert not any(gradient.any() for gradient in torch.autograd.grad(scores.sum(), (vectors, other_vectors)))
