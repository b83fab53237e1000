"""SPLADE activations against the plain masked language model, and queries that need no inference."""

from __future__ import annotations

import pytest
import torch
from tiny import ENCODERS
from transformers import AutoModelForMaskedLM, AutoTokenizer

from sourcier.models.splade import Splade

TEXTS = ["find a well", "rain and water in the lake", "a"]


def plain_activations(folder, texts):
    """log(1 + ReLU(logits)), the largest over tokens, from all logits. [B, V]"""
    tokens = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, padding_side="right", return_tensors="pt"
    )
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(folder).eval()(**tokens).logits
    return (torch.log1p(logits.relu()) * tokens["attention_mask"][:, :, None]).amax(dim=1)


@pytest.mark.parametrize("kind", ENCODERS)
@torch.no_grad()
def test_activations_are_those_of_the_plain_model(build, base, kind):
    model = build("splade", kind)
    weights = model(model.tokenize(TEXTS, "document"), "document").weights
    torch.testing.assert_close(weights, plain_activations(base(kind), TEXTS), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_activations_of_real_weights(splade_4m):
    model = Splade.from_base(splade_4m)
    weights = model(model.tokenize(TEXTS, "document"), "document").weights
    torch.testing.assert_close(weights, plain_activations(splade_4m, TEXTS), atol=1e-4, rtol=1e-4)


def test_a_query_that_needs_no_inference_is_its_own_distinct_tokens(build, monkeypatch):
    model = build("splade", document_only=True)
    monkeypatch.setattr(model.backbone, "terms", None)  # a call would fail
    found = model.encode(["water find water", ""], "query")
    words = sorted(model.tokenizer.convert_tokens_to_ids(["water", "find"]))
    assert found.offsets.tolist() == [0, 2, 2]
    assert found.terms.tolist() == words
    assert found.weights.tolist() == [1.0, 1.0]


def test_documents_are_encoded_alike_where_queries_are_not(build):
    plain, document_only = build("splade"), build("splade", document_only=True)
    assert (plain.encode(TEXTS, "document").weights == document_only.encode(TEXTS, "document").weights).all()
