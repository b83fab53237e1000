"""SPLADE, SparseEmbed and ColBERT of neural-cherche, in its files, against what its code computes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from peers import TEXTS, assert_close, ours, term_vectors
from tiny import tiny_model
from transformers import AutoModelForMaskedLM, AutoTokenizer

from sourcier.models.checkpoints import FAMILIES, load
from sourcier.types import SourcierError

LENGTHS = {"query": 12, "document": 30}
PREFIXES = {"query": "find: ", "document": "page: "}
LINEAR = torch.randn(8, 32, generator=torch.Generator().manual_seed(4))
SIDES = ("query", "document")


def make(folder, *, linear, masks, **changes):
    """As its `save_pretrained` writes: the masked language model, `linear.pt` of two families, `metadata.json`."""
    tiny_model("bert", folder)
    if linear:
        torch.save({"weight": LINEAR}, folder / "linear.pt")
    metadata = {
        **{f"max_length_{side}": length for side, length in LENGTHS.items()},
        **{f"{side}_prefix": prefix for side, prefix in PREFIXES.items()},
        "padding": "max_length",
        "truncation": True,
        "add_special_tokens": True,
        **({"n_mask_tokens": masks} if masks is not None else {}),
    }
    (folder / "metadata.json").write_text(json.dumps(metadata | changes))
    return folder


@torch.no_grad()
def encoded(folder, side, masks):
    """Logits and last vectors of all texts, padded to the full length, zeros at padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    suffix = " " + " ".join([tokenizer.mask_token] * masks) if masks else ""
    texts = [PREFIXES[side] + text + suffix for text in TEXTS]
    tokens = tokenizer(
        texts, truncation=True, padding="max_length", max_length=LENGTHS[side], return_tensors="pt"
    )
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    output = model(**tokens, output_hidden_states=True)
    mask = tokens["attention_mask"][:, :, None]
    return output.logits * mask, output.hidden_states[-1] * mask, mask[:, :, 0].bool()


def kept_activations(logits, side):
    """log(1 + ReLU), the largest over tokens, of which as many terms are kept as a text may have tokens."""
    weights = torch.log1p(logits.relu()).amax(dim=1)
    terms = weights.topk(LENGTHS[side], dim=1).indices
    return weights * torch.zeros_like(weights).scatter(1, terms, 1), terms


@pytest.mark.parametrize("side", SIDES)
def test_splade(tmp_path, side):
    folder = make(tmp_path / "splade", linear=False, masks=3)
    weights, _ = kept_activations(encoded(folder, side, 3)[0], side)
    assert_close(ours(load(folder), side), list(weights.numpy()))


@pytest.mark.parametrize("side", SIDES)
def test_sparse_embed(tmp_path, side):
    folder = make(tmp_path / "sparse_embed", linear=True, masks=2)
    logits, hidden, _ = encoded(folder, side, 2)
    weights, terms = kept_activations(logits, side)
    attention = logits.gather(2, terms[:, None].expand(-1, logits.shape[1], -1)).softmax(dim=2)
    vectors = torch.relu(attention.transpose(1, 2) @ hidden @ LINEAR.T)
    found = term_vectors(load(folder), side)
    for number in range(len(TEXTS)):
        active = {
            int(term): vectors[number, place].numpy()
            for place, term in enumerate(terms[number])
            if weights[number, term] > 0
        }
        assert set(found[number]) == set(active)
        for term, vector in active.items():
            np.testing.assert_allclose(found[number][term], vector, atol=1e-5)


@pytest.mark.parametrize("side", SIDES)
def test_colbert(tmp_path, side):
    folder = make(tmp_path / "colbert", linear=True, masks=None)
    _, hidden, mask = encoded(folder, side, 0)
    vectors = torch.nn.functional.normalize(hidden @ LINEAR.T, dim=2)
    assert_close(
        ours(load(folder), side), [rows[kept].numpy() for rows, kept in zip(vectors, mask, strict=True)]
    )


def test_a_folder_can_be_read_as_the_family_that_is_asked_for(tmp_path):
    """Its SPLADE opens the folder of a SparseEmbed, and early folders do not say which of two they are."""
    folder = make(tmp_path / "sparse_embed", linear=True, masks=3)
    assert load(folder).family == "sparse_embed"
    weights, _ = kept_activations(encoded(folder, "query", 3)[0], "query")
    assert_close(ours(FAMILIES["splade"].from_base(folder), "query"), list(weights.numpy()))


def test_an_early_folder_takes_the_prefixes_of_its_class(tmp_path):
    folder = make(tmp_path / "early", linear=True, masks=None)
    (folder / "metadata.json").write_text(json.dumps({"max_length_query": 9, "max_length_document": 20}))
    assert load(folder).config.query_prompt == "[Q] "
    assert load(folder).config.document_length == 20


@pytest.mark.parametrize("key", ["truncation", "add_special_tokens"])
def test_settings_that_we_do_not_have_are_named(tmp_path, key):
    folder = make(tmp_path / "odd", linear=True, masks=3, **{key: False})
    with pytest.raises(SourcierError, match=rf"metadata\.json: '{key}' is False"):
        load(folder)


def test_a_saved_copy_gives_the_same(tmp_path):
    model = load(make(tmp_path / "sparse_embed", linear=True, masks=3))
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    for one, other in zip(term_vectors(model, "query"), term_vectors(again, "query"), strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[term], other[term]) for term in one)


def test_a_projection_without_its_weight_is_named(tmp_path):
    folder = make(tmp_path / "colbert", linear=False, masks=None)
    torch.save({"wait": LINEAR}, folder / "linear.pt")
    with pytest.raises(SourcierError, match=r"linear\.pt: weight 'weight' is missing"):
        load(folder)
