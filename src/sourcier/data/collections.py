"""Collections with judgments: a corpus that streams from disk, queries, and which documents answer them.

A corpus is a `.jsonl` file of objects with `_id` (or `id`), `text` and, where there is one, `title`; what else stands
there becomes metadata. Or it is a `.tsv` file: two columns are id and text, three are id, text and title; a header
(`id`, `text`, `title` in any order) names them otherwise. A BEIR folder holds `corpus.jsonl`, `queries.jsonl` (with
`answers` for question answering) and `qrels/SPLIT.tsv`. Each may be packed with gzip.

Ids are the user's strings. An integer is read as its digits, so that 1 and "1" are the same id, and both in one file
are a duplicate. Floats, booleans, null and lists are no ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sourcier.data.columns import Columns, read_tsv
from sourcier.data.lines import LineFault, ReadReport, is_named, read_jsonl, shown, write_lines
from sourcier.data.values import (
    check_unicode,
    read_identifier,
    read_text,
    refuse_slips,
    same_letters,
)
from sourcier.types import DataError, Document

Qrels = dict[str, dict[str, int]]
Parsed = TypeVar("Parsed")
Named = TypeVar("Named", Document, "Query")

TEXT_EXTENSIONS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")
QRELS_EXTENSIONS = (".tsv", ".tsv.gz", ".txt", ".qrels")
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
ID_KEYS = ("_id", "id")
BEIR_FOLDER = "corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv"
HOW_TO_MAKE_ONE = "docs/data.md makes one of pairs"
OTHERWISE_METADATA = ' (where it is meant as it is, put it into "metadata")'


def _text_layout(width: int) -> tuple[str, ...]:
    if width not in (2, 3):
        mend = "write id, text and, where there is one, title, with tabs between them"
        raise LineFault("wrong number of columns", f"has {width} columns", mend)
    return ("_id", "text", "title")[:width]


def _qrels_layout(width: int) -> tuple[str, ...]:
    if width not in (3, 4):
        mend = "write query-id, corpus-id and score with tabs between them, or the four columns of TREC"
        raise LineFault("wrong number of columns", f"has {width} columns", mend)
    return ("query", "document", "grade") if width == 3 else ("query", "iteration", "document", "grade")


TEXTS = Columns(
    header={
        **dict.fromkeys(("_id", "id", "pid", "qid", "docid", "doc_id", "query-id", "corpus-id"), "_id"),
        **dict.fromkeys(("text", "passage", "contents", "query"), "text"),
        "title": "title",
    },
    required={"_id": "id", "text": "text"},
    layout=_text_layout,
    expected="id, text and, where there is one, title",
)
QRELS = Columns(
    header={
        **dict.fromkeys(("query-id", "query_id", "qid", "query"), "query"),
        **dict.fromkeys(("corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "document"), "document"),
        **dict.fromkeys(("score", "grade", "relevance", "label"), "grade"),
        **dict.fromkeys(("iteration", "iter", "q0"), "iteration"),
    },
    required={"query": "query-id", "document": "corpus-id", "grade": "score"},
    layout=_qrels_layout,
    expected="query-id, corpus-id and score",
)


@dataclass(frozen=True, slots=True)
class Query:
    """A question: an id of the user's, a text and, for question answering, the answers that count as right."""

    id: str
    text: str
    answers: tuple[str, ...] = ()


class Corpus:
    """Documents, read from disk anew each time they are iterated, so that only their ids are held in memory.

    `len()` costs one pass unless there was one; `report` tells of the last whole pass.
    """

    def __init__(self, source: Path | Sequence[Document], *, lenient: bool = False) -> None:
        self.source = source
        self.lenient = lenient
        self.report = ReadReport(lenient)
        self._count: int | None = None

    @classmethod
    def read(cls, path: str | Path, *, lenient: bool = False) -> Corpus:
        """A corpus in a BEIR folder or in a `.jsonl` or `.tsv` file."""
        path = Path(path)
        return cls(find_file(path, "corpus", TEXT_EXTENSIONS) if path.is_dir() else path, lenient=lenient)

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Corpus:
        """A corpus of documents that are in memory."""
        return cls(list(documents))

    def __iter__(self) -> Iterator[Document]:
        report = ReadReport(self.lenient)
        seen: dict[str, int] = {}
        for number, place, document in self._placed(report):
            try:
                _check_new(seen, document.id, number)
            except LineFault as fault:
                report.fault(place, fault)
                continue
            report.read["documents"] += 1
            yield document
        self.report, self._count = report, len(seen)

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self)
        return self._count

    def get(self, ids: Iterable[str]) -> dict[str, Document]:
        """The documents with these ids, in one pass; those that are not there are left out."""
        wanted = set(ids)
        found: dict[str, Document] = {}
        for document in self:
            if document.id in wanted:
                found[document.id] = document
                if len(found) == len(wanted):
                    break
        return found

    def load(self) -> dict[str, Document]:
        """All documents, by id."""
        return {document.id: document for document in self}

    def _placed(self, report: ReadReport) -> Iterator[tuple[int, str, Document]]:
        """Each document with its number and its place, as an error names it."""
        if isinstance(self.source, Path):
            for number, document in _read_each(self.source, _document, report):
                yield number, f"{self.source}:{number}", document
            return
        for number, document in enumerate(self.source, start=1):
            try:
                document = replace(document, id=read_identifier({"id": document.id}, "id"))
                read_text({"text": document.text}, "text")
                read_text({"title": document.title}, "title")
            except LineFault as fault:
                report.fault(f"document {number}", fault)
                continue
            yield number, f"document {number}", document


