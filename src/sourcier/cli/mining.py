"""`sourcier mine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sourcier.cli.command import (
    Command,
    Output,
    Parser,
    WrongUse,
    add_lenient,
    count,
    hide_weight_bars,
    note,
    told,
)
from sourcier.cli.places import check_writable
from sourcier.config import add_arguments, overrides
from sourcier.types import SourcierError

if TYPE_CHECKING:
    from sourcier.data.examples import Examples
    from sourcier.models.cross_encoder import CrossEncoder
    from sourcier.train.negatives import Rules


def add_flags(parser: Parser, _: Sequence[str]) -> None:
    from sourcier.train.negatives import Rules

    parser.add_argument("index", metavar="INDEX", help="folder of the index, of any kind")
    parser.add_argument(
        "--data",
        required=True,
        help="what needs negatives: BEIR folder, .jsonl or .tsv of examples, hf:NAME",
    )
    parser.add_argument("--split", default="train", help="split of the data (default: train)")
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="examples to train on, a file named .jsonl"
    )
    add_arguments(parser.add_argument_group("which documents"), Rules)
    teacher = parser.add_argument_group("teacher")
    teacher.add_argument(
        "--teacher", metavar="CROSS_ENCODER", help="folder or hub id of a cross-encoder that scores each row"
    )
    teacher.add_argument(
        "--batch-size", type=count, default=32, metavar="N", help="pairs that it reads at once (default: 32)"
    )
    parser.add_argument("--device", help="where the models compute, such as cuda (default: cpu)")
    add_lenient(parser)


def mine(settings: Any) -> Output:
    """Write examples with hard negatives from an index."""
    from sourcier.data.examples import Examples, read_examples
    from sourcier.retrieval.retriever import Retriever
    from sourcier.train import mining

    rules = _rules(settings)
    if not settings.output.endswith(".jsonl"):
        raise WrongUse(f"--output {settings.output}: name it .jsonl, by which `sourcier train` knows it")
    check_writable("--output", settings.output, "file")
    _check_device(settings.device)
    examples = told(read_examples(settings.data, settings.split, lenient=settings.lenient))
    hide_weight_bars()
    with Retriever.open(settings.index, device=settings.device) as retriever:
        teacher = _teacher(settings)  # before the search, which may take hours
        mined = mining.mine(retriever, examples, rules, progress=True)
    note(str(mined.report))
    rows = [row for row in mined.examples if len(row.negatives) == rules.negatives]
    if not rows:
        raise SourcierError(
            f"{settings.index}: no row has {rules.negatives} negatives: ask for fewer, or add documents"
        )
    chosen = Examples(rows, name=examples.name)
    taught = chosen if teacher is None else _taught(chosen, teacher)
    taught.to_jsonl(settings.output)
    values = {"output": settings.output, "written": len(rows), **asdict(mined.report)}
    return Output(values, f"{len(rows):,} rows with {rules.negatives} negatives each in {settings.output}")


def _rules(settings: Any) -> Rules:
    from sourcier.train.negatives import Rules

    try:
        return Rules(**overrides(settings, Rules))
    except SourcierError as error:
        raise WrongUse(str(error)) from error


def _check_device(name: str | None) -> None:
    if name is not None:  # else PyTorch is not needed, by an index without a model
        from sourcier.models.devices import check_device

        check_device(name, given_as=f"--device {name}")


def _teacher(settings: Any) -> CrossEncoder | None:
    """The teacher, where one is named."""
    if settings.teacher is None:
        return None
    from sourcier.models.cross_encoder import CrossEncoder

    return CrossEncoder(settings.teacher, device=settings.device, batch_size=settings.batch_size)


def _taught(examples: Examples, teacher: CrossEncoder) -> Examples:
    """The examples with a teacher's scores."""
    from sourcier.train.teacher import scored

    taught = scored(examples, teacher, progress=True)
    scores = [row.scores for row in taught if row.scores]
    doubted = sum(negative > row[0] for row in scores for negative in row[1:])
    share = doubted / sum(len(row) - 1 for row in scores)
    note(f"the teacher puts {share:.1%} of the negatives above their positive")
    return taught


COMMANDS = {
    "mine": Command(
        summary="find hard negatives for training in an index, with a teacher's scores where wanted",
        example="sourcier mine index --data docs --ranks 10-100 --negatives 4 --output mined.jsonl",
        add_flags=add_flags,
        run=mine,
    )
}
