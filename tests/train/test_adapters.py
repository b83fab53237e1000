"""What is trained of a model: low-rank adapters, or its last layers. What that leaves is a model as any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft.tuners.lora import LoraLayer
from tiny import tiny_model

from sourcier.data.examples import Example, Examples
from sourcier.models.checkpoints import FAMILIES, load
from sourcier.models.encoder import SearchModel
from sourcier.train.adapters import adapt, merge, merged_copy, release
from sourcier.train.settings import Settings
from sourcier.train.step import Collator, TrainingStep
from sourcier.train.trainer import Trainer
from sourcier.types import SourcierError

EXAMPLES = Examples(
    [
        Example(query="spring", positive="the water of the ground", negatives=("sort the array",)),
        Example(query="read", positive="open a file", negatives=("rain on the lake",)),
        Example(query="rank", positive="sort documents and score", negatives=("a river",)),
        Example(query="learn", positive="train the model on data", negatives=("close the file",)),
    ]
)
TEXTS = ["water of the lake", "train a model"]
Make = Callable[..., SearchModel]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A new model of a family on a tiny base; the same one each time."""
    bases: dict[str, Path] = {}

    def new(family: str = "dense", kind: str = "bert", dropout: float = 0.0) -> SearchModel:
        if kind not in bases:
            bases[kind] = tiny_model(kind, tmp_path_factory.mktemp(kind))
        torch.manual_seed(0)
        model = FAMILIES[family].from_base(bases[kind])
        model.set_dropout(dropout)
        return model

    return new


def settings(**given: Any) -> Settings:
    return Settings(output="run", **given)


def train(model: SearchModel, output: Path, **given: Any) -> Trainer:
    config = Trainer.Config(
        output=str(output),
        **{"steps": 3, "batch_size": 4, "negatives": 1, "learning_rate": 1e-2, "progress": False} | given,
    )
    trainer = config.build(model, EXAMPLES)
    trainer.run()
    return trainer


def learned(model: SearchModel, output: Path, **given: Any) -> set[str]:
    """The names of the weights that are others after training."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    train(model, output, **given)
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_trainable_weight_gets_a_gradient(make: Make, family: str) -> None:
    """DistributedDataParallel waits for all of them. The first product of an adapter is zero, so not the values."""
    model = make(family)
    adapt(model, settings(lora_rank=2))
    model.train()
    TrainingStep.Config().build(model)(Collator(model, 1)(EXAMPLES[:4])).loss.backward()
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert not [name for name, value in trainable.items() if value.grad is None]
    assert any("lora_A" in name for name in trainable)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_stand_beside_all_linear_layers_of_the_encoder(make: Make, family: str) -> None:
    """BERT has query, key, value, output, up and down in each of 2 layers."""
    model = make(family)
    adapt(model, settings(lora_rank=2))
    assert sum(isinstance(module, LoraLayer) for module in model.modules()) == 12


def test_named_layers_alone_get_adapters(make: Make) -> None:
    model = make()
    adapt(model, settings(lora_rank=2, lora_targets=("query", "value")))
    assert sum(isinstance(module, LoraLayer) for module in model.modules()) == 4


def test_a_target_that_is_no_layer_is_named(make: Make) -> None:
    with pytest.raises(SourcierError, match=r"lora_targets=q_proj is no linear layer: they end in .*query"):
        adapt(make(), settings(lora_rank=2, lora_targets=("q_proj",)))


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("colbert", {"projection.weight"}),
        ("sparse_embed", {"projection.weight", "transform.dense.weight", "predictions.bias"}),
        ("splade", {"transform.dense.weight", "transform.LayerNorm.bias", "predictions.bias"}),
    ],
)
def test_heads_are_trained_and_shared_embeddings_are_not(
    make: Make, tmp_path: Path, family: str, head: set[str]
) -> None:
    """The linear layers change too, since the adapters' work is added to them in the end."""
    names = learned(make(family), tmp_path / "run", lora_rank=2)
    assert all(any(name.endswith(wanted) for name in names) for wanted in head)
    assert any(name.endswith("query.weight") for name in names)
    assert not any("embeddings" in name or "attention.output.LayerNorm" in name for name in names)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_saved_model_is_plain_and_the_trained_one(make: Make, tmp_path: Path, family: str) -> None:
    model = make(family)
    trainer = train(model, tmp_path / "run", lora_rank=2)
    saved = load(trainer.folder.last)
    assert not any(isinstance(module, LoraLayer) for module in model.modules())
    assert saved.fingerprint() == model.fingerprint()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_adapters_are_merged_into_a_copy(make: Make) -> None:
    """They begin as zero, so something is put into them first."""
    model = make("colbert")
    adapt(model, settings(lora_rank=2))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)
    before = model.fingerprint()
    copied = merged_copy(model)
    vectors, merged = (one.encode(TEXTS, "document").vectors for one in (model, copied))
    np.testing.assert_allclose(merged, vectors, atol=1e-5)
    assert np.abs(vectors - make("colbert").encode(TEXTS, "document").vectors).max() > 0.1
    assert model.fingerprint() == before
    assert not any(isinstance(module, LoraLayer) for module in copied.modules())


