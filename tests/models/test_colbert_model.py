"""ColBERT's token vectors: expansion of queries, skipped punctuation, padding, bases it cannot use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import ENCODERS

from sourcier.types import SourcierError


@pytest.mark.parametrize("kind", ENCODERS)
def test_queries_are_filled_up_with_the_tokenizers_own_mask_token(build, kind):
    model = build("colbert", kind, query_expansion=12)
    features = model.tokenize(["a"], "query")
    assert features["input_ids"][0, 4:].tolist() == [model.tokenizer.mask_token_id] * 8
    assert features["scored"].tolist() == [[True] * 12]
    assert features["attention_mask"].tolist() == [[1] * 4 + [0] * 8]


def test_expansion_can_be_attended_to(build):
    features = build("colbert", query_expansion=12, attend_to_expansion=True).tokenize(["a"], "query")
    assert features["attention_mask"].tolist() == [[1] * 12]


def test_expansion_stops_at_its_length_beside_a_longer_query(build):
    features = build("colbert", query_expansion=6, query_length=20).tokenize(["a", "water " * 40], "query")
    assert features["scored"].sum(dim=1).tolist() == [6, 20]
    assert features["input_ids"].shape == (2, 20)


def test_without_expansion_a_query_has_its_own_tokens(build):
    model = build("colbert", query_expansion=0)
    assert np.diff(model.encode(["a", "find a well"], "query").offsets).tolist() == [4, 6]


@pytest.mark.parametrize(("skip", "counts"), [(True, [5, 3]), (False, [7, 6])])
def test_punctuation_of_documents_is_skipped_on_request(build, skip, counts):
    model = build("colbert", skip_punctuation=skip)
    encoding = model.encode(
        ["find, water!", "..."], "document"
    )  # opening and closing token, marker, words, marks
    assert np.diff(encoding.offsets).tolist() == counts


def test_punctuation_of_queries_counts(build):
    model = build("colbert", query_expansion=0)
    assert np.diff(model.encode(["find, water!"], "query").offsets).tolist() == [7]


@torch.no_grad()
def test_vectors_have_length_one_where_scored_and_zero_elsewhere(build):
    model = build("colbert")
    found = model(model.tokenize(["water.", "find a well in the ground"], "document"), "document")
    lengths = found.vectors.norm(dim=-1)
    torch.testing.assert_close(lengths, found.mask.float())


def test_a_base_without_mask_token_can_be_used_without_expansion(build):
    with pytest.raises(SourcierError, match="no mask token to expand queries with: set query_expansion=0"):
        build("colbert", "llama")
    encoding = build("colbert", "llama", query_expansion=0).encode(["water"], "query")
    assert np.isfinite(encoding.vectors).all()


def test_a_tokenizer_without_opening_token_has_no_place_for_markers(build):
    with pytest.raises(SourcierError, match="opens texts with no special token"):
        build("colbert", "qwen2", query_expansion=0)


def test_equal_markers_are_refused(build):
    with pytest.raises(SourcierError, match="both '\\[Q\\]'"):
        build("colbert", query_marker="[Q]", document_marker="[Q]")


def test_new_markers_start_alike_in_every_process(build):
    one, other = (build("colbert", "roberta").backbone.model.get_input_embeddings().weight for _ in range(2))
    assert torch.equal(one, other)
    assert torch.allclose(one[-1], one[:-2].mean(dim=0))
