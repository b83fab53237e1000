"""Loading of Hugging Face models, and the parts of their masked-language heads, against transformers itself."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import DECODERS, ENCODERS, POSITIONS, tiny_model
from transformers import AutoModel, AutoModelForMaskedLM

from sourcier.models.backbone import Backbone, MaskedLanguageBackbone
from sourcier.models.checkpoints import FAMILIES
from sourcier.types import SourcierError

FEATURES = {
    "input_ids": torch.tensor([[5, 9, 30, 31, 7], [5, 8, 1, 1, 1]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),
}
TOKENS = FEATURES["attention_mask"].bool()


@pytest.mark.parametrize("kind", ENCODERS)
@torch.no_grad()
def test_transformed_states_and_decoder_give_the_ordinary_logits(base, kind):
    ordinary = AutoModelForMaskedLM.from_pretrained(base(kind)).eval()(**FEATURES).logits
    backbone = MaskedLanguageBackbone.load(str(base(kind)))
    terms = backbone.terms(FEATURES)
    logits = torch.nn.functional.linear(terms, backbone.decoder_weight, backbone.decoder_bias)
    torch.testing.assert_close(logits[TOKENS], ordinary[TOKENS])


@pytest.mark.parametrize("kind", ENCODERS)
@torch.no_grad()
def test_hidden_states_are_those_of_the_base_model(base, kind):
    ordinary = AutoModel.from_pretrained(base(kind)).eval()(**FEATURES).last_hidden_state
    backbone = MaskedLanguageBackbone.load(str(base(kind)))
    hidden, terms = backbone.hidden_and_terms(FEATURES)
    torch.testing.assert_close(hidden[TOKENS], ordinary[TOKENS])
    torch.testing.assert_close(terms, backbone.terms(FEATURES))
    torch.testing.assert_close(Backbone.load(str(base(kind))).hidden(FEATURES)[TOKENS], ordinary[TOKENS])


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_decoder_stays_tied_to_the_embeddings(base, kind):
    backbone = MaskedLanguageBackbone.load(str(base(kind)))
    assert backbone.decoder_weight is backbone.model.get_input_embeddings().weight


@pytest.mark.parametrize("kind", ENCODERS + DECODERS)
def test_the_limit_is_what_the_position_table_holds(base, kind):
    assert Backbone.load(str(base(kind))).position_limit == POSITIONS


@pytest.mark.parametrize("kind", ENCODERS + DECODERS)
def test_only_decoders_are_causal(base, kind):
    assert Backbone.load(str(base(kind))).is_causal == (kind in DECODERS)


@pytest.mark.parametrize("family", ["splade", "sparse_embed"])
def test_a_base_saved_without_its_head_is_refused(tmp_path, family):
    folder = tiny_model("bert", tmp_path / "base", head=False)
    with pytest.raises(
        SourcierError, match=r"weight 'cls\.predictions\S+' of the masked-language head is missing"
    ):
        FAMILIES[family].from_base(folder)


@pytest.mark.parametrize("family", ["splade", "sparse_embed"])
def test_a_decoder_has_no_masked_language_head(base, family):
    with pytest.raises(SourcierError, match="'llama' has no masked-language head"):
        FAMILIES[family].from_base(base("llama"))


def test_a_missing_weight_of_a_base_is_named(base, tmp_path):
    folder = shutil.copytree(base("bert"), tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.weight"
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SourcierError, match=re.escape(name.removeprefix("bert."))):
        FAMILIES["dense"].from_base(folder)


def test_a_base_without_its_tokenizer_is_refused(base, tmp_path):
    folder = shutil.copytree(base("bert"), tmp_path / "base", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(SourcierError, match="tokenizer"):
        FAMILIES["dense"].from_base(folder)


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(SourcierError) as caught:
        FAMILIES["dense"].from_base(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_names_the_nearest(base):
    with pytest.raises(SourcierError, match="unknown key 'poling': did you mean 'pooling'"):
        FAMILIES["dense"].from_base(base("bert"), poling="cls")
