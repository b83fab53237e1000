"""Pooling by arithmetic, and the single-vector family against plain transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from sourcier.models.dense import Dense, pool

HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [torch.nan, torch.nan]]])


@pytest.mark.parametrize(
    ("how", "mask", "expected"),
    [
        ("mean", [1, 1, 0], [2.0, 4.0]),
        ("cls", [1, 1, 0], [1.0, 2.0]),
        ("last", [1, 1, 0], [3.0, 6.0]),
        ("mean", [0, 0, 0], [0.0, 0.0]),
        ("cls", [0, 0, 0], [0.0, 0.0]),
        ("last", [0, 0, 0], [0.0, 0.0]),
    ],
)
def test_pooling_padded_on_the_right(how, mask, expected):
    assert pool(HIDDEN, torch.tensor([mask]).bool(), how).tolist() == [expected]


@pytest.mark.parametrize(
    ("how", "expected"), [("cls", [3.0, 6.0]), ("last", [1.0, 2.0]), ("mean", [2.0, 4.0])]
)
def test_pooling_padded_on_the_left(how, expected):
    mask = torch.tensor([[0, 1, 1]]).bool()
    assert pool(HIDDEN.flip(1), mask, how).tolist() == [expected]


@pytest.mark.parametrize(("kind", "expected"), [("bert", "mean"), ("llama", "last"), ("qwen2", "last")])
def test_the_pooling_suits_the_base_unless_it_is_named(build, kind, expected):
    assert build("dense", kind).config.pooling == expected
    assert build("dense", kind, pooling="cls").config.pooling == "cls"


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_decoder_is_pooled_at_the_last_token_of_the_text(build, base, kind):
    tokens = AutoTokenizer.from_pretrained(base(kind))("find water", return_tensors="pt")
    with torch.no_grad():
        expected = AutoModel.from_pretrained(base(kind))(**tokens).last_hidden_state[0, -1]
    model = build("dense", kind, similarity="dot")
    found = model.encode(["find water", "a text that is longer"], "query").vectors[0]
    torch.testing.assert_close(torch.from_numpy(found), expected)


def test_cosine_vectors_have_length_one_and_dot_vectors_their_own(build):
    cosine, dot = (
        build("dense", similarity=name).encode(["water"], "query").vectors for name in ("cosine", "dot")
    )
    assert (cosine**2).sum() == pytest.approx(1, abs=1e-6)
    assert dot / (dot**2).sum() ** 0.5 == pytest.approx(cosine, abs=1e-6)


def test_a_projection_sets_the_size_and_keeps_angles(build):
    assert build("dense", dimension=16).encode(["water"], "query").vectors.shape == (1, 16)
    same, turned = (build("dense", **settings) for settings in ({}, {"dimension": 32}))
    texts = ["water", "find a well", "rain"]
    one, other = (model.encode(texts, "query").vectors for model in (same, turned))
    assert other @ other.T == pytest.approx(one @ one.T, abs=1e-5)


def test_real_weights_give_what_their_model_card_computes(minilm):
    texts = ["How many people live in Berlin?", "Berlin has 3.8 million inhabitants.", "The spring is dry."]
    tokens = AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(minilm)(**tokens).last_hidden_state
    weights = tokens["attention_mask"][:, :, None].float()
    expected = torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1))
    found = Dense.from_base(minilm).encode(texts, "document").vectors
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=0)
