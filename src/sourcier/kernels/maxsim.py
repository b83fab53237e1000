"""MaxSim of many queries with many documents without the products of all tokens with all tokens in memory.

Shapes: Q queries, N documents, Lq and Ld their padded tokens, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sourcier.kernels.best_products import best_products


def maxsim(queries: Tensor, query_mask: Tensor, documents: Tensor, document_mask: Tensor) -> Tensor:
    """For each query and document, the sum over query tokens of the best product with a document token. [Q, N]

    `queries` [Q, Lq, D]; `query_mask` [Q, Lq] bool; `documents` [N, Ld, D]; `document_mask` [N, Ld] bool.
    Padding may be anything, NaN included: a padded query token adds 0, a padded document token is never the best.
    A document without a token scores 0 with every query. The gradient goes to the best token (to the first of equals).
    No second derivatives. (ColBERT, Khattab and Zaharia 2020, section 3.3.)
    """
    best = best_products(queries.flatten(0, 1), documents, document_mask)
    best = best.unflatten(1, query_mask.shape)  # [N, Q, Lq]
    counts = query_mask & document_mask.any(dim=1)[:, None, None]
    return torch.where(counts, best, 0).sum(dim=-1).T


def maxsim_pairs(queries: Tensor, query_mask: Tensor, documents: Tensor, document_mask: Tensor) -> Tensor:
    """MaxSim of query i with document i; shapes and rules as for `maxsim`, with Q = N. [N]

    The best tokens are found without a graph; only the products with them are differentiated.
    """
    with torch.no_grad():
        best = _products(queries, query_mask, documents, document_mask).argmax(dim=-1)  # [N, Lq]
    counts = query_mask & document_mask.any(dim=1, keepdim=True)
    chosen = documents.gather(1, best[:, :, None].expand(-1, -1, documents.shape[-1]))
    products = torch.where(counts[:, :, None], queries, 0) * torch.where(counts[:, :, None], chosen, 0)
    return products.sum(dim=(1, 2))


def maxsim_reference(queries: Tensor, query_mask: Tensor, documents: Tensor, document_mask: Tensor) -> Tensor:
    """The same as `maxsim` with all products in memory: what it is tested against. [Q, N]"""
    products = _products(queries[:, None], query_mask[:, None], documents, document_mask)  # [Q, N, Lq, Ld]
    best = products.amax(dim=-1)
    counts = query_mask[:, None] & document_mask.any(dim=1)[:, None]
    return torch.where(counts, best, 0).sum(dim=-1)


def _products(queries: Tensor, query_mask: Tensor, documents: Tensor, document_mask: Tensor) -> Tensor:
    """Products of query tokens and document tokens, -inf at padded document tokens. [..., Lq, Ld]"""
    queries = torch.where(query_mask[..., None], queries, 0)
    documents = torch.where(document_mask[..., None], documents, 0)
    products = queries @ documents.transpose(-1, -2)
    return products.masked_fill(~document_mask[..., None, :], -torch.inf)
