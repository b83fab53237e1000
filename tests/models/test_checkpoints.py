"""The folder of a model: what is written comes back bit for bit, and what is wrong is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import ENCODERS, tiny_model
from transformers import AutoModel, AutoModelForMaskedLM

from sourcier.config import to_dict
from sourcier.models.checkpoints import FAMILIES, load
from sourcier.types import SourcierError

TEXTS = ["find a well", "", "rain and water, in the lake."]
SETTINGS = {
    "dense": {"pooling": "cls", "dimension": 8, "similarity": "dot"},
    "splade": {"document_only": True},
    "sparse_embed": {"query_terms": 5, "document_terms": 9, "dimension": 8},
    "colbert": {
        "dimension": 8,
        "query_marker": "[Q]",
        "document_marker": "[D]",
        "query_expansion": 9,
        "attend_to_expansion": True,
        "skip_punctuation": False,
    },
}
SHARED = {"query_prompt": "find: ", "document_prompt": "page: ", "query_length": 20, "document_length": 30}


def trained(build, family, kind="roberta"):
    """A model with every setting off its default, after two steps."""
    return after_two_steps(build(family, kind, **SETTINGS[family], **SHARED))


def after_two_steps(model):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        queries, documents = (model(model.tokenize(TEXTS, side), side) for side in ("query", "document"))
        queries.scores(documents).sum().backward()
        optimizer.step()
    return model.eval()


def arrays(model):
    encodings = [model.encode(TEXTS, side) for side in ("query", "document")]
    return [getattr(encoding, item.name) for encoding in encodings for item in fields(encoding)]


def assert_equal(one, other):
    assert all(np.array_equal(array, second) for array, second in zip(one, other, strict=True))


@pytest.fixture(params=FAMILIES)
def folder(request, build, tmp_path):
    """The folder of a new model of each family."""
    build(request.param).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def colbert_folder(build, tmp_path):
    build("colbert").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_model_comes_back_twice_as_it_was(build, tmp_path, family):
    model = trained(build, family)
    model.save_pretrained(tmp_path / "model")
    expected = arrays(model)
    for _ in range(2):
        again = load(tmp_path / "model")
        assert to_dict(again.config) == to_dict(model.config)
        assert again.fingerprint() == model.fingerprint()
        assert_equal(arrays(again), expected)


@pytest.mark.slow
def test_a_new_process_computes_the_same_bits(build, tmp_path):
    """Through our loader the vectors, and through that of transformers the weights. (Hazard D1.)"""
    expected, weights = {}, {}
    for family in FAMILIES:
        model = trained(build, family)
        model.save_pretrained(tmp_path / family)
        expected[family] = arrays(model)
        weights[family] = backbone_state(model)
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "import numpy as np\n"
        "from sourcier.models.checkpoints import FAMILIES, load\n"
        "from test_checkpoints import arrays, plain_state\n"
        "for family in FAMILIES:\n"
        "    folder = f'{sys.argv[1]}/{family}'\n"
        "    np.savez(f'{folder}.npz', *arrays(load(folder)))\n"
        "    np.savez(f'{folder}.plain.npz', **plain_state(folder))\n"
    )
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), str(here.parents[1] / "src")]
    subprocess.run([sys.executable, "-c", script, str(tmp_path), *paths], check=True, timeout=600)
    for family, known in expected.items():
        with np.load(tmp_path / f"{family}.npz") as stored:
            assert_equal([stored[f"arr_{number}"] for number in range(len(known))], known)
        with np.load(tmp_path / f"{family}.plain.npz") as stored:
            assert_equal([stored[name] for name in weights[family]], list(weights[family].values()))


def backbone_state(model):
    """The weights of the backbone in numpy, as transformers names them."""
    return {name: tensor.numpy() for name, tensor in model.backbone.model.state_dict().items()}


def plain_state(folder):
    """The same from the model that transformers makes of the folder."""
    family = json.loads((Path(folder) / "sourcier.json").read_text())["family"]
    kind = AutoModelForMaskedLM if family in ("splade", "sparse_embed") else AutoModel
    return {name: tensor.numpy() for name, tensor in kind.from_pretrained(folder).state_dict().items()}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_the_masked_language_head_comes_back_in_every_kind(tmp_path, kind, tied):
    """Where the decoder shares the embeddings, and where it has a matrix of its own. (Hazard D1.)"""
    base = tiny_model(kind, tmp_path / "base", tie_word_embeddings=tied)
    model = after_two_steps(FAMILIES["splade"].from_base(base))
    embeddings = model.backbone.model.get_input_embeddings().weight
    assert torch.equal(model.backbone.decoder_weight, embeddings) == tied
    model.save_pretrained(tmp_path / "model")
    assert_equal(arrays(load(tmp_path / "model")), arrays(model))
    plain = plain_state(tmp_path / "model")
    assert_equal([plain[name] for name in backbone_state(model)], list(backbone_state(model).values()))


@pytest.mark.parametrize("family", ["splade", "sparse_embed"])
def test_plain_transformers_reads_the_masked_language_model(build, tmp_path, family):
    model = trained(build, family)
    model.save_pretrained(tmp_path / "model")
    plain, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    features = model.tokenize(TEXTS, "document")
    with torch.no_grad():
        logits = plain.eval()(**features).logits
        found = model(features, "document").weights
    logits = logits.masked_fill(features["attention_mask"][:, :, None] == 0, -torch.inf)
    torch.testing.assert_close(found, torch.log1p(logits.amax(dim=1).relu()))


def test_plain_transformers_reads_the_encoder(build, tmp_path):
    model = trained(build, "colbert")
    model.save_pretrained(tmp_path / "model")
    plain = AutoModel.from_pretrained(tmp_path / "model", add_pooling_layer=False).eval()
    features = model.tokenize(TEXTS, "document")
    features.pop("scored")
    with torch.no_grad():
        tokens = features["attention_mask"].bool()
        torch.testing.assert_close(
            plain(**features).last_hidden_state[tokens], model.backbone.hidden(features)[tokens]
        )


def test_the_type_of_the_weights_is_kept(base, tmp_path):
    FAMILIES["colbert"].from_base(base("bert"), dtype=torch.bfloat16).save_pretrained(tmp_path / "model")
    assert {parameter.dtype for parameter in load(tmp_path / "model").parameters()} == {torch.bfloat16}


def test_loading_draws_no_random_numbers(colbert_folder):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    load(colbert_folder)
    assert torch.equal(torch.rand(1), expected)


def test_saving_again_replaces_the_model(build, tmp_path):
    build("dense").save_pretrained(tmp_path / "model")
    build("colbert").save_pretrained(tmp_path / "model")
    assert load(tmp_path / "model").family == "colbert"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_other_files_is_left_alone(build, tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    with pytest.raises(SourcierError, match="no model of Sourcier: choose another folder"):
        build("dense").save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_weight_that_is_not_finite_is_named_and_nothing_written(build, tmp_path, value):
    model = build("colbert")
    with torch.no_grad():
        model.projection.weight[1, 2] = value
    with pytest.raises(SourcierError, match=r"model: weight 'projection.weight' is not finite"):
        model.save_pretrained(tmp_path / "model")
    assert list(tmp_path.glob("*model*")) == []


def test_a_save_that_fails_leaves_the_earlier_model(build, tmp_path, monkeypatch):
    model = build("dense")
    model.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(
        model.tokenizer, "save_pretrained", lambda _: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        model.save_pretrained(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    load(tmp_path / "model")


def test_a_save_that_fails_at_the_last_rename_leaves_the_earlier_model(build, tmp_path, monkeypatch):
    model = build("dense")
    model.save_pretrained(tmp_path / "model")
    rename = Path.rename

    def refuse_new(self, target):
        if self.name.endswith(".new"):
            raise OSError("input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(OSError, match="input/output error"):
        model.save_pretrained(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    load(tmp_path / "model")


def test_another_family_is_named(folder):
    family = json.loads((folder / "sourcier.json").read_text())["family"]
    other = next(cls for name, cls in FAMILIES.items() if name != family)
    with pytest.raises(SourcierError, match=f"'family' is '{family}', not '{other.family}'"):
        other.from_pretrained(folder)


def test_each_missing_file_is_named(folder):
    without = {"sourcier.json"} if (folder / "modules.json").is_file() else set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in without):
        hidden = path.rename(folder.parent / path.name)
        with pytest.raises(SourcierError, match=re.escape(f"{path} is missing")):
            load(folder)
        hidden.rename(path)
    load(folder)


def test_without_our_manifest_it_is_a_folder_of_sentence_transformers(build, tmp_path):
    model = build("dense", pooling="max", dimension=8)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "sourcier.json").unlink()
    assert_equal(arrays(load(tmp_path / "model")), arrays(model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "'format' is 2, known up to 1"),
        ({"family": "colbret"}, "unknown family 'colbret': did you mean 'colbert'"),
        ({"famly": "colbert"}, "unknown key 'famly': did you mean 'family'"),
        ({"config": {"dimensoin": 8}}, "unknown key 'dimensoin': did you mean 'dimension'"),
        ({"config": {"dimension": "8 or so"}}, "'dimension' must be a whole number"),
        ({"format": 0}, "'format' is 0, which never was"),
        ({"format": "1"}, "'format' is '1'"),
        ({"format": True}, "'format' is True"),
        ({"family": ["colbert"]}, "'family' is ['colbert']"),
        ({"config": 3}, "'config' is 3"),
        ({"files": "config.json"}, "'files' is 'config.json'"),
        ({"files": [3]}, "'files' lists 3, which is no name"),
        ({"weights": [["projection.weight"]]}, "'weights' lists ['projection.weight'], which is no name"),
        ({"weights": []}, "'weights' is wrong about 'projection.weight'"),
    ],
)
def test_a_wrong_setting_is_named(colbert_folder, change, message):
    path = colbert_folder / "sourcier.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SourcierError, match=re.escape(message)) as caught:
        load(colbert_folder)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("key", ["format", "family", "config", "files", "weights"])
def test_a_missing_key_is_named(colbert_folder, key):
    path = colbert_folder / "sourcier.json"
    manifest = json.loads(path.read_text())
    del manifest[key]
    path.write_text(json.dumps(manifest))
    with pytest.raises(SourcierError, match=f"missing key '{key}'"):
        load(colbert_folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "3"])
def test_a_broken_manifest_is_one_line(colbert_folder, content):
    (colbert_folder / "sourcier.json").write_text(content)
    with pytest.raises(SourcierError, match=r"sourcier\.json: ") as caught:
        load(colbert_folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["sourcier.safetensors", "model.safetensors"])
def test_a_missing_weight_is_named(colbert_folder, file):
    weights = load_file(colbert_folder / file)
    name = sorted(weights)[0]
    del weights[name]
    save_file(weights or {"other": torch.zeros(1)}, colbert_folder / file, metadata={"format": "pt"})
    with pytest.raises(SourcierError, match=re.escape(f"weight '{name}' is missing")):
        load(colbert_folder)


def test_a_weight_of_another_shape_is_named(colbert_folder):
    save_file({"projection.weight": torch.zeros(3, 4)}, colbert_folder / "sourcier.safetensors")
    with pytest.raises(
        SourcierError, match=re.escape("weight 'projection.weight' has the shape (3, 4), not")
    ):
        load(colbert_folder)


@pytest.mark.parametrize("file", ["sourcier.safetensors", "model.safetensors"])
def test_a_file_that_was_cut_short_is_named(colbert_folder, file):
    path = colbert_folder / file
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SourcierError, match=re.escape(str(colbert_folder))):
        load(colbert_folder)


def test_a_lost_masked_language_head_is_named(build, tmp_path):
    build("splade").save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    name = "cls.predictions.transform.dense.weight"
    del weights[name]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(SourcierError, match=re.escape(name)):
        load(tmp_path / "model")


def test_a_hugging_face_folder_is_no_model_yet(base):
    with pytest.raises(SourcierError, match="from_base makes one"):
        load(base("bert"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_ours_is_no_base(folder, family):
    """A new model on it would lose its head and its settings without a word. (Hazard D1.)"""
    with pytest.raises(SourcierError, match="is a model of Sourcier: from_pretrained loads it"):
        FAMILIES[family].from_base(folder)


def test_a_folder_that_is_not_there_is_told_from_one_without_a_model(tmp_path):
    with pytest.raises(SourcierError, match=f"^{re.escape(str(tmp_path / 'run'))}: there is no such folder"):
        load(tmp_path / "run")
    with pytest.raises(SourcierError, match=r"sourcier\.json is missing: not a model of Sourcier"):
        load(tmp_path)
