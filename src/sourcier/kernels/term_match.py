"""The SparseEmbed score of many queries with many documents, through the pairs of equal terms alone.

Shapes: Q queries, N documents, Kq and Kd the terms that are kept of each, D dimensions; Tq and Td the active terms of
all queries and of all documents; P pairs of a query's term with the same term of a document.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sourcier.kernels.sparse_sums import weighted_sums

#: So many pairs are multiplied at a time: their vectors stay in the cache.
_PAIRS = 4096


def term_match(
    query_terms: Tensor,
    query_active: Tensor,
    query_vectors: Tensor,
    document_terms: Tensor,
    document_active: Tensor,
    document_vectors: Tensor,
) -> Tensor:
    """For each query and document, the sum over their common terms of the product of the terms' vectors. [Q, N]

    `…_terms` [B, K] integers, `…_active` [B, K] bool, `…_vectors` [B, K, D], with B, K = Q, Kq or N, Kd.
    What is inactive may be anything, NaN included. No second derivatives.
    (SparseEmbed, Kong et al., SIGIR 2023, section 3.)
    """
    of_query, of_document = _common(query_terms, query_active, document_terms, document_active)
    products: Tensor = _PairProducts.apply(
        query_vectors.flatten(0, 1), document_vectors.flatten(0, 1), of_query, of_document
    )
    queries, documents = len(query_terms), len(document_terms)
    cells = of_query // query_terms.shape[1] * documents + of_document // document_terms.shape[1]
    return products.new_zeros(queries * documents).index_add(0, cells, products).view(queries, documents)


def term_match_reference(
    query_terms: Tensor,
    query_active: Tensor,
    query_vectors: Tensor,
    document_terms: Tensor,
    document_active: Tensor,
    document_vectors: Tensor,
) -> Tensor:
    """The same with all terms against all terms: what `term_match` is tested against. [Q, N]"""
    common = query_terms[:, None, :, None] == document_terms[None, :, None, :]  # [Q, N, Kq, Kd]
    common = common & query_active[:, None, :, None] & document_active[None, :, None, :]
    queries = torch.where(query_active[:, :, None], query_vectors, 0)
    documents = torch.where(document_active[:, :, None], document_vectors, 0)
    products = queries[:, None] @ documents.transpose(1, 2)
    return torch.where(common, products, 0).sum(dim=(2, 3))


def _common(
    query_terms: Tensor, query_active: Tensor, document_terms: Tensor, document_active: Tensor
) -> tuple[Tensor, Tensor]:
    """The numbers, in [0, Q * Kq) and [0, N * Kd), of every pair of equal active terms. [P] each

    A join on the term: the documents' terms are sorted, and each term of a query finds its stretch of them.
    """
    of_query = query_active.flatten().nonzero().squeeze(1)  # [Tq]
    of_document = document_active.flatten().nonzero().squeeze(1)  # [Td]
    wanted = query_terms.flatten()[of_query]
    there, order = document_terms.flatten()[of_document].sort(stable=True)
    first = torch.searchsorted(there, wanted)
    counts = torch.searchsorted(there, wanted, right=True) - first
    entry = torch.arange(len(wanted), device=wanted.device).repeat_interleave(counts)  # [P], into of_query
    within = torch.arange(len(entry), device=entry.device) - (counts.cumsum(0) - counts)[entry]
    return of_query[entry], of_document[order[first[entry] + within]]


class _PairProducts(torch.autograd.Function):
    """The dot product of each pair of rows, without keeping the pairs' vectors. [P]"""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, documents: Tensor, of_query: Tensor, of_document: Tensor
    ) -> Tensor:
        ctx.save_for_backward(queries, documents, of_query, of_document)
        products = torch.empty(len(of_query), dtype=queries.dtype, device=queries.device)
        for first in range(0, len(of_query), _PAIRS):
            chunk = slice(first, first + _PAIRS)
            left, right = queries[of_query[chunk]], documents[of_document[chunk]]
            products[chunk] = (left * right).sum(dim=-1)
        return products

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        queries, documents, of_query, of_document = ctx.saved_tensors
        for_queries = for_documents = None
        if ctx.needs_input_grad[0]:
            sums = weighted_sums(documents, of_document, of_query, gradient, len(queries))
            for_queries = sums.to(queries.dtype)
        if ctx.needs_input_grad[1]:
            sums = weighted_sums(queries, of_query, of_document, gradient, len(documents))
            for_documents = sums.to(documents.dtype)
        return for_queries, for_documents, None, None
