"""Batches without their padding: the same vectors and gradients as padded ones, for every kind that can be packed."""

from __future__ import annotations

import pytest
import torch
from tiny import ENCODERS, tiny_model
from torch import Tensor

from sourcier.models.backbone import MaskedLanguageBackbone
from sourcier.models.packing import KINDS, Packing

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
IDS = torch.tensor([[5, 9, 30, 1], [5, 1, 1, 1], [7, 8, 11, 12]])
FEATURES = {"input_ids": IDS, "attention_mask": MASK}
PACKABLE = [kind for kind in ENCODERS if kind.replace("_", "-") in KINDS]


def test_packing_by_hand() -> None:
    packing = Packing.of(MASK)
    assert packing.lengths == [3, 1, 4]
    assert packing.pack(IDS).tolist() == [[5, 9, 30, 5, 7, 8, 11, 12]]
    assert packing.positions.tolist() == [[0, 1, 2, 0, 0, 1, 2, 3]]
    unpacked = packing.unpack(packing.pack(IDS)[:, :, None])[:, :, 0]
    assert unpacked.tolist() == [[5, 9, 30, 0], [5, 0, 0, 0], [7, 8, 11, 12]]


def states(backbone: MaskedLanguageBackbone, *, packed: bool) -> list[Tensor]:
    backbone._packs = packed
    hidden, terms = backbone.hidden_and_terms(FEATURES)
    return [states[MASK.bool()] for states in (hidden, terms, backbone.hidden(FEATURES))]


@pytest.mark.parametrize("kind", PACKABLE)
def test_packed_and_padded_batches_give_the_same_vectors_and_gradients(base, kind) -> None:  # type: ignore[no-untyped-def]
    backbone = MaskedLanguageBackbone.load(str(base(kind)), dtype=torch.float64).train()
    assert backbone._packs
    weights = [weight for name, weight in backbone.named_parameters() if not name.endswith("decoder.bias")]
    packed, padded = (states(backbone, packed=choice) for choice in (True, False))
    torch.testing.assert_close(packed, padded, rtol=1e-10, atol=1e-10)
    of_packed, of_padded = (
        torch.autograd.grad(sum(part.square().sum() for part in parts), weights, materialize_grads=True)
        for parts in (packed, padded)
    )
    torch.testing.assert_close(of_packed, of_padded, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["modernbert", "mpnet"])
def test_kinds_with_other_attention_stay_padded(base, kind) -> None:  # type: ignore[no-untyped-def]
    backbone = MaskedLanguageBackbone.load(str(base(kind)))
    assert not backbone._packs
    assert backbone.config._attn_implementation != "sourcier"


def test_a_vector_that_is_wanted_at_a_token_without_attention_is_made(base) -> None:  # type: ignore[no-untyped-def]
    """As ColBERT's queries want those of their mask tokens."""
    backbone = MaskedLanguageBackbone.load(str(base("bert")))
    with torch.no_grad():
        vectors = backbone.hidden(FEATURES, wanted=torch.ones_like(MASK, dtype=torch.bool))
    assert vectors.any(dim=2).all()


def test_dropout_of_attention_works_in_packed_batches(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = tiny_model("bert", tmp_path / "base", attention_probs_dropout_prob=0.5)
    backbone = MaskedLanguageBackbone.load(str(folder))

    def hidden(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return backbone.hidden(FEATURES)

    assert torch.equal(hidden(0), hidden(1))  # in evaluation nothing is dropped
    backbone.train()
    assert torch.equal(hidden(0), hidden(0))
    assert not torch.equal(hidden(0), hidden(1))


def test_a_saved_model_names_no_attention_of_ours(base, tmp_path) -> None:  # type: ignore[no-untyped-def]
    MaskedLanguageBackbone.load(str(base("bert"))).save(tmp_path)
    assert "sourcier" not in (tmp_path / "config.json").read_text()