@dataclass(slots=True)
class Collection:
    """A corpus with the queries of one split and their judgments: `qrels[query id][document id]` is a grade.

    A grade above 0 is relevant. `queries` are those that are judged in this split, in the order of their file.
    """

    corpus: Corpus
    queries: dict[str, Query]
    qrels: Qrels
    report: ReadReport


def read_beir(folder: str | Path, split: str, *, lenient: bool = False) -> Collection:
    """Read one split of a BEIR folder; the corpus is passed once, for its ids."""
    folder = Path(folder)
    corpus = Corpus.read(folder, lenient=lenient)
    queries_path = find_file(folder, "queries", TEXT_EXTENSIONS)
    qrels_path = _find_qrels(folder, split)
    documents = {document.id for document in corpus}
    report = ReadReport(lenient)
    report.add(corpus.report)
    queries = _read_queries(queries_path, report)
    qrels = _read_qrels(qrels_path, report, known_queries=queries, known_documents=documents)
    if not qrels:
        raise DataError(f"{qrels_path}: holds no judgment that can be used; check the file and the ids in it")
    return Collection(
        corpus, {name: query for name, query in queries.items() if name in qrels}, qrels, report
    )


def read_qrels(path: str | Path, *, lenient: bool = False) -> Qrels:
    """Judgments alone: three columns (query, document, grade; a header is allowed) or the four of TREC."""
    return _read_qrels(Path(path), ReadReport(lenient))


def write_beir(
    folder: str | Path,
    documents: Iterable[Document],
    queries: Iterable[Query],
    qrels: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> None:
    """Write a BEIR folder; `qrels` are the judgments of each split."""
    folder = Path(folder)
    write_lines(folder / "corpus.jsonl", _lines("document", documents, _document_record))
    write_lines(folder / "queries.jsonl", _lines("query", queries, _query_record))
    for split, judgments in qrels.items():
        rows = [
            (query, document, grade)
            for query, graded in judgments.items()
            for document, grade in graded.items()
        ]
        for identifier in (name for query, document, _ in rows for name in (query, document)):
            if any(end in identifier for end in "\t\n\r"):
                raise DataError(
                    f"id {shown(identifier)}: holds a tab or a line end; qrels cannot hold such ids"
                )
        lines = (f"{query}\t{document}\t{grade}" for query, document, grade in rows)
        write_lines(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *lines])


def find_file(folder: Path, stem: str, extensions: Sequence[str]) -> Path:
    """The first of the files `stem` + extension that is in the BEIR folder."""
    if folder.is_file():
        raise DataError(f"{folder} is a file; give a BEIR folder, with {BEIR_FOLDER} ({HOW_TO_MAKE_ONE})")
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; check the path")
    for extension in extensions:
        path = folder / f"{stem}{extension}"
        if path.is_file():
            return path
    raise DataError(f"{folder}: holds no {stem}{extensions[0]}; a BEIR folder has {BEIR_FOLDER}")


def _find_qrels(folder: Path, split: str) -> Path:
    qrels = folder / "qrels"
    if not qrels.is_dir():
        raise DataError(f"{folder}: holds no folder qrels; put the judgments into qrels/{split}.tsv")
    for extension in QRELS_EXTENSIONS:
        path = qrels / f"{split}{extension}"
        if path.is_file():
            return path
    splits = sorted({path.name.split(".")[0] for path in qrels.iterdir() if not path.name.startswith(".")})
    raise DataError(f"{qrels}: holds no split '{split}'; there are: {', '.join(splits) or 'none'}")


def _read_each(
    path: Path, parse: Callable[[Mapping[str, Any]], Parsed], report: ReadReport
) -> Iterator[tuple[int, Parsed]]:
    """Line number and parsed value of every record of a `.jsonl` or `.tsv` file."""
    records: Iterator[tuple[int, Mapping[str, Any]]]
    if is_named(path, ".jsonl"):
        records = read_jsonl(path, report)
    elif is_named(path, ".tsv"):
        records = read_tsv(path, report, TEXTS)
    elif not path.exists():
        raise DataError(f"{path}: there is no such file or folder; check the path")
    else:
        raise DataError(f"{path}: is of no known kind; name it .jsonl or .tsv (.gz may follow)")
    for number, record in records:
        try:
            yield number, parse(record)
        except LineFault as fault:
            report.fault(f"{path}:{number}", fault)


