"""`sourcier verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sourcier.cli.command import Command, Output, Parser, count, hide_weight_bars, note
from sourcier.cli.training import add_record_flags, read_record
from sourcier.config import from_dict
from sourcier.types import SourcierError

if TYPE_CHECKING:
    from sourcier.train.record import RunRecord
    from sourcier.train.verify import Dtype, Verdict


def add_flags(parser: Parser, arguments: Sequence[str]) -> None:
    """Those of `sourcier train`, so that its line can be used as it is, and a few of its own."""
    parser.add_argument("--output", metavar="RUN", help="folder of the run to come; nothing is written to it")
    parser.add_argument(
        "--processes",
        type=count,
        default=2,
        help="processes to start; those of a launcher otherwise (default: 2)",
    )
    parser.add_argument(
        "--dtype",
        choices=["float64", "float32"],
        default="float64",
        help="float32 takes half the memory, tells less, and leaves out the weights after steps",
    )
    add_record_flags(parser, arguments)


def verify(settings: Any) -> Output:
    """Compare N processes with one on a few rows of the data; unequal is a failure."""
    from sourcier.train.launch import in_processes, launched

    settings.output, settings.resume = "", False  # nothing is written
    record = read_record(settings)
    if launched():
        verdict = verdict_here(record, settings.dtype)
    else:
        note(f"starting {settings.processes} processes …")
        verdict = in_processes(verdict_here, record, settings.dtype, processes=settings.processes)
    if not verdict.holds:
        raise SourcierError(str(verdict))
    worst = verdict.worst
    values = {
        "processes": verdict.processes,
        "rows": verdict.rows,
        "dtype": verdict.dtype,
        "loss": worst.loss,
        "gradient": worst.gradient,
        "largest_gradient": worst.largest,
        "weight": worst.weight,
        "equal": True,
    }
    return Output(values, str(verdict))


def verdict_here(record: RunRecord, dtype: Dtype) -> Verdict:
    """What this process, which is one of several, finds together with the others."""
    from sourcier.data.examples import read_examples
    from sourcier.train.record import new_model
    from sourcier.train.trainer import Trainer
    from sourcier.train.verify import verify

    hide_weight_bars()
    config = from_dict(Trainer.Config, record.train, where="train")
    examples = read_examples(
        str(record.data), record.split or "train", lenient=record.lenient, seed=config.seed
    )
    return verify(
        config,
        lambda: new_model(str(record.family), str(record.base), record.model, seed=config.seed),
        examples,
        dtype=dtype,
    )


COMMANDS = {
    "verify": Command(
        summary="check on a few rows that several processes train as one does, before a long run",
        example="sourcier verify --family colbert --base bert-base-uncased --data docs --processes 2",
        add_flags=add_flags,
        run=verify,
    )
}
