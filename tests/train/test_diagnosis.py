"""Figures of a run on dev against arithmetic, and the page that shows them."""

from __future__ import annotations

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from tiny import tiny_model
from torch import Tensor, nn

from sourcier.cli import main
from sourcier.data.collections import Query
from sourcier.models.representations import DenseRepresentation
from sourcier.train.charts import Heap, Line, histogram, line_chart
from sourcier.train.diagnosis import Diagnosis, Scores, measure_scores, worst_queries
from sourcier.train.diagnosis_page import QUERY, render
from sourcier.train.health import READ
from sourcier.train.history import History
from sourcier.train.record import RunRecord
from sourcier.train.validation import Part
from sourcier.types import Document, SourcierError


class Angles(nn.Module):
    """The vector of a text is the direction that its number of degrees names."""

    device = torch.device("cpu")

    def tokenize(self, texts: list[str], side: str) -> dict[str, Tensor]:
        return {"degrees": torch.tensor([float(text) for text in texts])}

    def forward(self, features: dict[str, Tensor], side: str) -> DenseRepresentation:
        radians = features["degrees"].deg2rad()
        return DenseRepresentation(torch.stack([radians.cos(), radians.sin()], dim=1))


def part_of(queries: dict[str, str], documents: dict[str, str], qrels: dict[str, dict[str, int]]) -> Part:
    corpus = [Document(id=name, text=text) for name, text in documents.items()]
    return Part(corpus, {name: Query(name, text) for name, text in queries.items()}, qrels, len(corpus))


#: Query a finds its document; query b finds c's document first, and its own second.
PART = part_of(
    {"a": "0", "b": "100"},
    {"for a": "10", "for b": "60", "for nobody": "120"},
    {"a": {"for a": 1}, "b": {"for b": 2, "for a": 0}},
)


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


@pytest.fixture(scope="module")
def scores() -> Scores:
    return measure_scores(Angles(), PART)  # type: ignore[arg-type]


def test_similarities_stand_in_the_order_of_texts(scores: Scores) -> None:
    expected = [[cosine(10), cosine(60), cosine(120)], [cosine(90), cosine(40), cosine(20)]]
    assert torch.allclose(scores.similarities, torch.tensor(expected), atol=1e-6)


def test_margin_is_that_of_the_relevant_over_the_hardest_wrong_document(scores: Scores) -> None:
    """Wrong ones: cosines of 60 and 120 degrees, ±½; and of 90 and 20 degrees."""
    half = cosine(20) / 2
    spread = math.sqrt(2 * (0.5**2 + half**2) / 2)
    gaps = (cosine(10) - 0.5, cosine(40) - cosine(20))
    assert scores.figures["margin"] == pytest.approx(sum(gaps) / 2 / spread, rel=1e-4)


def test_quality_is_that_of_a_search_in_the_part(scores: Scores) -> None:
    """First place, and second: 1 and 1 / log2(3)."""
    assert scores.figures["nDCG@10"] == pytest.approx((1 + 1 / math.log2(3)) / 2)


def test_hard_negatives_are_the_best_wrong_ones_and_no_relevant_one(scores: Scores) -> None:
    assert sorted(scores.hard) == pytest.approx(sorted([0.5, -0.5, cosine(20), cosine(90)]), abs=1e-6)


def test_random_negatives_are_never_relevant_and_always_the_same(scores: Scores) -> None:
    wrong = {round(float(value), 5) for value in scores.similarities[~scores.relevant]}
    assert {round(float(value), 5) for value in scores.random} <= wrong
    assert np.array_equal(scores.random, scores.random)


def test_a_query_without_a_relevant_document_in_the_part_does_not_count() -> None:
    part = part_of({"a": "0", "b": "100"}, {"d": "10", "e": "50"}, {"a": {"d": 1}, "b": {"gone": 1}})
    assert measure_scores(Angles(), part).queries == ["a"]  # type: ignore[arg-type]


def test_the_worst_query_names_what_was_expected_and_what_was_found(scores: Scores) -> None:
    (worst,) = worst_queries(scores, PART, 5)
    assert (worst.id, worst.expected.id, worst.expected.rank) == ("b", "for b", 2)
    assert (worst.found.id, worst.found.rank) == ("for nobody", 1)


# The page.


def diagnosis(
    scores: Scores,
    *,
    warnings: list[str] | None = None,
    before: bool = True,
    split: str = "dev",
    lines: int = 5,
    part: Part = PART,
) -> Diagnosis:
    steps = range(1, lines + 1)
    curves = {
        name: [(step, 1 / step) for step in steps] for name in ("loss", *(f"health/{one}" for one in READ))
    }
    return Diagnosis(
        run="runs/<first>",
        record=RunRecord(family="dense", base="base"),
        split=split,
        extent="2 queries in 3 of 3 documents",
        history=History(curves, warnings or []),
        before=scores if before else None,
        why_not_before=None if before else "base is gone",
        after=scores,
        worst=worst_queries(scores, part, 5),
    )


