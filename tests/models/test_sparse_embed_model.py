"""Term vectors by arithmetic, and against attention over the whole vocabulary."""

from __future__ import annotations

import pytest
import torch
from tiny import ENCODERS
from transformers import AutoModel, AutoModelForMaskedLM

from sourcier.models.sparse_embed import SparseEmbed, attend, term_logits

TEXTS = ["find a well", "rain and water in the lake", "a"]


def test_attention_is_a_softmax_over_the_texts_own_tokens():
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [torch.nan, torch.nan]]])
    mask = torch.tensor([[True, True, False]])
    logits = torch.tensor([[[0.0, 9.0], [0.0, 9.0 - torch.log(torch.tensor(3.0))], [5.0, torch.nan]]])
    expected = torch.tensor([[[0.5, 0.5], [0.75, 0.25]]])  # term 0: equal logits; term 1: 3 to 1
    torch.testing.assert_close(attend(hidden, logits, mask), expected)


def test_logits_of_chosen_terms_are_those_of_the_whole_decoder():
    torch.manual_seed(0)
    transformed, weight, bias = torch.randn(2, 3, 4), torch.randn(9, 4), torch.randn(9)
    terms = torch.tensor([[8, 0], [3, 5]])
    every = torch.nn.functional.linear(transformed, weight, bias)
    expected = torch.stack([every[row][:, terms[row]] for row in range(2)])
    torch.testing.assert_close(term_logits(transformed, terms, weight, bias), expected)


@pytest.mark.parametrize("kind", ENCODERS)
@torch.no_grad()
def test_vectors_are_those_of_attention_over_the_whole_vocabulary(build, base, kind):
    model = build("sparse_embed", kind, document_terms=7, dimension=8)
    for text in TEXTS:
        features = model.tokenize([text], "document")
        plain = {name: features[name] for name in ("input_ids", "attention_mask")}
        logits = AutoModelForMaskedLM.from_pretrained(base(kind)).eval()(**plain).logits[0]
        hidden = AutoModel.from_pretrained(base(kind)).eval()(**plain).last_hidden_state[0]
        every = torch.relu(logits.softmax(dim=0).T @ hidden @ model.projection.weight.T)  # [V, D]
        found = model(features, "document")
        heaviest = torch.log1p(logits.relu()).amax(dim=0)
        torch.testing.assert_close(found.weights[0], heaviest, atol=1e-5, rtol=1e-5)
        assert set(found.terms[0].tolist()) == set(heaviest.topk(7).indices.tolist())
        torch.testing.assert_close(found.vectors[0], every[found.terms[0]], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_sides_keep_their_own_number_of_terms(build):
    model = build("sparse_embed", query_terms=3, document_terms=5)
    for side, kept in (("query", 3), ("document", 5)):
        assert model(model.tokenize(TEXTS, side), side).terms.shape == (3, kept)


@torch.no_grad()
def test_terms_without_weight_are_inactive_and_zero(build):
    model = build("sparse_embed", document_terms=500)  # more than the vocabulary
    found = model(model.tokenize(TEXTS, "document"), "document")
    weights = found.weights.gather(1, found.terms)
    assert not found.active.all()
    assert torch.equal(found.active, weights > 0)
    assert (found.vectors[~found.active] == 0).all()


@torch.no_grad()
def test_untrained_scores_have_a_sane_size(splade_4m):
    torch.manual_seed(0)
    model = SparseEmbed.from_base(splade_4m)
    text = ["The aquifer under the valley feeds a spring."]
    terms, scores = (model(model.tokenize(text, "query"), "query") for _ in range(2))
    assert 0.2 < scores.scores(terms).item() / terms.active.sum().item() < 5
