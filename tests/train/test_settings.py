"""Settings of a run that do nothing beside its others: each is refused, and taken where it does something."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import tiny_model
from toy import Table, letters

import sourcier
from sourcier.data.examples import Example, Examples
from sourcier.train.remining import Remining
from sourcier.train.settings import Settings, check_effects
from sourcier.train.step import TrainingStep
from sourcier.train.trainer import Trainer
from sourcier.types import SourcierError

DENSE: Any = SimpleNamespace(weighs_terms=False, config=SimpleNamespace())
SPLADE: Any = SimpleNamespace(weighs_terms=True, config=SimpleNamespace(document_only=False))
LOOKED_UP: Any = SimpleNamespace(weighs_terms=True, config=SimpleNamespace(document_only=True))


def settings(**given: Any) -> Settings:
    step = {name: given.pop(name) for name in list(given) if hasattr(TrainingStep.Config, name)}
    return Settings(output="run", step=TrainingStep.Config(**step), **given)


@pytest.mark.parametrize(
    ("idle", "known", "useful"),
    [
        ({"lora_alpha": 8.0}, {}, {"lora_alpha": 8.0, "lora_rank": 2}),
        ({"lora_targets": ("query",)}, {}, {"lora_targets": ("query",), "lora_rank": 2}),
        ({"metric": "MRR@10"}, {"has_dev": False}, {"metric": "nDCG@10"}),
        ({"patience": 2}, {"has_dev": False}, {}),
        ({"eval_queries": 9}, {"has_dev": False}, {}),
        ({"eval_documents": None}, {"has_dev": False}, {}),
        ({"teacher_temperature": 2.0}, {}, {"teacher_temperature": 2.0, "loss": "kl", "negatives": 1}),
        (
            {"teacher_temperature": 2.0, "loss": "pairwise", "negatives": 1},
            {},
            {"teacher_temperature": 2.0, "loss": "margin_mse", "negatives": 1},
        ),
        ({"flops_document": 0.1}, {"model": DENSE}, {}),
        ({"l1_query": 0.1}, {"model": DENSE}, {}),
        ({"flops_query": 0.1}, {"model": LOOKED_UP}, {"flops_document": 0.1}),
        ({"sparsity_warmup": 9}, {"model": SPLADE}, {"sparsity_warmup": 9, "l1_document": 0.1}),
    ],
)
def test_a_setting_is_refused_where_it_does_nothing(
    idle: dict[str, Any], known: dict[str, Any], useful: dict[str, Any]
) -> None:
    name = next(iter(idle))
    with pytest.raises(SourcierError, match=f"{name}=.* has no effect: .*leave"):
        check_effects(settings(**idle), **known)
    check_effects(settings(**useful), **known)


@pytest.mark.parametrize("known", [{"has_dev": True}, {"has_dev": None}])
def test_what_is_not_known_yet_is_taken(known: dict[str, Any]) -> None:
    check_effects(settings(metric="MRR@10", flops_query=0.1), **known)


@pytest.mark.parametrize("loss", ["contrastive", "symmetric", "pairwise", "kl", "margin_mse"])
def test_the_temperature_works_in_every_loss(loss: str) -> None:
    check_effects(settings(loss=loss, temperature=0.5, negatives=1))


@pytest.mark.parametrize(
    "given", [{"delay": 2}, {"corpus": "docs"}, {"ranks": "1-9"}, {"sampling": "random"}, {"teacher": "t"}]
)
def test_nothing_of_mining_is_given_where_none_is_asked_for(given: dict[str, Any]) -> None:
    name = next(iter(given))
    with pytest.raises(SourcierError, match=f"remine.{name}=.* has no effect: .* give remine.every"):
        check_effects(settings(remine=Remining.Config(**given)))


def test_a_teacher_that_the_loss_does_not_read_is_refused() -> None:
    remine = Remining.Config(every=4, corpus="docs", teacher="t")
    with pytest.raises(SourcierError, match=r"remine.teacher=t has no effect: .* loss=kl"):
        check_effects(settings(negatives=1, remine=remine))


def test_a_run_asks_about_its_model_and_dev(tmp_path: Path) -> None:
    config = Trainer.Config(output=str(tmp_path), step=TrainingStep.Config(flops_query=0.1))
    with pytest.raises(SourcierError, match=r"flops_query=0.1 has no effect: a model of this family"):
        config.build(Table(), letters())  # type: ignore[arg-type]
    with pytest.raises(SourcierError, match="patience=2 has no effect: there is no dev"):
        Trainer.Config(output=str(tmp_path), patience=2).build(Table(), letters())  # type: ignore[arg-type]


def test_scores_that_the_loss_does_not_read_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    examples = Examples(
        [Example("a", "n", ("b",), (1.0, 0.0)), Example("c", "o", ("d",))], name="mined.jsonl"
    )
    Trainer.Config(output=str(tmp_path)).build(Table(), examples)  # type: ignore[arg-type]
    assert "mined.jsonl: has scores of a teacher, which loss=contrastive does not read" in caplog.text


@pytest.mark.parametrize(
    ("family", "idle", "useful"),
    [
        (sourcier.Dense, {"normalize": False, "similarity": "dot"}, {"normalize": False}),
        (sourcier.Dense, {"pool_prompt": False}, {"pool_prompt": False, "query_prompt": "query: "}),
        (
            sourcier.ColBERT,
            {"attend_to_expansion": True, "query_expansion": 0},
            {"attend_to_expansion": True},
        ),
    ],
)
def test_a_setting_of_a_new_model_is_refused_where_it_does_nothing(
    family: Any, idle: dict[str, Any], useful: dict[str, Any], tmp_path: Path
) -> None:
    base = tiny_model("bert", tmp_path)
    with pytest.raises(SourcierError, match=f"{next(iter(idle))}=.* has no effect: .*leave"):
        family.from_base(base, **idle)
    family.from_base(base, **useful)
