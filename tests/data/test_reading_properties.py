"""Whatever is written is read back equal, and whatever line is broken, the error names that line and no other."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from sourcier.data.collections import Corpus, Query, read_beir, write_beir
from sourcier.data.examples import Example, Examples
from sourcier.types import DataError, Document, has_content

AWKWARD = st.sampled_from(
    ["\t", "\n", "\r\n", "\u2028", "\x85", "\ufeff", "\x00", '"', "\\", "{}", "é", "𝄞", "x"]
)
TEXTS = st.one_of(st.text(max_size=30), st.lists(AWKWARD, max_size=6).map("".join))
IDS = TEXTS.filter(str.strip)
QRELS_IDS = IDS.filter(lambda name: not set(name) & set("\t\n\r"))
DOCUMENTS = st.lists(st.builds(Document, IDS, TEXTS, TEXTS), max_size=6, unique_by=lambda one: one.id)
CONTENT = TEXTS.filter(has_content)


def _write(folder: str, name: str, data: str | bytes) -> Path:
    path = Path(folder) / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@given(documents=DOCUMENTS)
def test_documents_survive_jsonl(documents: list[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_beir(folder, documents, [], {})
        assert list(Corpus.read(folder)) == documents


@given(documents=DOCUMENTS, ascii_only=st.booleans(), end=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_documents_survive_other_writers(documents: list[Document], ascii_only: bool, end: str) -> None:
    records = [{"_id": one.id, "title": one.title, "text": one.text} for one in documents]
    lines = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
    with tempfile.TemporaryDirectory() as folder:
        path = _write(folder, "c.jsonl", b"\xef\xbb\xbf" + end.join(lines).encode())
        assert list(Corpus.read(path)) == documents


@given(rows=st.lists(st.tuples(QRELS_IDS, TEXTS), min_size=1, max_size=6, unique_by=lambda row: row[0]))
def test_texts_without_tabs_and_line_ends_survive_tsv(rows: list[tuple[str, str]]) -> None:
    assume(not any(set(text) & set("\t\n") or text.endswith("\r") for _, text in rows))
    assume(
        not rows[0][0].startswith("\ufeff") and not all(re.search("[a-z]{2}", cell, re.I) for cell in rows[0])
    )
    with tempfile.TemporaryDirectory() as folder:
        path = _write(folder, "c.tsv", "".join(f"{name}\t{text}\n" for name, text in rows))
        assert [(one.id, one.text) for one in Corpus.read(path)] == rows


@given(
    documents=DOCUMENTS.filter(bool),
    queries=st.lists(st.builds(Query, QRELS_IDS, TEXTS), min_size=1, max_size=4),
    data=st.data(),
)
def test_judgments_survive(documents: list[Document], queries: list[Query], data: st.DataObject) -> None:
    documents = [one for one in documents if not set(one.id) & set("\t\n\r")]
    assume(documents)
    by_id = {query.id: query for query in queries}
    graded = st.dictionaries(st.sampled_from([one.id for one in documents]), st.integers(-2, 3), min_size=1)
    qrels = data.draw(st.fixed_dictionaries(dict.fromkeys(by_id, graded)))
    with tempfile.TemporaryDirectory() as folder:
        write_beir(folder, documents, by_id.values(), {"dev": qrels})
        collection = read_beir(folder, "dev")
        assert (collection.queries, collection.qrels) == (by_id, qrels)


@given(
    rows=st.lists(
        st.builds(Example, CONTENT, CONTENT, st.lists(TEXTS, max_size=3).map(tuple)), min_size=1, max_size=5
    ),
    scored=st.booleans(),
    score=st.floats(allow_nan=False, allow_infinity=False),
)
def test_examples_survive_jsonl(rows: list[Example], scored: bool, score: float) -> None:
    assume(not any(row.positive in row.negatives for row in rows))
    if scored:
        rows = [
            Example(row.query, row.positive, row.negatives, (score,) * (1 + len(row.negatives)))
            for row in rows
        ]
    with tempfile.TemporaryDirectory() as folder:
        Examples(rows).to_jsonl(Path(folder) / "e.jsonl")
        assert list(Examples.from_jsonl(Path(folder) / "e.jsonl")) == rows


@given(
    junk=st.one_of(st.binary(max_size=40), st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["_id", "id", "text", "title", "metadata", "x"]), inner, max_size=4),
    ).map(lambda value: json.dumps(value).encode())),
    position=st.integers(0, 3),
)  # fmt: skip
def test_broken_line_is_named_and_nothing_else_happens(junk: bytes, position: int) -> None:
    junk = junk.replace(b"\n", b" ")
    lines = [json.dumps({"_id": f"good {number}", "text": "t"}).encode() for number in range(3)]
    lines.insert(position, junk)
    with tempfile.TemporaryDirectory() as folder:
        path = _write(folder, "c.jsonl", b"\n".join(lines))
        lenient = Corpus.read(path, lenient=True)
        read = [one.id for one in lenient if one.id.startswith("good ")]
        try:
            list(Corpus.read(path))
        except DataError as error:
            message = str(error)
            assert message.startswith(f"{path}:{position + 1}: ")
            assert "\n" not in message
            assert lenient.report.skipped.total() == 1
        else:
            assert lenient.report.skipped.total() == 0
        assert read == ["good 0", "good 1", "good 2"]
