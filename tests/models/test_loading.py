"""Weights that are not those of the configuration beside them are refused, and what is rightly unused is not."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import DECODERS, ENCODERS, tiny_model
from transformers import BertConfig, BertForSequenceClassification

from sourcier.models.backbone import Backbone, MaskedLanguageBackbone
from sourcier.models.checkpoints import FAMILIES, load
from sourcier.models.cross_encoder import CrossEncoder
from sourcier.types import SourcierError

#: The tiny models have two layers.
LOADERS = [(Backbone, kind) for kind in ENCODERS + DECODERS] + [
    (MaskedLanguageBackbone, kind) for kind in ENCODERS
]


@pytest.fixture
def copied(base, tmp_path):
    """A folder of a kind that a test may change."""

    def copy(kind="bert"):
        return shutil.copytree(base(kind), tmp_path / kind)

    return copy


def configure(folder, **settings):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if "num_hidden_layers" in settings and "n_layers" in config:  # DistilBERT's name for it
        settings["n_layers"] = settings.pop("num_hidden_layers")
    if "num_hidden_layers" in settings and "layer_types" in config:
        settings["layer_types"] = (config["layer_types"] * 2)[: settings["num_hidden_layers"]]
    path.write_text(json.dumps(config | settings))


def rewrite(folder, change):
    """Changes the stored weights by a function of their dictionary."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def refusal(call, *arguments):
    with pytest.raises(SourcierError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("cls", "kind"), LOADERS)
def test_more_layers_than_the_configuration_says(copied, cls, kind):
    folder = copied(kind)
    configure(folder, num_hidden_layers=1)
    message = refusal(cls.load, str(folder))
    assert re.search(r"weight '\S+\.1\.\S+' has no place in the model", message)
    assert "(layers: 1 in config.json, 2 in the weights)" in message


@pytest.mark.parametrize(("cls", "kind"), LOADERS)
def test_fewer_layers_than_the_configuration_says(copied, cls, kind):
    folder = copied(kind)
    configure(folder, num_hidden_layers=3)
    message = refusal(cls.load, str(folder))
    assert re.search(r"weight '\S+\.2\.\S+' is missing", message)
    assert "(layers: 3 in config.json, 2 in the weights)" in message


def test_the_first_of_many_layers_is_named(tmp_path):
    """By its number: 2 comes before 10."""
    folder = tiny_model("bert", tmp_path / "deep", num_hidden_layers=11)
    configure(folder, num_hidden_layers=2)
    message = refusal(Backbone.load, str(folder))
    assert "'bert.encoder.layer.2.attention.output.LayerNorm.bias'" in message
    assert "(layers: 2 in config.json, 11 in the weights)" in message


def test_a_layer_lost_from_the_middle_is_named_with_both_counts(copied):
    folder = copied()
    lost = "bert.encoder.layer.0."
    rewrite(folder, lambda w: [w.pop(name) for name in list(w) if name.startswith(lost)])
    message = refusal(MaskedLanguageBackbone.load, str(folder))
    assert f"'{lost}attention.output.LayerNorm.bias' is missing" in message
    assert "(layers: 2 in config.json, 1 in the weights)" in message


def test_a_single_lost_weight_is_named_with_both_counts(copied):
    """5 weights of embeddings and 16 of each layer."""
    folder = copied()
    rewrite(folder, lambda w: w.pop("bert.encoder.layer.1.output.dense.weight"))
    message = refusal(Backbone.load, str(folder))
    assert "weight 'encoder.layer.1.output.dense.weight' is missing" in message
    assert "(weights of the encoder: 37 by config.json, 36 there)" in message


def test_a_weight_within_a_layer_that_the_kind_does_not_have_is_named(copied):
    folder = copied()
    name = "bert.encoder.layer.1.output.adapter.weight"
    rewrite(folder, lambda w: w.update({name: torch.ones(2)}))
    message = refusal(Backbone.load, str(folder))
    assert f"weight '{name}' has no place in the model" in message
    assert "(weights of the encoder: 37 by config.json, 38 there)" in message


def test_a_weight_of_another_shape_is_named_with_both(copied):
    folder = copied()
    configure(folder, intermediate_size=80)
    message = refusal(Backbone.load, str(folder))
    assert (
        "'encoder.layer.0.intermediate.dense.bias' has the shape (64,), and config.json says (80,)" in message
    )


@pytest.mark.parametrize(
    "name",
    [
        "bert.pooler.dense.weight",
        "cls.seq_relationship.weight",
        "classifier.weight",
        "linear.weight",
        "bert.embeddings.position_ids",
        "bert.encoder.layer.0.attention.self.rotary_emb.inv_freq",
    ],
)
@pytest.mark.parametrize("family", ["dense", "splade"])
def test_heads_poolers_and_stored_tables_may_be_unused(copied, family, name):
    folder = copied()
    expected = FAMILIES[family].from_base(folder).fingerprint()
    rewrite(folder, lambda w: w.update({name: torch.ones(1, 4)}))
    assert FAMILIES[family].from_base(folder).fingerprint() == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_ours_is_held_to_the_same(build, tmp_path, family):
    build(family).save_pretrained(tmp_path / "model")
    configure(tmp_path / "model", num_hidden_layers=1)
    assert "(layers: 1 in config.json, 2 in the weights)" in refusal(load, tmp_path / "model")


def test_a_cross_encoder_is_held_to_the_same(base, tmp_path):
    folder = shutil.copytree(base("bert"), tmp_path / "cross")
    config = BertConfig.from_pretrained(folder, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(folder)
    configure(folder, num_hidden_layers=1)
    assert "(layers: 1 in config.json, 2 in the weights)" in refusal(CrossEncoder, folder)
