"""What every family does alike: encoding in any batch, odd texts, padding, training mode, gradients, fingerprints."""

from __future__ import annotations

import copy
import re
import threading
import warnings
from dataclasses import fields

import numpy as np
import pytest
import torch
from tiny import DECODERS, ENCODERS, POSITIONS, tiny_model

from sourcier.models import FAMILIES, encoder
from sourcier.models.dense import Dense
from sourcier.models.representations import Representation
from sourcier.types import SourcierError

FAMILY_NAMES = ("dense", "splade", "sparse_embed", "colbert")
EVERY = [(family, kind) for family in FAMILY_NAMES for kind in ENCODERS] + [
    ("dense", kind) for kind in DECODERS
]
TEXTS = [
    "water in the ground",
    "",
    "find a well, quickly!",
    "spring " * 90,
    " ",
    "...",
    "\u200b",
    "é ß 水 🜄",
    "a",
]


def arrays(encoding):
    return {item.name: getattr(encoding, item.name) for item in fields(encoding)}


def assert_close(encoding, other, tolerance=1e-5):
    for name, array in arrays(encoding).items():
        np.testing.assert_allclose(array, arrays(other)[name], atol=tolerance, err_msg=name)


@pytest.mark.parametrize(("family", "kind"), EVERY)
def test_a_text_is_encoded_alike_in_every_batch(build, family, kind):
    model = build(family, kind)
    for side in ("query", "document"):
        together = model.encode(TEXTS, side)
        alone = type(together).concatenate([model.encode([text], side, batch_size=1) for text in TEXTS])
        assert len(together) == len(TEXTS)
        assert all(np.isfinite(array).all() for array in arrays(together).values())
        assert_close(together, alone)


