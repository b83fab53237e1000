"""ColBERT of PyLate and of Stanford's library, in their files, against what their code computes."""

from __future__ import annotations

import json
import string

import numpy as np
import pytest
import torch
from peers import TEXTS, assert_close, opened, ours, theirs
from safetensors.torch import load_file, save_file
from tiny import tiny_model, word_piece
from transformers import AutoModel, AutoTokenizer

from sourcier.models.checkpoints import FAMILIES, load
from sourcier.types import SourcierError

LINEAR = torch.randn(8, 32, generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def expected(folder, side, *, marker, length, expand, attend, skipped, linear=LINEAR, bias=0.0):
    """The marker's id at position 1, queries padded with mask tokens, skipped tokens of documents left out."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    found = []
    for text in TEXTS:
        first, *rest = tokenizer(text, truncation=True, max_length=length - 1)["input_ids"]
        ids = [first, tokenizer.convert_tokens_to_ids(marker), *rest]
        mask = [1] * len(ids)
        if expand and side == "query":
            missing = length - len(ids)
            ids, mask = ids + [tokenizer.mask_token_id] * missing, mask + [int(attend)] * missing
        hidden = model(torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
        kept = [side == "query" or number not in skipped for number in ids]
        vectors = torch.nn.functional.normalize(hidden @ linear.T + bias, dim=-1)
        found.append(vectors[torch.tensor(kept)].numpy())
    return found


def ids_of(words):
    vocabulary = word_piece().get_vocab()
    return {vocabulary[word] for word in words}


def pylate_folder(folder, *, bias=None, **config):
    """As PyLate 1.6 saves a model: markers as added tokens, a Dense of its own class, settings beside the prompts."""
    tiny_model("bert", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    markers = [config["query_prefix"], config["document_prefix"]]
    tokenizer.add_tokens(markers)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.pad_token = tokenizer.mask_token
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    types = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(types.items())
    ]
    dense = {
        "in_features": 32,
        "out_features": 8,
        "bias": bias is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
        "use_residual": False,
    }
    weights = {"linear.weight": LINEAR} | ({} if bias is None else {"linear.bias": bias})
    described = {
        "model_type": "ColBERT",
        "prompts": {"query": "", "document": ""},
        "similarity_fn_name": "MaxSim",
    }
    (folder / "1_Dense").mkdir()
    save_file(weights, folder / "1_Dense" / "model.safetensors")
    for name, values in {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": 255, "do_lower_case": False},
        "1_Dense/config.json": dense,
        "config_sentence_transformers.json": described | config,
    }.items():
        (folder / name).write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("config", "bias"),
    [
        (
            {"attend_to_expansion_tokens": False, "do_query_expansion": True, "skiplist_words": [",", "!"]},
            None,
        ),
        (
            {"attend_to_expansion_tokens": True, "do_query_expansion": True, "skiplist_words": []},
            torch.ones(8),
        ),
        ({"attend_to_expansion_tokens": False, "do_query_expansion": False, "skiplist_words": ["a"]}, None),
    ],
    ids=["expanded", "attended", "plain"],
)
@pytest.mark.parametrize("side", ["query", "document"])
def test_pylate(tmp_path, side, config, bias):
    lengths = {"query": 12, "document": 20}
    markers = {"query": "[Q] ", "document": "[D] "}
    folder = pylate_folder(
        tmp_path / "pylate",
        bias=bias,
        **{f"{name}_prefix": marker for name, marker in markers.items()},
        **{f"{name}_length": length for name, length in lengths.items()},
        **config,
    )
    wanted = expected(
        folder,
        side,
        marker=markers[side],
        length=lengths[side],
        expand=config["do_query_expansion"],
        attend=config["attend_to_expansion_tokens"],
        skipped=ids_of(config["skiplist_words"]),
        bias=0.0 if bias is None else bias,
    )
    assert_close(ours(load(folder), side), wanted)


def test_a_pylate_model_goes_on_to_sentence_transformers(tmp_path):
    pytest.importorskip("sentence_transformers")
    folder = pylate_folder(tmp_path / "pylate", query_prefix="[Q] ", document_prefix="[D] ", query_length=12)
    model = load(folder)
    model.save_pretrained(tmp_path / "saved")
    for saved in (folder, tmp_path / "saved"):
        peer = opened(saved, "colbert")
        for side in ("query", "document"):
            assert_close(theirs(peer, side)[:4], ours(model, side)[:4])


def stanford_folder(folder, *, architecture="HF_ColBERT", metadata=None, pickled=False):
    """`linear.weight` beside `bert.*`, and `artifact.metadata` or none."""
    tiny_model("bert", folder)
    weights = load_file(folder / "model.safetensors") | {"linear.weight": LINEAR}
    (folder / "model.safetensors").unlink()
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    if metadata is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


METADATA = {
    "query_token_id": "[unused2]",
    "doc_token_id": "[unused3]",
    "query_token": "[Q]",
    "doc_token": "[D]",
    "dim": 8,
    "doc_maxlen": 15,
    "query_maxlen": 10,
    "mask_punctuation": False,
    "attend_to_mask_tokens": True,
    "interaction": "colbert",
    "similarity": "cosine",
}


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("pickled", [False, True])
def test_stanford_with_metadata(tmp_path, side, pickled):
    folder = stanford_folder(tmp_path / "stanford", metadata=METADATA, pickled=pickled)
    marker, length = {"query": ("[unused2]", 10), "document": ("[unused3]", 15)}[side]
    wanted = expected(folder, side, marker=marker, length=length, expand=True, attend=True, skipped=set())
    assert_close(ours(load(folder), side), wanted)


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("architecture", ["HF_ColBERT", "BertModel"])
def test_stanford_without_metadata(tmp_path, side, architecture):
    folder = stanford_folder(tmp_path / "stanford", architecture=architecture)
    marker, length = {"query": ("[unused0]", 32), "document": ("[unused1]", 220)}[side]
    skipped = ids_of(string.punctuation)
    wanted = expected(folder, side, marker=marker, length=length, expand=True, attend=False, skipped=skipped)
    assert_close(ours(load(folder), side), wanted)


def test_stanford_is_saved_for_all(tmp_path):
    model = load(stanford_folder(tmp_path / "stanford"))
    model.save_pretrained(tmp_path / "saved")
    assert_close(ours(load(tmp_path / "saved"), "document"), ours(model, "document"), tolerance=0)
    assert "linear.weight" not in load_file(tmp_path / "saved" / "model.safetensors")


@pytest.mark.parametrize(("key", "value"), [("similarity", "l2"), ("interaction", "flipr")])
def test_other_scores_are_refused(tmp_path, key, value):
    folder = stanford_folder(tmp_path / "stanford", metadata=METADATA | {key: value})
    with pytest.raises(SourcierError, match=f"'{key}' is '{value}'"):
        load(folder)


def test_a_lost_projection_is_named(tmp_path):
    """Not drawn at random in silence. (Hazard D1.)"""
    folder = stanford_folder(tmp_path / "stanford", metadata=METADATA)
    weights = load_file(folder / "model.safetensors")
    del weights["linear.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SourcierError, match=r"weight 'linear\.weight' of ColBERT is missing"):
        load(folder)


def test_metadata_of_another_size_is_refused(tmp_path):
    folder = stanford_folder(tmp_path / "stanford", metadata=METADATA | {"dim": 16})
    with pytest.raises(SourcierError, match=r"'dim' is 16, and 'linear\.weight' has 8 rows"):
        load(folder)


def test_a_projection_of_another_size_is_refused(tmp_path):
    folder = stanford_folder(tmp_path / "stanford")
    with pytest.raises(SourcierError, match=r"'projection\.weight' has the shape \(8, 32\), not \(16, 32\)"):
        FAMILIES["colbert"].from_base(folder, dimension=16)


def test_loading_twice_gives_the_same(tmp_path):
    """Whatever the random numbers before. (Hazard D1.)"""
    folder = stanford_folder(tmp_path / "stanford")
    torch.manual_seed(1)
    one = ours(load(folder), "document")
    torch.manual_seed(2)
    assert all(np.array_equal(a, b) for a, b in zip(one, ours(load(folder), "document"), strict=True))
