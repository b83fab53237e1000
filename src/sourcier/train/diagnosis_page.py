"""The page of `sourcier diagnose`: one HTML file that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from sourcier.train.charts import Heap, Line, histogram, line_chart
from sourcier.train.diagnosis import MEASURE, Diagnosis, Found, Scores, WorstQuery
from sourcier.train.health import PREFIX

# Told apart by those who see no red or no green, too (Okabe and Ito 2008).
POSITIVE, HARD, RANDOM, PLAIN = "#0072b2", "#d55e00", "#7a828c", "#2b5f75"

#: Characters that are shown of a document, of a query, and of an id.
DOCUMENT, QUERY, ID = 320, 160, 80

#: What the curves of the page are: a title, and the names of figures with their labels and colours.
CURVES: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("loss", (("loss", "loss", PLAIN),)),
    (
        "margin, in spreads of random pairs",
        (
            (f"{PREFIX}margin", "over the hardest", HARD),
            (f"{PREFIX}separation", "over random ones", RANDOM),
        ),
    ),
    (
        "similarity in a batch",
        (
            (f"{PREFIX}positive", "positive", POSITIVE),
            (f"{PREFIX}hardest", "hardest negative", HARD),
            (f"{PREFIX}random", "random", RANDOM),
        ),
    ),
    (
        "share of a batch",
        (
            (f"{PREFIX}accuracy", "positive first", POSITIVE),
            (f"{PREFIX}distinct_top1", "different first documents", RANDOM),
        ),
    ),
    ("effective rank of documents", ((f"{PREFIX}effective_rank", "directions in use", PLAIN),)),
    ("mean cosine of documents", ((f"{PREFIX}mean_cosine", "mean pairwise cosine", PLAIN),)),
    ("active terms", (("terms_query", "query", POSITIVE), ("terms_document", "document", HARD))),
    ("FLOPS", (("flops_query", "queries", POSITIVE), ("flops_document", "documents", HARD))),
    ("learning rate", (("learning_rate", "learning rate", PLAIN),)),
)

#: The rows of the table of figures: a name, a label, and how it is written.
ROWS = (
    (MEASURE, MEASURE, ".3f"),
    ("margin", "margin over the hardest wrong document, in spreads", "+.2f"),
    ("separation", "margin over random documents, in spreads", "+.2f"),
    ("accuracy", "queries with a relevant document first", ".0%"),
    ("positive", "mean similarity: positive", ".3f"),
    ("hardest", "hardest wrong document", ".3f"),
    ("random", "random document", ".3f"),
    ("spread", "spread of random documents", ".3f"),
    ("distinct_top1", "different documents in first place, a query", ".2f"),
    ("mean_cosine", "mean cosine of documents", ".2f"),
    ("effective_rank", "effective rank of documents", ".1f"),
)

STYLE = """
body { margin: 0; background: #fff; color: #1c2126; font: 16px/1.5 system-ui, "Segoe UI", Helvetica, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 10px; }
.about, .note { color: #56606b; font-size: 14px; margin: 0; overflow-wrap: anywhere; }
.verdict { margin: 22px 0 0; padding: 14px 18px; border-left: 5px solid; border-radius: 4px; }
.verdict p { margin: 0 0 6px; } .verdict p:last-child { margin: 0; } .verdict p:first-child { font-weight: 600; }
.good { border-color: #0072b2; background: #eef6fb; } .bad { border-color: #d55e00; background: #fdf2ea; }
.unknown { border-color: #7a828c; background: #f4f5f6; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 18px 26px; }
table { border-collapse: collapse; font-size: 15px; } th { font-weight: 600; }
th, td { text-align: right; padding: 4px 0 4px 26px; border-bottom: 1px solid #e4e7ea; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td { font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; font-family: inherit; }
svg .title { font-size: 13px; font-weight: 600; fill: #1c2126; }
svg .legend, svg .tick { font-size: 11px; fill: #56606b; }
svg .grid { stroke: #e9ecee; } svg .axis { stroke: #98a1aa; }
svg .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.query { border: 1px solid #e4e7ea; border-radius: 6px; padding: 12px 16px; margin: 0 0 12px; }
.query h3 { margin: 0 0 8px; font-size: 16px; overflow-wrap: anywhere; }
.query p { margin: 0 0 8px; font-size: 14px; overflow-wrap: anywhere; } .query p:last-child { margin: 0; }
.tag { display: inline-block; color: #fff; border-radius: 3px; padding: 0 7px; margin-right: 6px; font-size: 12px; }
"""


def render(diagnosis: Diagnosis) -> str:
    """The page as one text."""
    split = escape(diagnosis.split)
    body = "\n".join(
        [
            _head(diagnosis),
            f"<h2>Scores on {split}</h2>",
            _histograms(diagnosis),
            f"<h2>Figures on {split}</h2>",
            _table(diagnosis),
            "<h2>The run</h2>",
            _curves(diagnosis),
            "<h2>Worst queries</h2>",
            *(_worst(query) for query in diagnosis.worst),
            "" if diagnosis.worst else '<p class="note">Every query has a relevant document first.</p>',
        ]
    )
    title = escape(f"Diagnosis of {diagnosis.run}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _head(diagnosis: Diagnosis) -> str:
    record, step = diagnosis.record, diagnosis.record.train.get("step") or {}
    about = {
        "": record.family,
        "base": record.base,
        "data": record.data,
        "loss": step.get("loss"),
        "temperature": step.get("temperature"),
        "learning rate": record.train.get("learning_rate"),
        "batch": record.train.get("batch_size"),
    }
    told = " · ".join(f"{name} {value}".strip() for name, value in about.items() if value is not None)
    kind = {True: "bad", False: "good", None: "unknown"}[diagnosis.history.compressed]
    verdict = "".join(f"<p>{escape(line)}</p>" for line in diagnosis.verdict())
    return (
        f"<h1>Diagnosis of {escape(diagnosis.run)}</h1>\n"
        f'<p class="about">{escape(told)}<br>{escape(diagnosis.extent)} of {escape(diagnosis.split)}</p>\n'
        f'<div class="verdict {kind}">{verdict}</div>'
    )


def _histograms(diagnosis: Diagnosis) -> str:
    """Before and after over the same span, so that they can be compared."""
    shown = {"before training": diagnosis.before, "after training": diagnosis.after}
    measured = {title: _heaps(scores) for title, scores in shown.items() if scores is not None}
    values = np.concatenate([heap.values for heaps in measured.values() for heap in heaps])
    low, high = float(values.min()), float(values.max())
    span = (low, high) if low < high else (low - 0.5, high + 0.5)
    charts = "\n".join(histogram(title, heaps, span) for title, heaps in measured.items())
    note = (
        "Similarity is the score over the query's score with itself. Hard negatives are the five best wrong documents "
        "of each query, random ones five drawn evenly; each heap has the same area."
    )
    if diagnosis.before is None:
        note += f" The model before training cannot be shown: {(diagnosis.why_not_before or '').rstrip('.')}."
    return f'<div class="grid">{charts}</div>\n<p class="note">{escape(note)}</p>'


def _heaps(scores: Scores) -> Sequence[Heap]:
    return (
        Heap("random", RANDOM, scores.random),
        Heap("hard negatives", HARD, scores.hard),
        Heap("positives", POSITIVE, scores.positives),
    )


def _table(diagnosis: Diagnosis) -> str:
    measured = {"before": diagnosis.before, "after": diagnosis.after}
    columns = {title: scores.figures for title, scores in measured.items() if scores is not None}
    head = "".join(f"<th>{title}</th>" for title in columns)
    rows = [
        f"<tr><td>{label}</td>{''.join(f'<td>{figures[name]:{form}}</td>' for figures in columns.values())}</tr>"
        for name, label, form in ROWS
    ]
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _curves(diagnosis: Diagnosis) -> str:
    charts = "\n".join(_charts(diagnosis))
    return f'<div class="grid">{charts}</div>' if charts else '<p class="note">The run logged nothing.</p>'


def _charts(diagnosis: Diagnosis) -> Iterator[str]:
    known = diagnosis.history.curves
    of_dev = tuple((name, name.removeprefix("dev/"), PLAIN) for name in known if name.startswith("dev/"))
    for title, figures in (*CURVES, ("dev, during training", of_dev)):
        lines = [Line(label, colour, known[name]) for name, label, colour in figures if name in known]
        if lines:
            yield line_chart(title, lines)


def _worst(query: WorstQuery) -> str:
    return (
        f'<div class="query"><h3>{escape(_shortened(query.text, QUERY))}</h3>'
        f"{_found('expected', POSITIVE, query.expected)}{_found('found', HARD, query.found)}</div>"
    )


def _found(label: str, colour: str, document: Found) -> str:
    shown = _shortened(document.text, DOCUMENT)
    place = f"{_shortened(document.id, ID)}, rank {document.rank}, similarity {document.similarity:.3f}"
    return f'<p><span class="tag" style="background:{colour}">{label}</span>{escape(place)}<br>{escape(shown)}</p>'


def _shortened(text: str, most: int) -> str:
    """A text on one line, cut where it has more characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"
