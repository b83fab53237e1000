"""`sourcier train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
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
    is_main,
    model_folder,
    note,
    told,
)
from sourcier.cli.places import check_writable
from sourcier.config import add_arguments, from_dict, overrides
from sourcier.types import SourcierError

if TYPE_CHECKING:
    from sourcier.data.collections import Collection
    from sourcier.train.record import RunRecord
    from sourcier.train.standing import TrainingResult


def add_flags(parser: Parser, arguments: Sequence[str]) -> None:
    """The flags: the folder of the run, and what it is to do."""
    parser.add_argument("--output", required=True, metavar="RUN", help="folder for the run")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in that folder, with the settings it has"
    )
    add_record_flags(parser, arguments)


def add_record_flags(parser: Parser, arguments: Sequence[str]) -> None:
    """What is trained on what and how; the model's settings depend on the family, which arguments or a file name."""
    from sourcier.models.checkpoints import FAMILIES
    from sourcier.train.remining import Remining
    from sourcier.train.step import TrainingStep
    from sourcier.train.trainer import Trainer

    asks_help = bool({"-h", "--help"} & set(arguments))
    family = _family(arguments)
    if family not in FAMILIES and not asks_help:
        raise WrongUse(f"--family must be one of {', '.join(FAMILIES)} (see sourcier train --help)")
    what = parser.add_argument_group("what is trained on what")
    what.add_argument("--family", metavar="|".join(FAMILIES), help="kind of model")
    what.add_argument(
        "--base", help="folder or hub id of a Hugging Face model, or a model of ours to train on"
    )
    what.add_argument(
        "--data", help="BEIR folder, .jsonl or .tsv of examples, hf:NAME, or a mixture a=0.7,b=0.3"
    )
    what.add_argument("--split", help="split of the data (default: train)")
    what.add_argument(
        "--dev",
        metavar="BEIR",
        help="collection to evaluate on (default: that of --data, where it has a dev)",
    )
    what.add_argument(
        "--dev-split", metavar="SPLIT", help="split to evaluate on (default: dev, where there is one)"
    )
    what.add_argument(
        "--config",
        metavar="FILE",
        help="config.yaml of a run, or a file like it; flags override what it says",
    )
    add_lenient(parser)
    add_arguments(parser.add_argument_group("training"), Trainer.Config, exclude=["output"])
    add_arguments(parser.add_argument_group("loss"), TrainingStep.Config)
    add_arguments(parser.add_argument_group("negatives mined anew"), Remining.Config, prefix="remine_")
    if family in FAMILIES:
        add_arguments(parser.add_argument_group(f"settings of {family}"), FAMILIES[family].Config)
    else:
        parser.epilog = "`--family NAME --help` also shows the settings of that family."


def train(settings: Any) -> Output:
    """Train a model; its best state on dev is left in RUN/best, the last one in RUN/last."""
    from sourcier.data.examples import read_examples
    from sourcier.eval import measure
    from sourcier.train.checkpoint import RunFolder
    from sourcier.train.processes import OtherFailed
    from sourcier.train.record import new_model
    from sourcier.train.trainer import Trainer

    record = read_record(settings)
    if settings.resume and (finished := _finished(settings.output, record)):
        return _output(finished, f"{settings.output} was finished before: ")
    config = from_dict(Trainer.Config, record.train, where="train")
    if is_main():
        check_writable("--output", settings.output, "folder")
        RunFolder(settings.output).check(resume=settings.resume)
        config.remine.check_device()
    examples = told(
        read_examples(str(record.data), record.split or "train", lenient=record.lenient, seed=config.seed)
    )
    dev = _dev(record)
    if dev is not None:
        measure.parse(config.metric)
    note(f"{len(examples):,} examples; {f'{len(dev.queries):,} dev queries' if dev else 'no dev split'}")
    model = new_model(str(record.family), str(record.base), record.model, seed=config.seed)
    hide_weight_bars()  # from here on: a base that comes from the hub shows its download
    try:
        result = config.build(model, examples, dev, record).run(resume=settings.resume)
    except OtherFailed:
        raise SystemExit(1) from None  # the process that failed says why
    return _output(result)


