"""What a batch of texts becomes in each family, while gradients flow: the one thing that training and scoring know.

A representation can be sliced, concatenated, detached, gathered across ranks, scored, and turned into numpy.
It knows no model; a loss knows only its scores; so a new family is one file.

Shapes: B texts of the batch, Q queries, N documents, L padded tokens, D dimensions, V terms of the vocabulary,
K active terms that are kept a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from sourcier import encodings
from sourcier.kernels.maxsim import maxsim, maxsim_pairs
from sourcier.kernels.term_match import term_match


@dataclass(frozen=True, eq=False)
class Representation(ABC):
    """A batch of encoded texts: a record of tensors whose first axis is the text."""

    #: Whether axis 1 of every tensor counts tokens, which differ from batch to batch and are padded with zeros.
    ragged: ClassVar[bool] = False

    @abstractmethod
    def scores(self, documents: Self) -> Tensor:
        """Every query of `self` against every document. [Q, N]"""

    @abstractmethod
    def pair_scores(self, documents: Self) -> Tensor:
        """Query i of `self` against document i. [B]"""

    @abstractmethod
    def encoding(self) -> encodings.Encoding:
        """The same in numpy, without padding and gradients: what an index takes."""

    @property
    def activations(self) -> Tensor | None:
        """Term weights that a sparsity regulariser reads [B, V]; None where the family has none."""
        return None

    def scorable(self) -> Self:
        """What scoring needs of it, without what only a regulariser reads: what travels between ranks."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name; absent ones are left out."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def replace(self, **tensors: Tensor) -> Self:
        """A copy in which the named tensors are others."""
        changes: dict[str, Any] = dict(tensors)
        return replace(self, **changes)

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))

    def __getitem__(self, rows: slice | Tensor) -> Self:
        return self.replace(**{name: value[rows] for name, value in self.tensors().items()})

    def detach(self) -> Self:
        return self.replace(**{name: value.detach() for name, value in self.tensors().items()})

    def to(self, device: torch.device | str) -> Self:
        return self.replace(**{name: value.to(device) for name, value in self.tensors().items()})

    def pad(self, length: int) -> Self:
        """The same with the token axis padded to `length`; unchanged where there is no token axis."""
        if not self.ragged:
            return self
        return self.replace(**{name: pad_axis(value, 1, length) for name, value in self.tensors().items()})

    @property
    def length(self) -> int:
        """The padded token length L; 0 where there is no token axis."""
        return next(iter(self.tensors().values())).shape[1] if self.ragged else 0

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """One batch of several, padded to the longest."""
        length = max(part.length for part in parts)
        padded = [part.pad(length).tensors() for part in parts]
        return parts[0].replace(**{name: torch.cat([part[name] for part in padded]) for name in padded[0]})


@dataclass(frozen=True, eq=False)
class DenseRepresentation(Representation):
    """One vector a text. Score: dot product (cosine where the model normalises)."""

    vectors: Tensor  # [B, D]
    norms: Tensor | None = None  # [B, 1]; lengths that vectors scored as unit vectors have at rest

    def scorable(self) -> Self:
        return replace(self, norms=None)

    def scores(self, documents: Self) -> Tensor:
        return self.vectors @ documents.vectors.T

    def pair_scores(self, documents: Self) -> Tensor:
        return (self.vectors * documents.vectors).sum(dim=-1)

    def encoding(self) -> encodings.DenseVectors:
        if self.norms is None:
            return encodings.DenseVectors(to_numpy(self.vectors))
        return encodings.CosineVectors(to_numpy(self.vectors * self.norms))


@dataclass(frozen=True, eq=False)
class TermWeightRepresentation(Representation):
    """A weight for each term of the vocabulary. Score: dot product. (SPLADE, Formal et al. 2021, section 3.)"""

    weights: Tensor  # [B, V], >= 0

    @property
    def activations(self) -> Tensor:
        return self.weights

    def scores(self, documents: Self) -> Tensor:
        return self.weights @ documents.weights.T

    def pair_scores(self, documents: Self) -> Tensor:
        return (self.weights * documents.weights).sum(dim=-1)

    def encoding(self) -> encodings.TermWeights:
        weights = to_numpy(self.weights)
        rows, terms = np.nonzero(weights)
        return encodings.TermWeights(
            row_offsets(rows, len(weights)), terms.astype(np.int32), weights[rows, terms]
        )


@dataclass(frozen=True, eq=False)
class TermVectorRepresentation(Representation):
    """The K heaviest terms of a text, each with a vector of its own.

    Score: the sum over the terms that both hold of the dot product of their vectors.
    (SparseEmbed, Kong et al., SIGIR 2023, section 3.)
    """

    terms: Tensor  # [B, K] int64
    active: Tensor  # [B, K] bool; False where the text has fewer than K terms
    vectors: Tensor  # [B, K, D]
    weights: Tensor | None = None  # [B, V]; only the regulariser reads them

    @property
    def activations(self) -> Tensor | None:
        return self.weights

    def scorable(self) -> Self:
        return replace(self, weights=None)

    def scores(self, documents: Self) -> Tensor:
        return term_match(
            self.terms, self.active, self.vectors, documents.terms, documents.active, documents.vectors
        )

    def pair_scores(self, documents: Self) -> Tensor:
        common = self.terms[:, :, None] == documents.terms[:, None, :]  # [B, Kq, Kd]
        common = common & self.active[:, :, None] & documents.active[:, None, :]
        products = self.vectors @ documents.vectors.transpose(1, 2)
        return torch.where(common, products, 0).sum(dim=(1, 2))

    def encoding(self) -> encodings.TermVectors:
        """Terms in rising order, inactive ones left out."""
        order = torch.where(self.active, self.terms, torch.iinfo(self.terms.dtype).max).argsort(dim=1)
        kept = self.active.gather(1, order)
        rows = to_numpy(kept).nonzero()[0]
        vectors = self.vectors.gather(1, order[:, :, None].expand_as(self.vectors))
        return encodings.TermVectors(
            row_offsets(rows, len(self)),
            to_numpy(self.terms.gather(1, order)[kept]).astype(np.int32),
            to_numpy(vectors[kept]),
        )


@dataclass(frozen=True, eq=False)
class TokenVectorRepresentation(Representation):
    """A vector for each token. Score: MaxSim (ColBERT, Khattab and Zaharia 2020, section 3.3)."""

    ragged: ClassVar[bool] = True

    vectors: Tensor  # [B, L, D]
    mask: Tensor  # [B, L] bool; False at padding and at tokens that do not count

    def scores(self, documents: Self) -> Tensor:
        return maxsim(self.vectors, self.mask, documents.vectors, documents.mask)

    def pair_scores(self, documents: Self) -> Tensor:
        return maxsim_pairs(self.vectors, self.mask, documents.vectors, documents.mask)

    def encoding(self) -> encodings.TokenVectors:
        rows = to_numpy(self.mask).nonzero()[0]
        return encodings.TokenVectors(row_offsets(rows, len(self)), to_numpy(self.vectors[self.mask]))


def pad_axis(tensor: Tensor, axis: int, length: int) -> Tensor:
    """`tensor` with zeros appended along `axis` up to `length`."""
    missing = length - tensor.shape[axis]
    if missing == 0:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=axis)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A tensor as numpy: floating point becomes float32, which every index stores."""
    tensor = tensor.detach().cpu()
    return tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()


def row_offsets(rows: np.ndarray, count: int) -> np.ndarray:
    """Offsets of `count` ragged rows from the row number of each entry. [count + 1] int64"""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int64)