def test_a_model_without_adapters_is_not_copied(make: Make) -> None:
    model = make()
    assert merged_copy(model) is model


def test_ties_survive_merging(make: Make) -> None:
    model = make("splade")
    adapt(model, settings(lora_rank=2))
    merge(copied := merged_copy(model))
    table = copied.backbone.model.get_input_embeddings().weight
    assert copied.backbone.decoder_weight is table


def test_dropout_reaches_adapted_layers(make: Make) -> None:
    model = make(dropout=0.1)
    adapt(model, settings(lora_rank=2))
    model.set_dropout(0.0)
    model.train()
    features = model.tokenize(TEXTS, "document")
    assert torch.equal(model(features, "document").vectors, model(features, "document").vectors)


@pytest.mark.parametrize("choice", [{"lora_rank": 2}, {"freeze_but_last": 1}], ids=str)
def test_gradient_checkpointing_changes_nothing_but_memory(
    make: Make, tmp_path: Path, choice: dict[str, int]
) -> None:
    models = [make("splade", dropout=0.1) for _ in range(2)]
    for number, model in enumerate(models):
        train(model, tmp_path / str(number), gradient_checkpointing=bool(number), **choice)
    for plain, checkpointed in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "last", "frozen"),
    [
        ("bert", "encoder.layer.1.", "encoder.layer.0."),
        ("distilbert", "transformer.layer.1.", "transformer.layer.0."),
        ("modernbert", "layers.1.", "layers.0."),
        ("electra", "encoder.layer.1.", "embeddings_project"),
        ("mpnet", "encoder.layer.1.", "encoder.layer.0."),
        ("llama", "layers.1.", "layers.0."),
    ],
)
def test_the_last_layers_alone_learn(make: Make, kind: str, last: str, frozen: str) -> None:
    model = make("dense", kind)
    adapt(model, settings(freeze_but_last=1))
    trainable = {name for name, value in model.named_parameters() if value.requires_grad}
    assert any(last in name for name in trainable)
    assert not any(frozen in name or "embeddings." in name or "embed_tokens" in name for name in trainable)
    model.train()
    TrainingStep.Config().build(model)(Collator(model, 1)(EXAMPLES[:4])).loss.backward()
    assert not [
        name for name, value in model.named_parameters() if value.requires_grad and value.grad is None
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_learn_beside_the_last_layer(make: Make, tmp_path: Path, family: str) -> None:
    names = learned(make(family), tmp_path / "run", freeze_but_last=1)
    assert any("layer.1." in name for name in names)
    assert not any("layer.0." in name or "embeddings" in name for name in names)
    if family in ("splade", "sparse_embed"):
        assert any(name.endswith("predictions.transform.dense.weight") for name in names)
    if family in ("colbert", "sparse_embed"):
        assert "projection.weight" in names


def test_more_layers_than_there_are(make: Make) -> None:
    with pytest.raises(SourcierError, match="freeze_but_last=3: the backbone has 2 layers"):
        adapt(make(), settings(freeze_but_last=3))


def test_both_at_once_are_refused() -> None:
    with pytest.raises(SourcierError, match="leave out freeze_but_last"):
        settings(lora_rank=2, freeze_but_last=1)


def test_what_the_caller_froze_stays_frozen(make: Make) -> None:
    model = make()
    table = model.backbone.model.get_input_embeddings().weight.requires_grad_(False)
    release(model, adapt(model, settings(freeze_but_last=1)))
    assert [value for value in model.parameters() if not value.requires_grad] == [table]


@pytest.mark.parametrize(
    "family",
    ["splade", *(pytest.param(f, marks=pytest.mark.slow) for f in ("dense", "sparse_embed", "colbert"))],
)
def test_adapters_go_on_after_a_stop(make: Make, tmp_path: Path, family: str) -> None:
    class Killed(BaseException):
        pass

    def die(step: int) -> None:
        raise Killed

    given = {"lora_rank": 2, "steps": 6, "eval_every": 2, "batch_size": 2}
    straight, resumed = make(family, dropout=0.1), make(family, dropout=0.1)
    train(straight, tmp_path / "straight", **given)
    config = Trainer.Config(
        output=str(tmp_path / "run"), negatives=1, learning_rate=1e-2, progress=False, **given
    )
    trainer = config.build(make(family, dropout=0.1), EXAMPLES)
    update = trainer._update
    trainer._update = lambda step: update(step) if step < 4 else die(step)  # type: ignore[method-assign]
    with pytest.raises(Killed):
        trainer.run()
    config.build(resumed, EXAMPLES).run(resume=True)
    assert resumed.fingerprint() == straight.fingerprint()
