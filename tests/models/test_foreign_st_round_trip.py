"""One folder for both: sentence-transformers opens what we save and gives the same vectors, and we what it saves."""

from __future__ import annotations

import pytest
from peers import assert_close, opened, ours, theirs

from sourcier.models.checkpoints import load

pytest.importorskip("sentence_transformers")

SHARED = {"query_prompt": "find: ", "document_prompt": "page: ", "query_length": 12, "document_length": 20}
STACK = [
    {"dimension": 16, "bias": True, "activation": "tanh"},
    {"dimension": 16, "activation": "gelu", "residual": True},
    {"dimension": 7, "residual": True},
]
SETTINGS = {
    "dense": [
        {},
        {"pooling": ["cls", "max"], "dimension": 8, "similarity": "dot"},
        {"pooling": "weighted_mean", "pool_prompt": False},
        {"pooling": "mean_sqrt", "normalize": False},
        {"pooling": "last", "layers": STACK, "dimension": 7},
    ],
    "splade": [
        {},
        {"pooling": "sum", "log_twice": True},
        {"log_twice": True, "query_terms": 5, "document_terms": 5},
        {"document_only": True},
        {"document_only": True, "token_weights": True},
    ],
    "colbert": [
        {},
        {"query_expansion": 0, "dimension": 8, "query_marker": "[Q]", "document_marker": "[D]"},
        {"query_expansion": 9, "attend_to_expansion": True, "normalize": False},
        {"skip_punctuation": False, "skip_tokens": ["!"], "layers": STACK, "dimension": 7},
        {"query_marker": "", "document_marker": "", "dimension": None},
    ],
}
CASES = [(family, settings) for family, several in SETTINGS.items() for settings in several]
SIDES = ("query", "document")
# Of an empty text, sentence-transformers makes no tokens where the tokenizer has no special ones.
TEXTS = ["find a well", "Water, in the lake!", "rain " * 60, "(a) train the model"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


def check_both_ways(model, folder):
    """Ours against theirs for our folder, and for the folder that they make of it."""
    model.save_pretrained(folder)
    peer = opened(folder, model.family)
    peer.save_pretrained(str(folder.with_name("theirs")), create_model_card=False)
    back = load(folder.with_name("theirs"))
    for side in SIDES:
        expected = theirs(peer, side, texts=TEXTS)
        assert_close(ours(model, side, texts=TEXTS), expected)
        assert_close(ours(back, side, texts=TEXTS), expected)


@pytest.mark.parametrize(
    ("family", "settings"), CASES, ids=[f"{family}-{'-'.join(one)}" for family, one in CASES]
)
def test_both_libraries_open_the_same_folder(build, folder, family, settings):
    check_both_ways(build(family, **SHARED, **settings), folder)


@pytest.mark.parametrize("kind", ["roberta", "xlm_roberta", "modernbert"])
@pytest.mark.parametrize("family", SETTINGS)
def test_whatever_the_kind_of_tokenizer(build, folder, family, kind):
    check_both_ways(build(family, kind, **SHARED), folder)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_decoders_too(build, folder, kind):
    check_both_ways(build("dense", kind, **SHARED), folder)


def test_real_weights(minilm, folder):
    model, peer = load(minilm), opened(minilm, "dense")
    for side in SIDES:
        assert_close(ours(model, side), theirs(peer, side))
    check_both_ways(model, folder)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("sparse_embed", {}),
        ("splade", {"query_terms": 4, "document_terms": 5}),
        ("dense", {"query_suffix": " [MASK]"}),
        ("colbert", {"document_suffix": " [MASK]"}),
    ],
)
def test_what_cannot_be_said_to_it_is_not_said(build, folder, family, settings):
    build(family, **settings).save_pretrained(folder)
    assert not (folder / "modules.json").exists()
    assert load(folder).family == family


def test_a_folder_that_it_opens_belongs_to_a_fixed_set_of_files(build, folder):
    build("dense", dimension=8).save_pretrained(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(Exception, match=r"1_Pooling/config\.json is missing"):
        load(folder)