@pytest.mark.parametrize(("family", "kind"), EVERY)
def test_texts_beyond_the_limit_are_cut_with_one_warning(base, family, kind):
    """2,000 words of one token, where the table of positions ends at 256. (Hazard C4.)"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = FAMILIES[family].from_base(base(kind), query_length=4096, document_length=4096)
        for side in ("query", "document"):
            (long,) = model.tokens.rows(["a " * 2000], side)
            encoding = model.encode(["a " * 2000, "water"], side)
            assert len(long) == POSITIONS
            assert all(np.isfinite(array).all() for array in arrays(encoding).values())
            assert_close(encoding.take(np.array([1])), model.encode(["water"], side))
    limit = f"query_length=4096 and document_length=4096: .* has positions for {POSITIONS} tokens"
    (message,) = {str(warning.message) for warning in caught if warning.category is UserWarning}
    assert re.match(limit, message)
    assert sum(warning.category is UserWarning for warning in caught) == 1


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_no_texts_give_an_empty_encoding_of_the_same_width(build, family):
    model = build(family)
    empty, one = arrays(model.encode([], "document")), arrays(model.encode(["a"], "document"))
    assert len(model.encode([], "document")) == 0
    assert all(empty[name].shape[1:] == array.shape[1:] for name, array in one.items())


def test_windows_keep_the_order(build, monkeypatch):
    model = build("colbert")
    whole = model.encode(TEXTS, "document")
    monkeypatch.setattr(encoder, "WINDOW", 4)
    assert_close(model.encode(TEXTS, "document"), whole)


def test_batches_hold_a_budget_of_padded_tokens():
    assert list(encoder._batches([9, 6, 3, 3, 1, 1, 1], 8, 3)) == [
        slice(0, 1),  # longer than the budget, alone
        slice(1, 2),
        slice(2, 4),
        slice(4, 7),
    ]


def test_encodings_are_float32_whatever_the_weights_are(base):
    model = Dense.from_base(base("bert"), dtype=torch.bfloat16)
    assert model.encode(["a"], "query").vectors.dtype == np.float32


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_encoding_puts_training_mode_back_as_it_was(build, family):
    model = build(family).train()
    model.backbone.model.base_model.embeddings.eval()
    before = [module.training for module in model.modules()]
    model.encode(["a"], "query")
    assert [module.training for module in model.modules()] == before


def test_two_threads_that_encode_both_see_evaluation_mode(build):
    model = build("dense").train()
    first_left = threading.Event()
    with model._evaluating():

        def other():
            with model._evaluating():
                pass
            first_left.set()

        threading.Thread(target=other).start()
        assert first_left.wait(10)
        assert not model.training
    assert model.training


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_copy_of_a_model_encodes_alike(build, family):
    model = build(family)
    encoded = model.encode(TEXTS, "document")
    assert_close(copy.deepcopy(model).encode(TEXTS, "document"), encoded, 0)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_nan_at_padding_and_rows_that_are_all_padding_do_no_harm(build, family, monkeypatch):
    model = build(family, **({"query_expansion": 0} if family == "colbert" else {}))
    features = model.tokenize(["water", "find a well", "a"], "query")
    for name in features.keys() - {"input_ids"}:
        features[name][2] = 0
    clean = encode_and_backward(model, features)
    backbone, mask = model.backbone, features["attention_mask"].bool()[:, :, None]
    hidden, terms = backbone.hidden(features), None
    if family in ("splade", "sparse_embed"):
        hidden, terms = backbone.hidden_and_terms(features)
        terms = torch.where(mask, terms, torch.nan)
    hidden = torch.where(mask, hidden, torch.nan)
    monkeypatch.setattr(backbone, "hidden", lambda *_, **__: hidden)
    monkeypatch.setattr(backbone, "terms", lambda _: terms, raising=False)
    monkeypatch.setattr(backbone, "hidden_and_terms", lambda _: (hidden, terms), raising=False)
    poisoned = encode_and_backward(model, features)
    for name, tensor in clean[0].tensors().items():
        assert torch.isfinite(tensor).all(), name
        torch.testing.assert_close(poisoned[0].tensors()[name], tensor)
    for name, gradient in poisoned[1].items():
        assert torch.isfinite(gradient).all(), name


def encode_and_backward(model, features) -> tuple[Representation, dict[str, torch.Tensor]]:
    model.zero_grad()
    representation = model(features, "query")
    representation.scores(representation).sum().backward()
    return representation.detach(), {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize(
    ("family", "kind", "checkpointed"),
    [
        (family, kind, checkpointed)
        for family, kind in EVERY
        for checkpointed in (False, True)
        if not checkpointed or family == "dense" or kind == "bert"
    ],
)
def test_a_step_reaches_every_parameter_and_keeps_no_buffer(build, family, kind, checkpointed):
    model = build(family, kind).train()
    if checkpointed:
        model.checkpoint_activations()
    queries = model(model.tokenize(["find a well", "water"], "query"), "query")
    for buffer in model.buffers():  # as DistributedDataParallel writes its broadcast
        buffer.copy_(buffer.clone())
    documents = model(model.tokenize(["a well in the ground, with water", "rain"], "document"), "document")
    loss = torch.nn.functional.cross_entropy(queries.scores(documents), torch.tensor([0, 1]))
    if queries.activations is not None:
        loss = loss + queries.activations.mean(dim=0).square().sum()
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_a_fingerprint_changes_with_weights_and_settings(build):
    model = build("dense")
    before = model.fingerprint()
    assert model.fingerprint() == before
    assert build("dense", query_prompt="query: ").fingerprint() != before
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    assert model.fingerprint() != before


def test_progress_is_shown_on_standard_error(build, capsys):
    build("dense").encode(["a"], "query", progress=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_holds_a_text(build, batch_size):
    with pytest.raises(ValueError, match="batch_size"):
        build("dense").encode(["a"], "query", batch_size=batch_size)


def test_a_side_that_is_none_is_named(build):
    with pytest.raises(ValueError, match="unknown side of a search 'qery': did you mean 'query'"):
        build("dense").encode(["a"], "qery")


@pytest.mark.parametrize(
    ("family", "setting", "least"),
    [("dense", "query_length", 1), ("sparse_embed", "document_terms", 1), ("colbert", "query_expansion", 0)],
)
def test_sizes_below_the_least_are_refused(family, setting, least):
    with pytest.raises(SourcierError, match=f"{setting}={least - 1} must be at least {least}"):
        FAMILIES[family].Config(**{setting: least - 1})


@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert"])
def test_dropout_is_set_in_attention_too(kind, tmp_path):
    """With the base's dropout two passes in training mode differ; without any they are the same."""
    dropouts = {
        "bert": {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5},
        "distilbert": {"dropout": 0.5, "attention_dropout": 0.5},
        "modernbert": {"attention_dropout": 0.5, "embedding_dropout": 0.5, "mlp_dropout": 0.5},
    }
    model = FAMILIES["dense"].from_base(tiny_model(kind, tmp_path / kind, **dropouts[kind])).train()
    features = model.tokenize(["water ground spring well"], "document")

    def differ():
        return not torch.equal(*(model(features, "document").vectors for _ in range(2)))

    assert differ()
    model.set_dropout(0.0)
    assert not differ()
