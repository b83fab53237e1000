"""Folders of sentence-transformers: old and odd ones, what overrides them, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from peers import assert_close, opened, ours, theirs
from safetensors.torch import save_file
from tiny import tiny_model
from transformers import AutoModel, AutoTokenizer

from sourcier.models.checkpoints import FAMILIES, load
from sourcier.retrieval.retriever import Retriever
from sourcier.types import Document, SourcierError

TEXTS = ["find a well", "the lake and the river", "a page on water"]
PACKAGE = "sentence_transformers.models"


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def st_folder(folder, modules, config=None):
    """A folder with the modules (class, settings of its own), the Transformer among them in `0_Transformer`."""
    listed = []
    for number, (kind, settings) in enumerate(modules):
        path = f"{number}_{kind.rsplit('.', 1)[-1]}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": kind})
        if kind.endswith("Transformer"):
            tiny_model("bert", folder / path)
            write(folder / path / "sentence_bert_config.json", settings)
        else:
            write(folder / path / "config.json", settings)
    write(folder / "modules.json", listed)
    if config is not None:
        write(folder / "config_sentence_transformers.json", config)
    return folder


@pytest.fixture
def old(tmp_path):
    """As the first releases wrote it: a backbone in a folder of its own, pooling as flags, no model type."""
    flags = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
    return st_folder(
        tmp_path / "old",
        [
            (f"{PACKAGE}.Transformer", {"max_seq_length": 8, "do_lower_case": False}),
            (f"{PACKAGE}.Pooling", flags),
            (f"{PACKAGE}.Normalize", {}),
        ],
    )


@torch.no_grad()
def test_a_folder_of_the_first_releases(old):
    tokens = AutoTokenizer.from_pretrained(old / "0_Transformer")(
        "find a well " * 9, truncation=True, max_length=8
    )
    ids = torch.tensor([tokens["input_ids"]])
    hidden = AutoModel.from_pretrained(old / "0_Transformer")(ids).last_hidden_state[0]
    expected = torch.nn.functional.normalize(torch.cat([hidden[0], hidden.amax(dim=0)]), dim=0)
    found = load(old).encode(["find a well " * 9], "document").vectors[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_settings_that_are_given_override_those_of_the_folder(old):
    taken = FAMILIES["dense"].from_base(old)
    assert (taken.config.pooling, taken.config.query_length) == (("cls", "max"), 8)
    given = FAMILIES["dense"].from_base(old, pooling="mean", similarity="dot", query_length=9)
    assert (given.config.pooling, given.config.similarity) == ("mean", "dot")
    assert (given.config.query_length, given.config.document_length) == (9, 8)


def test_another_family_takes_the_hugging_face_model_alone(minilm):
    model = FAMILIES["colbert"].from_base(minilm, dimension=8)
    assert model.config.query_prompt == ""
    assert model.config.query_length == 64


def test_from_pretrained_takes_only_its_own_family(old):
    with pytest.raises(SourcierError, match=r"holds a dense model, not colbert: use sourcier\.load"):
        FAMILIES["colbert"].from_pretrained(old)
    assert FAMILIES["dense"].from_pretrained(old).config.pooling == ("cls", "max")


def test_prompts_are_those_of_its_encode_query_and_encode_document(tmp_path):
    modules = [
        (f"{PACKAGE}.Transformer", {"max_seq_length": 20}),
        (f"{PACKAGE}.Pooling", {"word_embedding_dimension": 32}),
    ]
    config = {"prompts": {"query": "find: ", "passage": "page: "}, "default_prompt_name": "passage"}
    folder = st_folder(tmp_path / "prompts", modules, config)
    model, peer = load(folder), opened(folder, "dense")
    assert (model.config.query_prompt, model.config.document_prompt) == ("find: ", "")
    for side in ("query", "document"):
        assert_close(ours(model, side, TEXTS), theirs(peer, side, TEXTS))


def test_lower_case_is_what_the_folder_asks_for(tmp_path):
    modules = [
        (f"{PACKAGE}.Transformer", {"max_seq_length": 20, "do_lower_case": True}),
        (f"{PACKAGE}.Pooling", {}),
    ]
    folder = st_folder(tmp_path / "lower", modules)
    tiny_model("roberta", folder / "0_Transformer")
    model = load(folder)
    vectors = model.encode(["Find A Well", "find a well"], "query").vectors
    assert np.array_equal(vectors[0], vectors[1])
    model.save_pretrained(tmp_path / "saved")
    assert np.array_equal(load(tmp_path / "saved").encode(["FIND A WELL"], "query").vectors[0], vectors[0])


def test_cosines_of_vectors_that_are_not_normalised_rank_as_there(tmp_path):
    """The vectors are theirs, of any length, and an index ranks by cosine as their `similarity` does."""
    modules = [
        (f"{PACKAGE}.Transformer", {"max_seq_length": 20}),
        (f"{PACKAGE}.Pooling", {"word_embedding_dimension": 32}),
    ]
    folder = st_folder(tmp_path / "cosine", modules, {"similarity_fn_name": "cosine"})
    model, peer = load(folder), opened(folder, "dense")
    documents = [f"{word} {text}" for word in ("rain", "spring", "index", "lake") for text in TEXTS]
    expected = peer.similarity(peer.encode_query(TEXTS), peer.encode_document(documents)).numpy()
    assert np.ptp(np.linalg.norm(model.encode(documents, "document").vectors, axis=1)) > 0.01
    with torch.no_grad():
        queries, rows = (
            model(model.tokenize(texts, side), side)
            for texts, side in ((TEXTS, "query"), (documents, "document"))
        )
        np.testing.assert_allclose(queries.scores(rows), expected, atol=1e-5)
    corpus = [Document(id=str(number), text=text) for number, text in enumerate(documents)]
    with Retriever.build(folder, corpus, tmp_path / "index") as retriever:
        hits = retriever.search(TEXTS, k=len(documents))
    for row in range(len(TEXTS)):
        scores = {hit.id: hit.score for hit in hits[row]}
        np.testing.assert_allclose(
            [scores[str(number)] for number in range(len(documents))], expected[row], atol=1e-5
        )


def pooling(**settings):
    return (f"{PACKAGE}.Pooling", {"word_embedding_dimension": 32, **settings})


TRANSFORMER = (f"{PACKAGE}.Transformer", {})
POOLING = pooling()


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling_mode": way}
        for way in ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    ]
    + [{"pooling_mode": ["lasttoken", "cls", "mean"]}]
    + [
        {f"pooling_mode_{way}": True, "pooling_mode_mean_tokens": False}
        for way in ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    ]
    + [{}, {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}]
    + [{"pooling_mode_cls_token": False}],
    ids=str,
)
def test_each_way_to_pool_and_several_at_once_give_their_vectors(tmp_path, settings):
    folder = st_folder(tmp_path / "pooled", [(TRANSFORMER[0], {"max_seq_length": 20}), pooling(**settings)])
    assert_close(ours(load(folder), "document", TEXTS), theirs(opened(folder, "dense"), "document", TEXTS))


def test_a_lost_pooling_is_no_mean(tmp_path):
    folder = st_folder(tmp_path / "lost", [TRANSFORMER, POOLING])
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(SourcierError, match=r"1_Pooling/config\.json: cannot be read"):
        load(folder)


def test_a_list_without_modules_is_refused(tmp_path):
    write(tmp_path / "modules.json", [])
    with pytest.raises(SourcierError, match=r"modules\.json: lists no modules"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        (
            [TRANSFORMER, (f"{PACKAGE}.LSTM", {})],
            None,
            "module LSTM in '1_LSTM' does something that Sourcier has no",
        ),
        ([TRANSFORMER], None, "module Pooling is missing"),
        ([TRANSFORMER, POOLING, ("my.code.Scale", {})], None, "is code of its own"),
        (
            [TRANSFORMER, (f"{PACKAGE}.SentencePool", {}), POOLING],
            None,
            "module SentencePool in '1_SentencePool' does something",
        ),
        (
            [TRANSFORMER, POOLING, (f"{PACKAGE}.Normalize", {}), (f"{PACKAGE}.Whitening", {})],
            None,
            "module Normalize in '2_Normalize' does something",
        ),
        ([TRANSFORMER, pooling(pooling_mode="median")], None, "pools by 'median'"),
        ([TRANSFORMER, pooling(pooling_mode=["mean", "median"])], None, "pools by 'median'"),
        ([TRANSFORMER, pooling(pooling_mode=3)], None, "pools by 3"),
        ([TRANSFORMER, pooling(pooling_mode=[])], None, "turns no way to pool on"),
        ([TRANSFORMER, pooling(pooling_mode_mean_tokens=False)], None, "turns no way to pool on"),
        (
            [TRANSFORMER, pooling(pooling_mode_median_tokens=True)],
            None,
            "sets 'pooling_mode_median_tokens'",
        ),
        ([TRANSFORMER, POOLING], {"similarity_fn_name": "euclidean"}, "'euclidean', not cosine or dot"),
        ([TRANSFORMER, POOLING], {"truncate_dim": 8}, "'truncate_dim' cuts vectors"),
        ([TRANSFORMER, POOLING], {"model_type": "CrossEncoder"}, "is a CrossEncoder"),
        ([(TRANSFORMER[0], {"model_args": {"num_labels": 3}}), POOLING], None, "sets model_args: num_labels"),
        (
            [(TRANSFORMER[0], {"transformer_task": "text-generation"}), POOLING],
            None,
            "the task 'text-generation'",
        ),
        (
            [TRANSFORMER, (f"{PACKAGE}.SpladePooling", {"pooling_strategy": "min"})],
            {"model_type": "SparseEncoder"},
            "has the task 'feature-extraction'",
        ),
        (
            [
                (f"{PACKAGE}.MLMTransformer", {}),
                (f"{PACKAGE}.SpladePooling", {}),
                (f"{PACKAGE}.SparseAutoEncoder", {}),
            ],
            {"model_type": "SparseEncoder"},
            "module SparseAutoEncoder",
        ),
        (
            [TRANSFORMER, (f"{PACKAGE}.MultiVectorMask", {}), (f"{PACKAGE}.HierarchicalTokenPooling", {})],
            {"model_type": "MultiVectorEncoder"},
            "module HierarchicalTokenPooling",
        ),
        (
            [TRANSFORMER, (f"{PACKAGE}.MultiVectorMask", {"keep_only_token_ids": [7]})],
            {"model_type": "MultiVectorEncoder"},
            "sets keep_only_token_ids",
        ),
    ],
)
def test_what_cannot_be_expressed_is_named_in_one_line(tmp_path, modules, config, message):
    folder = st_folder(tmp_path / "odd", modules, config)
    with pytest.raises(SourcierError) as caught:
        load(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_out_of_the_folder_is_refused(tmp_path):
    write(tmp_path / "modules.json", [{"type": f"{PACKAGE}.Transformer", "path": "../other"}])
    with pytest.raises(SourcierError, match="leads out of the folder"):
        load(tmp_path)


def test_a_projection_that_is_not_the_folders_is_refused(old):
    dense = {"in_features": 64, "out_features": 5, "activation_function": "torch.nn.modules.linear.Identity"}
    write(old / "3_Dense" / "config.json", dense)
    save_file(
        {"linear.weight": torch.ones(5, 64), "linear.bias": torch.ones(5)},
        old / "3_Dense" / "model.safetensors",
    )
    modules = json.loads((old / "modules.json").read_text())
    modules.insert(2, {"type": f"{PACKAGE}.Dense", "path": "3_Dense"})
    write(old / "modules.json", modules)
    assert load(old).encode(TEXTS, "query").vectors.shape == (3, 5)
    with pytest.raises(SourcierError, match="dimension=6: the layers of the projection end in 5"):
        FAMILIES["dense"].from_base(old, dimension=6)


@pytest.fixture
def dense_folder(tmp_path):
    """With a Dense of 32 to 5, whose weights a test writes."""
    identity = "torch.nn.modules.linear.Identity"
    settings = {"in_features": 32, "out_features": 5, "bias": False, "activation_function": identity}
    folder = st_folder(tmp_path / "dense", [TRANSFORMER, POOLING, (f"{PACKAGE}.Dense", settings)])
    save_file({"linear.weight": torch.ones(5, 32)}, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out_features": 6}, "weight 'linear.weight' has the shape (5, 32), and config.json says (6, 32)"),
        ({"in_features": 64}, "weight 'linear.weight' has the shape (5, 32), and config.json says (5, 64)"),
        ({"bias": True}, "weight 'linear.bias' is missing"),
        ({"use_residual": True}, "weight 'residual.weight' is missing"),
    ],
    ids=str,
)
def test_a_dense_of_another_configuration_is_refused(dense_folder, settings, message):
    path = dense_folder / "2_Dense" / "config.json"
    load(dense_folder)
    write(path, json.loads(path.read_text()) | settings)
    with pytest.raises(SourcierError, match=re.escape(f"2_Dense: {message}")):
        load(dense_folder)


def test_a_weight_that_a_dense_has_no_place_for_is_refused(dense_folder):
    weights = {"linear.weight": torch.ones(5, 32), "linear.bias": torch.ones(5)}
    save_file(weights, dense_folder / "2_Dense" / "model.safetensors")
    with pytest.raises(SourcierError, match=r"2_Dense: weight 'linear\.bias' has no place"):
        load(dense_folder)


@pytest.mark.parametrize("key", ["in_features", "out_features"])
def test_a_key_that_a_dense_lacks_is_named(dense_folder, key):
    path = dense_folder / "2_Dense" / "config.json"
    write(path, {name: value for name, value in json.loads(path.read_text()).items() if name != key})
    with pytest.raises(SourcierError, match=rf"2_Dense/config\.json: missing key '{key}'"):
        load(dense_folder)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"wait": torch.ones(3)}, "weight 'weight' is missing"),
        ({"weight": torch.ones(3)}, "has weights of 3 tokens, and its tokenizer"),
    ],
    ids=["none", "few"],
)
def test_a_table_of_queries_without_all_its_weights_is_refused(base, tmp_path, weights, message):
    folder = tmp_path / "sparse"
    FAMILIES["splade"].from_base(base("bert"), document_only=True).save_pretrained(folder)
    (folder / "sourcier.json").unlink()
    assert load(folder).config.document_only
    save_file(weights, folder / "query_0_SparseStaticEmbedding" / "model.safetensors")
    with pytest.raises(SourcierError, match=message):
        load(folder)


def test_a_repository_of_the_hub_is_read_like_a_folder(old, tmp_path, monkeypatch):
    """From the cache: what transformers alone would fetch lacks the pooling."""
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--us--wells"
    (repository / "snapshots").mkdir(parents=True)
    old.rename(repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert FAMILIES["dense"].from_base("us/wells").config.pooling == ("cls", "max")