def _read_queries(path: Path, report: ReadReport) -> dict[str, Query]:
    queries: dict[str, Query] = {}
    seen: dict[str, int] = {}
    for number, query in _read_each(path, _query, report):
        try:
            _check_new(seen, query.id, number)
        except LineFault as fault:
            report.fault(f"{path}:{number}", fault)
            continue
        queries[query.id] = query
    report.read["queries"] += len(queries)
    return queries


def _read_qrels(
    path: Path,
    report: ReadReport,
    known_queries: Mapping[str, Query] | None = None,
    known_documents: set[str] | None = None,
) -> Qrels:
    qrels: Qrels = {}
    for number, record in read_tsv(path, report, QRELS, split=_split_qrels):
        place = f"{path}:{number}"
        try:
            query, document, grade = _judgment(record)
            if known_queries is not None and query not in known_queries:
                raise LineFault(
                    "unknown query", f"query {shown(query)} is not in queries", "add it or take the line out"
                )
            if known_documents is not None and document not in known_documents:
                what = f"document {shown(document)} is not in the corpus"
                raise LineFault("unknown document", what, "add it or take the line out")
            before = qrels.get(query, {}).get(document)
            if before is not None and before != grade:
                what = f"query {shown(query)} and document {shown(document)} were graded {before}, and here {grade}"
                raise LineFault("contradicting judgment", what, "keep one of the lines")
        except LineFault as fault:
            report.fault(place, fault)
            continue
        if before is not None:
            report.note(place, "repeated judgment")
            continue
        qrels.setdefault(query, {})[document] = grade
        report.read["judgments"] += 1
    return qrels


def _check_new(seen: dict[str, int], identifier: str, number: int) -> None:
    first = seen.setdefault(identifier, number)
    if first != number:
        what = f"id {shown(identifier)} was given before, at {first}"
        raise LineFault("duplicate id", what, 'give each its own (1 and "1" are the same id)')


def _document(record: Mapping[str, Any]) -> Document:
    refuse_slips(record, (ID_KEYS, ("text",)))
    # A key that only resembles these two may be a name of metadata: `titles`, `tile`.
    refuse_slips(record, (("title",), ("metadata",)), likely=same_letters, mend=OTHERWISE_METADATA)
    identifier = read_identifier(record, *ID_KEYS)
    text = read_text(record, "text")
    title = "" if record.get("title") is None else read_text(record, "title")
    metadata = {} if record.get("metadata") is None else record["metadata"]
    if not isinstance(metadata, dict):
        raise LineFault("wrong metadata type", f'"metadata" is {shown(metadata)}', "write a JSON object")
    own = ("_id" if "_id" in record else "id", "text", "title", "metadata")
    return Document(
        identifier, text, title, metadata | {key: record[key] for key in record if key not in own}
    )


def _query(record: Mapping[str, Any]) -> Query:
    refuse_slips(record, (ID_KEYS, ("text",), ("answers",)))
    answers = record.get("answers")
    if answers is None:
        answers = []
    elif isinstance(answers, str):
        answers = [answers]
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise LineFault("wrong answers", f'"answers" is {shown(answers)}', "write a list of strings")
    checked = tuple(check_unicode("answers", answer) for answer in answers)
    return Query(read_identifier(record, *ID_KEYS), read_text(record, "text"), checked)


def _judgment(record: Mapping[str, str]) -> tuple[str, str, int]:
    grade = record["grade"].strip()
    if not WHOLE_NUMBER.fullmatch(grade):
        raise LineFault("wrong grade", f"the grade is {shown(grade)}", "write a whole number")
    return read_identifier(record, "query"), read_identifier(record, "document"), int(grade)


def _split_qrels(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def _lines(kind: str, things: Iterable[Named], record: Callable[[Named], dict[str, Any]]) -> Iterator[str]:
    """Documents or queries as JSON; one whose id could not be read again is refused."""
    for number, thing in enumerate(things, start=1):
        try:
            read_identifier({"id": thing.id}, "id")
        except LineFault as fault:
            raise DataError(f"{kind} {number}: {fault}") from fault
        yield json.dumps(record(thing), ensure_ascii=False)


def _document_record(document: Document) -> dict[str, Any]:
    record: dict[str, Any] = {"_id": document.id, "title": document.title, "text": document.text}
    return record | ({"metadata": dict(document.metadata)} if document.metadata else {})


def _query_record(query: Query) -> dict[str, Any]:
    record: dict[str, Any] = {"_id": query.id, "text": query.text}
    return record | ({"answers": list(query.answers)} if query.answers else {})