COMMANDS = {
    "train": Command(
        summary="train a dense, SPLADE, SparseEmbed or ColBERT model on queries and their relevant documents",
        example="sourcier train --family colbert --base bert-base-uncased --data docs --output run",
        add_flags=add_flags,
        run=train,
    )
}


def _family(arguments: Sequence[str]) -> str | None:
    """The family that the flags or the file name, before there is a parser."""
    from sourcier.train.record import RunRecord

    named = _value(arguments, "--family")
    file = _file(_value(arguments, "--config"), _value(arguments, "--output"), "--resume" in arguments)
    return named if named is not None or file is None else RunRecord.read(file).family


def _value(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag, before there is a parser."""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
    return None


def _file(config: str | None, output: str | None, resume: bool) -> Path | None:
    """The file that the settings come from, where there is one: the one that is named, or that of the run."""
    if config is not None:
        return Path(config)
    own = Path(output or "") / "config.yaml"
    return own if resume and output is not None and own.is_file() else None


def read_record(settings: Any) -> RunRecord:
    """What is to be trained on what, and how: what the file says, overridden by the flags."""
    from sourcier.models.checkpoints import FAMILIES
    from sourcier.train.record import RunRecord
    from sourcier.train.remining import Remining
    from sourcier.train.settings import check_effects
    from sourcier.train.step import TrainingStep
    from sourcier.train.trainer import Trainer

    path = _file(settings.config, settings.output, settings.resume)
    file = RunRecord() if path is None else RunRecord.read(path)
    where = path or "command line"
    named = {
        name: getattr(settings, name)
        for name in ("family", "base", "data", "split", "dev", "dev_split")
        if getattr(settings, name) is not None
    }
    record = replace(file, **named, lenient=settings.lenient or file.lenient)
    for name in ("base", "data"):
        if getattr(record, name) is None:
            raise WrongUse(f"--{name} is missing: give it, or a --config that names it")
    model_class = FAMILIES[str(record.family)].Config
    step = file.train.get("step") or {}
    from_dict(TrainingStep.Config, step, where=f"{where}: train: step")
    remine = file.train.get("remine") or {}
    train = {
        **file.train,
        **_given(settings, Trainer.Config),
        "output": settings.output,
        "step": {**step, **_given(settings, TrainingStep.Config)},
        "remine": {**remine, **_given(settings, Remining.Config, prefix="remine_")},
    }
    model = {**file.model, **_given(settings, model_class)}
    from_dict(model_class, model, where=f"{where}: model")
    check_effects(from_dict(Trainer.Config, train, where=f"{where}: train"))
    return replace(record, base=_base(str(record.base)), model=model, train=train)


def _base(base: str) -> str:
    """What a model is made of: of a run its best, anything else as it is named."""
    folder = model_folder(base)
    return str(folder) if (folder / MODEL_MANIFEST).is_file() else base


def _finished(output: str, record: RunRecord) -> TrainingResult | None:
    """What a run came to that is over, where it is the one that `record` asks for."""
    from sourcier.train.checkpoint import RunFolder
    from sourcier.train.record import RunRecord
    from sourcier.train.standing import TrainingResult

    folder = RunFolder(output)
    if not folder.summary.is_file():
        return None
    RunRecord.read(folder.config).check_same(record, where=folder.config)
    return TrainingResult.read(folder.summary)


def _output(result: TrainingResult, opening: str = "") -> Output:
    values = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(result).items()
    }
    score = f", dev {result.metric} {result.best:.4f}" if result.best is not None else ""
    text = f"{result.steps} steps in {result.seconds:.0f} s; the best model is in {result.best_folder}"
    return Output(values, f"{opening}{text} (step {result.best_step}{score})")


def _given(settings: Any, cls: type, *, prefix: str = "") -> dict[str, Any]:
    try:
        return overrides(settings, cls, prefix=prefix)
    except SourcierError as error:
        raise WrongUse(str(error)) from error


def _dev(record: RunRecord) -> Collection | None:
    """What to evaluate on: what was named, which has to be there, or the split `dev` of the data where it has one."""
    from sourcier.data.collections import read_beir

    folder, split = Path(record.dev or str(record.data)), record.dev_split or "dev"
    named = record.dev is not None or record.dev_split is not None
    if not named and not list(folder.glob(f"qrels/{split}.*")):
        return None
    return told(read_beir(folder, split, lenient=record.lenient))
