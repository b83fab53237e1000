"""The lean MaxSim against the plain one: values, gradients, padding and memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sourcier.kernels import best_products
from sourcier.kernels.maxsim import maxsim, maxsim_pairs, maxsim_reference

QUERIES, DOCUMENTS, QUERY_LENGTH, LENGTH, WIDTH = 4, 9, 7, 13, 8
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several groups of documents and several tiles of query tokens, also at the sizes of these tests."""
    monkeypatch.setattr(best_products, "_ON_CPU", best_products._TileSize(tokens=30, products=500))


def inputs(
    dtype: torch.dtype = torch.float64, documents: int = DOCUMENTS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query and document vectors with masks that have gaps; one query and one document are all padding."""
    random = torch.Generator().manual_seed(0)

    def vectors(rows: int, length: int) -> Tensor:
        return torch.randn(rows, length, WIDTH, generator=random, dtype=dtype, requires_grad=True)

    query_mask = torch.rand(QUERIES, QUERY_LENGTH, generator=random) > 0.3
    document_mask = torch.rand(documents, LENGTH, generator=random) > 0.4
    query_mask[3] = False
    document_mask[2] = False
    return vectors(QUERIES, QUERY_LENGTH), query_mask, vectors(documents, LENGTH), document_mask


def gradients(scores: Tensor, *wanted: Tensor) -> list[Tensor]:
    upstream = torch.linspace(-1, 2, scores.numel(), dtype=scores.dtype).view_as(scores)
    return list(torch.autograd.grad(scores, wanted, upstream))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_values_and_gradients_are_those_of_the_reference(dtype: torch.dtype) -> None:
    queries, query_mask, documents, document_mask = inputs(dtype)
    ours = maxsim(queries, query_mask, documents, document_mask)
    plain = maxsim_reference(queries, query_mask, documents, document_mask)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(ours, plain, **close)
    torch.testing.assert_close(
        gradients(ours, queries, documents), gradients(plain, queries, documents), **close
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_pairs_are_the_diagonal(dtype: torch.dtype) -> None:
    queries, query_mask, documents, document_mask = inputs(dtype, documents=QUERIES)
    ours = maxsim_pairs(queries, query_mask, documents, document_mask)
    plain = maxsim_reference(queries, query_mask, documents, document_mask).diagonal()
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(ours, plain, **close)
    torch.testing.assert_close(
        gradients(ours, queries, documents), gradients(plain, queries, documents), **close
    )


@pytest.mark.parametrize("form", [maxsim, maxsim_pairs])
def test_gradcheck(form) -> None:  # type: ignore[no-untyped-def]
    queries, query_mask, documents, document_mask = inputs(documents=QUERIES)
    assert torch.autograd.gradcheck(
        lambda query, document: form(query, query_mask, document, document_mask),
        (queries, documents),
        fast_mode=True,
    )


def test_padding_never_wins_over_a_negative_product() -> None:
    """Zeroed padding would give 0 here. (Hazard C1.)"""
    queries, documents = torch.tensor([[[1.0, 0.0]]]), torch.zeros(2, 5, 2)
    documents[0, 0] = torch.tensor([-0.5, 0.866])
    documents[1] = torch.tensor([0.6, 0.8])
    document_mask = torch.tensor([[True] + [False] * 4, [True] * 5])
    scores = maxsim(queries, torch.tensor([[True]]), documents, document_mask)
    torch.testing.assert_close(scores, torch.tensor([[-0.5, 0.6]]))
    twice = maxsim_pairs(
        queries.expand(2, 1, 2), torch.ones(2, 1, dtype=torch.bool), documents, document_mask
    )
    torch.testing.assert_close(twice, scores[0])


def test_a_padded_query_token_adds_nothing() -> None:
    queries, query_mask, documents, document_mask = inputs()
    kept = query_mask[0]
    alone = maxsim(queries[:1, kept], query_mask[:1, kept], documents, document_mask)
    torch.testing.assert_close(alone, maxsim(queries, query_mask, documents, document_mask)[:1])


@pytest.mark.parametrize("form", [maxsim, maxsim_pairs])
def test_padding_that_is_nan_reaches_neither_values_nor_gradients(form) -> None:  # type: ignore[no-untyped-def]
    queries, query_mask, documents, document_mask = inputs(documents=QUERIES)
    nan_queries = torch.where(query_mask[:, :, None], queries.detach(), torch.nan).requires_grad_()
    nan_documents = torch.where(document_mask[:, :, None], documents.detach(), torch.nan).requires_grad_()
    clean = form(queries, query_mask, documents, document_mask)
    ours = form(nan_queries, query_mask, nan_documents, document_mask)
    assert torch.equal(ours, clean)
    for got, right in zip(
        gradients(ours, nan_queries, nan_documents), gradients(clean, queries, documents), strict=True
    ):
        assert torch.equal(got, right)


@pytest.mark.parametrize("form", [maxsim, maxsim_pairs])
def test_a_document_or_query_without_tokens_scores_zero(form) -> None:  # type: ignore[no-untyped-def]
    queries, query_mask, documents, document_mask = inputs(documents=QUERIES)
    scores = form(queries, query_mask, documents, document_mask)
    assert not scores[..., 2].any()
    assert not scores[3].any()
    of_queries, of_documents = gradients(scores, queries, documents)
    assert not of_queries[3].any()
    assert not of_documents[2].any()


def test_inputs_need_not_be_contiguous() -> None:
    queries, query_mask, documents, document_mask = (tensor.detach() for tensor in inputs())
    ours = maxsim(
        queries.transpose(0, 1).contiguous().transpose(0, 1),
        query_mask.T.contiguous().T,
        torch.stack([documents, documents], dim=-1)[..., 0],
        document_mask.T.contiguous().T,
    )
    right = maxsim(queries, query_mask, documents, document_mask)
    torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)


def test_without_gradients_the_values_are_the_same() -> None:
    tensors = inputs()
    with torch.no_grad():
        scores = maxsim(*tensors)
    assert torch.equal(scores, maxsim(*tensors).detach())


def test_no_tensor_of_all_tokens_with_all_tokens_is_made(largest_tensor) -> None:  # type: ignore[no-untyped-def]
    tensors = inputs()
    with largest_tensor() as lean:
        maxsim(*tensors).sum().backward()
    with largest_tensor() as plain:
        maxsim_reference(*tensors).sum().backward()
    assert plain.numbers >= QUERIES * DOCUMENTS * QUERY_LENGTH * LENGTH
    assert lean.numbers <= max(500, DOCUMENTS * LENGTH * WIDTH)