class Reader(HTMLParser):
    """What a page holds and whether it closes what it opens."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_outside(scores: Scores) -> None:
    page = render(diagnosis(scores))
    reader = Reader(page)
    assert reader.open == []
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert not {"src", "href"} & reader.attributes
    assert "url(" not in page


def test_texts_cannot_break_the_page(scores: Scores) -> None:
    page = render(diagnosis(scores))
    assert "runs/&lt;first&gt;" in page
    assert "<first>" not in page


def test_a_warning_of_the_run_comes_first(scores: Scores) -> None:
    found = diagnosis(scores, warnings=["step 5: similarity is compressed"])
    assert found.verdict()[0] == "Training warned: step 5: similarity is compressed."
    assert 'class="verdict bad"' in render(found)


def test_a_run_that_logged_too_little_is_neither_good_nor_bad(scores: Scores) -> None:
    page = render(diagnosis(scores, lines=2))
    assert 'class="verdict unknown"' in page
    assert "too few lines to judge" in page


def test_the_page_names_the_split_that_was_measured(scores: Scores) -> None:
    found = diagnosis(scores, split="<test>")
    page = render(found)
    assert "Scores on &lt;test&gt;" in page
    assert "On &lt;test&gt; the best relevant document" in page
    assert not re.search(r"\bdev\b", page)
    assert found.values()["split"] == "<test>"


def test_long_texts_are_cut(scores: Scores) -> None:
    text = "water " * 10_000
    part = part_of(
        {"a": "0", "b": text}, {"for a": "10", "for b": text, "for nobody": text.upper()}, PART.qrels
    )
    page = render(diagnosis(scores, part=part))
    assert len(page) < len(text)
    (query,) = re.findall("<h3>(.*)</h3>", page)
    assert len(query) == QUERY
    assert page.count("…") == 3  # the query, what was expected, and what was found


def test_a_missing_base_is_told_and_the_rest_is_shown(scores: Scores) -> None:
    page = render(diagnosis(scores, before=False))
    assert "cannot be shown: base is gone" in page
    assert "after training" in page


@pytest.mark.parametrize(
    "chart",
    [
        line_chart("one point", [Line("loss", "#000", [(1, 2.0)])]),
        line_chart("level", [Line("a < b", "#000", [(1, 2.0), (9, 2.0)]), Line("c", "#111", [(1, 3.0)])]),
        histogram("all equal", [Heap("x", "#000", np.ones(5))], (0.5, 1.5)),
        histogram("nothing", [Heap("x", "#000", np.ones(0)), Heap("y", "#111", np.ones(3))], (0.0, 2.0)),
    ],
)
def test_a_chart_is_well_formed_and_stays_on_its_paper(chart: str) -> None:
    drawing = ElementTree.fromstring(chart)
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    corners = [
        tuple(map(float, pair.split(",")))
        for shape in drawing.iter()
        if "points" in shape.attrib
        for pair in shape.attrib["points"].split()
    ]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in corners)


def test_a_curve_goes_up_where_its_values_do() -> None:
    chart = line_chart("", [Line("", "#000", [(0, 1.0), (1, 2.0)])])
    (points,) = re.findall(r'points="([^"]+)"', chart)
    (left, low), (right, high) = (map(float, pair.split(",")) for pair in points.split())
    assert left < right
    assert low > high  # on paper, up is less


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ([1, 2], ["1", "2"]),
        ([3], ["3"]),
        ([10, 20, 30, 40, 50], ["10", "20", "30", "40", "50"]),
        ([0, 5000], ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        ([0, 5_000_000], ["0", "1M", "2M", "3M", "4M", "5M"]),
    ],
)
def test_steps_are_whole_numbers(steps: list[int], shown: list[str]) -> None:
    chart = line_chart("", [Line("", "#000", [(step, 1.0) for step in steps])])
    labels = re.findall(r'text-anchor="middle">([^<]+)<', chart)
    assert labels == shown


# From a run to its page.


def test_diagnose_writes_a_page_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, data, run = tiny_model("bert", tmp_path / "base"), tmp_path / "docs", tmp_path / "run"
    texts = {"w": "water in the well", "r": "rain on the river", "s": "a spring in the ground"}
    (data / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": name, "title": "", "text": text}) for name, text in texts.items()]
    (data / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    queries = [json.dumps({"_id": name, "text": text.split()[-1]}) for name, text in texts.items()]
    (data / "queries.jsonl").write_text("\n".join(queries) + "\n")
    rows = "".join(f"{name}\t{name}\t1\n" for name in texts)
    for split in ("train", "dev"):
        (data / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    train = ["train", "--family", "colbert", "--base", base, "--data", data, "--output", run, "--steps", 2]
    assert main([*map(str, train), "--log-every", "1", "--no-progress"]) == 0
    capsys.readouterr()

    assert main(["diagnose", str(run), "--data", str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compressed"] is None  # two lines are too few to tell
    assert found["before"].keys() == found["after"].keys()
    assert "before training" in Path(found["html"]).read_text()

    shutil.rmtree(base)
    assert (
        main(["diagnose", str(run), "--data", str(data), "--html", str(tmp_path / "page.html"), "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["before"] is None
    assert found["why_not_before"] is not None
    assert "The model before training cannot be shown" in (tmp_path / "page.html").read_text()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    from sourcier.train.diagnosis import diagnose

    with pytest.raises(SourcierError, match="give the folder of a run"):
        diagnose(tmp_path, PART, split="dev")
