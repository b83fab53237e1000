"""`sourcier train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sourcier.cli.command import (
    MODEL_MANIFEST,
    Command,
    Output,
    Parser,
    WrongUse,
    add_lenient,
    hide_weight_bars,
    model_folder,
    note,
    told,
)
from sourcier.config import add_arguments, from_dict, overrides, read_yaml
from sourcier.types import SourcierError

if TYPE_CHECKING:
    from sourcier.data.collections import Collection
    from sourcier.models.encoder import SearchModel
    from sourcier.train.trainer import Trainer


@dataclass(kw_only=True)
class TrainingFile:
    """What the file of `--config` holds."""

    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)


def add_flags(parser: Parser, arguments: Sequence[str]) -> None:
    """The flags; those of the model's settings depend on the family that the arguments name."""
    from sourcier.models.checkpoints import FAMILIES
    from sourcier.train.step import TrainingStep
    from sourcier.train.trainer import Trainer

    family = _family(arguments)
    if family not in FAMILIES and not {"-h", "--help"} & set(arguments):
        raise WrongUse(f"--family must be one of {', '.join(FAMILIES)} (see sourcier train --help)")
    what = parser.add_argument_group("what is trained on what")
    what.add_argument("--family", required=True, metavar="|".join(FAMILIES), help="kind of model")
    what.add_argument(
        "--base",
        required=True,
        help="folder or hub id of a Hugging Face model, or a model of ours to train on",
    )
    what.add_argument(
        "--data",
        required=True,
        help="BEIR folder, .jsonl or .tsv of examples, hf:NAME, or a mixture a=0.7,b=0.3",
    )
    what.add_argument("--split", default="train", help="split of the data (default: train)")
    what.add_argument("--dev", metavar="BEIR", help="folder to evaluate on (default: that of --data)")
    what.add_argument(
        "--dev-split", metavar="SPLIT", help="split to evaluate on (default: dev, where there is one)"
    )
    what.add_argument("--output", required=True, metavar="RUN", help="new folder for the run")
    what.add_argument(
        "--config", metavar="FILE", help="YAML file with sections model and train; flags override it"
    )
    add_lenient(parser)
    add_arguments(parser.add_argument_group("training"), Trainer.Config, exclude=["output"])
    add_arguments(parser.add_argument_group("loss"), TrainingStep.Config)
    if family in FAMILIES:
        add_arguments(parser.add_argument_group(f"settings of {family}"), FAMILIES[family].Config)
    else:
        parser.epilog = "`--family NAME --help` also shows the settings of that family."


def train(settings: Any) -> Output:
    """Train a model; its best state on dev is left in RUN/best, the last one in RUN/last."""
    from accelerate import PartialState

    from sourcier.data.examples import read_examples

    config, model_settings = _settings(settings)
    examples = told(read_examples(settings.data, settings.split, lenient=settings.lenient, seed=config.seed))
    dev = _dev(settings)
    note(f"{len(examples):,} examples; {f'{len(dev.queries):,} dev queries' if dev else 'no dev split'}")
    model = _new_model(settings.family, settings.base, model_settings, seed=config.seed)
    hide_weight_bars()  # from here on: a base that comes from the hub shows its download
    result = config.build(model, examples, dev).run()
    PartialState().destroy_process_group()
    values = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(result).items()
    }
    score = f", dev {result.metric} {result.best:.4f}" if result.best is not None else ""
    text = f"{result.steps} steps in {result.seconds:.0f} s; the best model is in {result.best_folder}"
    return Output(values, f"{text} (step {result.best_step}{score})")


COMMANDS = {
    "train": Command(
        summary="train a dense, SPLADE, SparseEmbed or ColBERT model on queries and their relevant documents",
        example="sourcier train --family colbert --base bert-base-uncased --data docs --output run",
        add_flags=add_flags,
        run=train,
    )
}


def _family(arguments: Sequence[str]) -> str | None:
    """The value of `--family`, before there is a parser."""
    for place, argument in enumerate(arguments):
        if argument.startswith("--family="):
            return argument.split("=", 1)[1]
        if argument == "--family" and place + 1 < len(arguments):
            return arguments[place + 1]
    return None


def _settings(settings: Any) -> tuple[Trainer.Config, dict[str, Any]]:
    """The trainer's settings and the model's: those of the file, overridden by the flags."""
    from sourcier.models.checkpoints import FAMILIES
    from sourcier.train.step import TrainingStep
    from sourcier.train.trainer import Trainer

    where = settings.config or "command line"
    model_class = FAMILIES[settings.family].Config
    file = from_dict(TrainingFile, read_yaml(settings.config) if settings.config else {}, where=where)
    step = {} if file.train.get("step") is None else file.train["step"]
    from_dict(TrainingStep.Config, step, where=f"{where}: train: step")
    train = {
        **file.train,
        **_given(settings, Trainer.Config),
        "output": settings.output,
        "step": {**step, **_given(settings, TrainingStep.Config)},
    }
    model = {**file.model, **_given(settings, model_class)}
    from_dict(model_class, model, where=f"{where}: model")
    return from_dict(Trainer.Config, train, where=f"{where}: train"), model


def _given(settings: Any, cls: type) -> dict[str, Any]:
    try:
        return overrides(settings, cls)
    except SourcierError as error:
        raise WrongUse(str(error)) from error


def _new_model(family: str, base: str, settings: dict[str, Any], *, seed: int) -> SearchModel:
    """A model on a Hugging Face base, or one of ours that is trained on and keeps its settings."""
    import torch

    from sourcier.models.checkpoints import FAMILIES

    folder = model_folder(base)
    if (folder / MODEL_MANIFEST).is_file():
        if settings:
            raise SourcierError(f"{folder} has settings of its own: leave out {', '.join(settings)}")
        return FAMILIES[family].from_pretrained(folder)
    torch.manual_seed(seed)  # for the heads that the base does not have
    return FAMILIES[family].from_base(base, **settings)


def _dev(settings: Any) -> Collection | None:
    """What to evaluate on: what was named, which has to be there, or the split `dev` of the data where it has one."""
    from sourcier.data.collections import read_beir

    folder, split = Path(settings.dev or settings.data), settings.dev_split or "dev"
    named = settings.dev is not None or settings.dev_split is not None
    if not named and not list(folder.glob(f"qrels/{split}.*")):
        return None
    return told(read_beir(folder, split, lenient=settings.lenient))
