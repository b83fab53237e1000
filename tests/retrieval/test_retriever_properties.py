"""Any sequence of changes, then any search: every kind against a dictionary of documents. (Hazards E1, E5, E6.)

With filters, passages, titles, documents and queries without content, and a reader that keeps its version.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from indexes.every_kind import BUILD, search_for_all
from retrieval.dictionary import NO_SPAN, Dictionary, Scored
from retrieval.words import WORDS, WordEncoder

from sourcier.indexes import collect_garbage, open_index
from sourcier.indexes.changes import compact, delete
from sourcier.indexes.kinds import kind_class
from sourcier.indexes.manifest import Splitting
from sourcier.retrieval.building import KINDS_OF_FAMILY
from sourcier.retrieval.retriever import Retriever
from sourcier.types import EMPTY_SCORE, Document, Hits


@dataclass(frozen=True)
class Case:
    """A kind, and how it is opened. `first`: documents that are there from the start, so that there is a form to test
    beside the exact one; `least`: as many documents or tokens, and the approximate form is made."""

    kind: str
    first: int = 1
    device: str | None = None
    least: int | None = None
    family: str | None = field(init=False)

    def __post_init__(self) -> None:
        families = [family for family, kinds in KINDS_OF_FAMILY.items() if self.kind in kinds]
        object.__setattr__(self, "family", families[0] if families else None)

    def __str__(self) -> str:
        return f"{self.kind} on {self.device}" if self.device else self.kind


CASES = [
    Case("bm25"),
    Case("dense"),
    Case("dense", device="cpu"),
    Case("dense-hnsw", first=30, least=10),
    # A codebook of a byte is learned from 256 vectors and more.
    Case("dense-ivfpq", first=300, least=256),
    Case("multivector"),
    Case("seismic", first=30),
    Case("sparse"),
    Case("term_vectors"),
    Case("warp", first=30, least=30),
]
#: How far the scores of kinds that compute with other numbers than the dictionary may lie from its own; ties fall
#: otherwise there. Scores are multiples of 1/64, and the codes of `warp` hold eight
#: words nearly as they are.
ROUNDED = {"bm25": 1e-5, "warp": 5e-3}
#: Kinds that may overlook a document.
APPROXIMATE = ("dense-hnsw", "dense-ivfpq", "seismic", "warp")

#: What a document without content scores, and its passage, which is none.
EMPTY = float(np.float32(EMPTY_SCORE))

Predicate = Callable[[Document], bool]


def lang(document: Document) -> Any:
    return document.metadata.get("lang")


FILTERS: list[tuple[str | None, Predicate]] = [
    (None, lambda document: True),
    ("lang = 'de'", lambda document: lang(document) == "de"),
    ("NOT lang = 'de'", lambda document: lang(document) not in (None, "de")),
    ("n >= 4 OR lang IS NULL", lambda document: document.metadata.get("n", 0) >= 4 or lang(document) is None),
    ("id IN ('d1', 'd2', 'd3')", lambda document: document.id in ("d1", "d2", "d3")),
    (
        "title = 'ash' AND n IS NULL",
        lambda document: document.title == "ash" and "n" not in document.metadata,
    ),
    ("lang = 'fr'", lambda document: False),
]

texts = st.lists(st.sampled_from([*WORDS, "...", "unknown"]), max_size=9).map(" ".join)
documents = st.builds(
    Document,
    st.integers(0, 9).map("d{}".format),
    texts,
    st.sampled_from(["", "", "ash", "..."]),
    st.sampled_from([{}, {"lang": "de"}, {"lang": "en", "n": 3}, {"n": 7}, {"lang": None}]),
)
changes = st.one_of(
    st.tuples(st.just("add"), st.lists(documents, min_size=1, max_size=5, unique_by=lambda one: one.id)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 12).map("d{}".format), min_size=1, max_size=4)),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("gc"), st.none()),
)
searches = st.tuples(st.lists(texts, min_size=1, max_size=3), st.integers(1, 25), st.sampled_from(FILTERS))
sequences = st.lists(st.tuples(changes, searches), min_size=1, max_size=5)
splittings = st.sampled_from([None, Splitting(size=3, overlap=0), Splitting(size=4, overlap=1)])

#: Without making a failing example smaller, which takes minutes here.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
@settings(max_examples=3, phases=PHASES)
@given(sequence=sequences, splitting=splittings)
def test_an_index_is_what_a_dictionary_would_be(case: Case, sequence: Any, splitting: Any) -> None:
    check(case, sequence, splitting)


@pytest.mark.slow
@every_case
@settings(max_examples=80, phases=PHASES)
@given(sequence=sequences, splitting=splittings)
def test_an_index_is_what_a_dictionary_would_be_in_many_more_ways(
    case: Case, sequence: Any, splitting: Any
) -> None:
    check(case, sequence, splitting)


def check(case: Case, sequence: Any, splitting: Splitting | None) -> None:
    """Make an index and a dictionary go through the same changes, and compare what they answer after each."""
    if case.kind == "seismic":
        pytest.importorskip("seismic", reason="pyseismic-lsr is not installed")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        make_form(case, patch)
        encoder = WordEncoder(case.family) if case.family else None
        expected = Dictionary(encoder, splitting)
        expected.add(first_documents(case.first))
        passages = {} if splitting is None else {"passages": splitting.size, "overlap": splitting.overlap}
        build = BUILD.get(case.kind, {})
        reader = Retriever.build(
            encoder, list(expected.documents.values()), folder, kind=case.kind, settings=build, **passages
        )
        _, (queries, k, _) = sequence[0]
        before = reader.search(queries, k)
        for change, (queries, k, (where, passes)) in sequence:
            apply(change, folder, encoder, expected)
            retriever = Retriever(open_index(folder, device=case.device), encoder)
            assert len(retriever.index) == len(expected.documents)
            hits = retriever.search(queries, k, documents=True, where=where, search=search_for_all(case.kind))
            for row, query in enumerate(queries):
                compare(case, hits, row, expected.answer(query, passes), k, expected)
        _, (queries, k, _) = sequence[0]
        after = reader.search(queries, k)
        assert (after.ids.tolist(), after.scores.tolist()) == (before.ids.tolist(), before.scores.tolist())


def make_form(case: Case, patch: pytest.MonkeyPatch) -> None:
    """Have as few documents make a graph, lists or codes as the case has."""
    if case.least and case.kind == "warp":
        patch.setattr("sourcier.indexes.warp.segment._LEAST", case.least)
    elif case.least:
        patch.setattr(kind_class(case.kind), "least", case.least)


def first_documents(count: int) -> list[Document]:
    """Documents that no change touches: those that there have to be for all fields of metadata to be known."""
    random = np.random.default_rng(count)
    return [
        Document(
            f"first {number}", " ".join(random.choice(WORDS, size=3)), metadata={"lang": "en", "n": number}
        )
        for number in range(count)
    ]


def apply(change: Any, folder: str, encoder: WordEncoder | None, expected: Dictionary) -> None:
    """One change to both."""
    match change:
        case "add", new:
            Retriever.open(folder, model=encoder).add(new)
            expected.add(new)
        case "delete", ids:
            done = delete(folder, ids)
            assert (done.deleted, done.unknown) == expected.delete(ids)
        case "compact", _:
            compact(folder)
            expected.compact()
        case "gc", _:
            collect_garbage(folder)


def compare(case: Case, hits: Hits, row: int, ranking: list[Scored], k: int, expected: Dictionary) -> None:
    """One query: the documents, each once and none that is deleted or filtered out; their scores and passages."""
    found = hits[row]
    assert [hit.document for hit in found] == [expected.documents[hit.id] for hit in found]
    spans = [NO_SPAN] * len(found) if hits.passages is None else [tuple(span) for span in hits.passages[row]]
    ours = [(hit.id, hit.score, span) for hit, span in zip(found, spans, strict=False)]
    if case.kind not in (*ROUNDED, *APPROXIMATE):
        assert ours == [(one.id, one.score, span_of(one, expected)) for one in ranking[:k]]
        return
    of = {one.id: one for one in ranking}
    assert len(ours) == min(k, len(ranking))
    assert len({name for name, _, _ in ours}) == len(ours)
    assert [score for _, score, _ in ours] == sorted((score for _, score, _ in ours), reverse=True)
    for name, score, span in ours:
        near = pytest.approx(score, rel=1e-6, abs=ROUNDED.get(case.kind, 0))
        assert of[name].score == near
        assert expected.splitting is None or of[name].spans.get(span, EMPTY) == near
    if case.kind == "bm25" or k >= len(ranking):
        best = [one.score for one in ranking[:k]]
        assert [score for _, score, _ in ours] == pytest.approx(best, rel=1e-6, abs=ROUNDED.get(case.kind, 0))


def span_of(one: Scored, expected: Dictionary) -> tuple[int, int]:
    return NO_SPAN if expected.splitting is None else one.span
