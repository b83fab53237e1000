"""`sourcier diagnose`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sourcier.cli.command import Command, Output, Parser, add_lenient, count, hide_weight_bars, told
from sourcier.cli.places import check_writable


def add_flags(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of a run of `sourcier train`")
    parser.add_argument("--data", required=True, metavar="BEIR", help="folder with queries and judgments")
    parser.add_argument("--split", default="dev", help="split of the judgments (default: dev)")
    parser.add_argument("--html", metavar="FILE", help="the page (default: diagnosis.html in the run)")
    parser.add_argument(
        "--queries", type=count, default=200, metavar="N", help="queries, at most (default: 200)"
    )
    parser.add_argument(
        "--documents",
        type=count,
        default=1000,
        metavar="N",
        help="documents they are searched in (default: 1000)",
    )
    parser.add_argument(
        "--worst", type=count, default=10, metavar="N", help="queries to show with texts (default: 10)"
    )
    add_lenient(parser)


def diagnose(settings: Any) -> Output:
    """Tell what training did to a model's scores, with a page of plots."""
    from sourcier.config import replace_text
    from sourcier.data.collections import read_beir
    from sourcier.train import diagnosis, diagnosis_page
    from sourcier.train.validation import take_part

    page = settings.html or str(Path(settings.run) / "diagnosis.html")
    check_writable("--html", page, "file")
    collection = told(read_beir(settings.data, settings.split, lenient=settings.lenient))
    part = take_part(collection, queries=settings.queries, documents=settings.documents, seed=42)
    hide_weight_bars()
    found = diagnosis.diagnose(settings.run, part, split=settings.split, worst=settings.worst)
    replace_text(page, diagnosis_page.render(found))
    lines = [*found.verdict(), *_missing(found.why_not_before), f"The page is {page}"]
    return Output(found.values() | {"html": page}, "\n".join(lines))


COMMANDS = {
    "diagnose": Command(
        summary="tell what a run did to a model's scores, and show it as a page",
        example="sourcier diagnose run --data docs --split dev --html page.html",
        add_flags=add_flags,
        run=diagnose,
    )
}


def _missing(why_not: str | None) -> list[str]:
    return [f"The model before training cannot be measured: {why_not}"] if why_not else []
