"""The loop with a real backbone of each family: every weight learns, and the folders it leaves can be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny_model

from sourcier.data.examples import Example, Examples
from sourcier.models.checkpoints import FAMILIES, load
from sourcier.models.encoder import SearchModel
from sourcier.train.trainer import Trainer, TrainingResult

EXAMPLES = Examples(
    [
        Example(query="spring", positive="the water of the ground", negatives=("sort the array",)),
        Example(query="read", positive="open a file", negatives=("rain on the lake",)),
        Example(query="rank", positive="sort documents and score", negatives=("a river",)),
        Example(query="learn", positive="train the model on data", negatives=("close the file",)),
    ]
)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With dropout, as real ones have it."""
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return tiny_model("bert", tmp_path_factory.mktemp("bert"), **dropout)


def train(model: SearchModel, output: Path, *, gradient_checkpointing: bool = False) -> TrainingResult:
    config = Trainer.Config(
        output=str(output),
        steps=3,
        batch_size=4,
        negatives=1,
        learning_rate=1e-2,
        gradient_checkpointing=gradient_checkpointing,
        progress=False,
    )
    return config.build(model, EXAMPLES).run()


def new(family: str, base: Path) -> SearchModel:
    torch.manual_seed(0)
    return FAMILIES[family].from_base(base)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_learns(family: str, bert: Path, tmp_path: Path) -> None:
    """A weight that is left as it was would make DDP wait for its gradient."""
    model = new(family, bert)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, tmp_path / "run")
    assert not [name for name, value in model.named_parameters() if torch.equal(value, before[name])]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_folder_holds_the_model_that_was_trained(family: str, bert: Path, tmp_path: Path) -> None:
    model = new(family, bert)
    result = train(model, tmp_path / "run")
    assert load(result.last_folder).fingerprint() == model.fingerprint()


def test_gradient_checkpointing_changes_nothing_but_memory(bert: Path, tmp_path: Path) -> None:
    """Dropout is drawn again as it was: the same weights as without."""
    models = [new("colbert", bert), new("colbert", bert)]
    for number, model in enumerate(models):
        train(model, tmp_path / str(number), gradient_checkpointing=bool(number))
    for plain, checkpointed in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=0, atol=1e-5)
