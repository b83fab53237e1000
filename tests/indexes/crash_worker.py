"""What `test_crashes` kills and what reads meanwhile: a row of builds, additions, deletions and compactions.

    python -m indexes.crash_worker straight KIND INDEX           all, undisturbed; tells of each what came of it
    python -m indexes.crash_worker perform KIND INDEX NUMBER AT  one of them, killed at a call of a function
    python -m indexes.crash_worker read KIND INDEX STOP          searches until STOP is there; tells each new answer

Operation 0 makes version 1, and so on: which documents a version must hold follows from the number.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sourcier.encodings import DenseVectors, TokenVectors
from sourcier.indexes import changes
from sourcier.retrieval.retriever import Retriever
from sourcier.types import Document, Hits, SourcierError

WHAT = ("build", "add", "delete", "compact")
ROUNDS = 5
#: The family of the encoder of each kind.
FAMILIES = {"bm25": None, "dense": "dense", "multivector": "colbert"}
#: What Python tells of a change on the disk, apart from files that are opened to be written.
_CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
#: More than there are documents.
ALL = 100
QUERIES = ["water of the mountain", "water 7"]


def operation(number: int) -> tuple[int, str]:
    """The round of an operation, and what it does."""
    return number // len(WHAT), WHAT[number % len(WHAT)]


def corpus(turn: int) -> list[Document]:
    return [_document(number, f"built in {turn}") for number in range(40)]


def more(turn: int) -> list[Document]:
    """Ten documents that take the place of others, and fourteen new ones."""
    return [_document(number, f"added in {turn}") for number in range(30, 54)]


def gone(turn: int) -> list[str]:
    """Documents of the build, of the addition, and one that was never there."""
    return [f"d{turn}", f"d{turn + 31}", f"d{turn + 45}", "unknown"]


def held(number: int) -> dict[str, Document]:
    """The documents that the index must hold after an operation."""
    documents: dict[str, Document] = {}
    for turn, what in map(operation, range(number + 1)):
        match what:
            case "build":
                documents = {document.id: document for document in corpus(turn)}
            case "add":
                documents |= {document.id: document for document in more(turn)}
            case "delete":
                documents = {key: one for key, one in documents.items() if key not in gone(turn)}
    return documents


class Numbers:
    """An encoder whose vectors follow from the letters of a text. Each round has one of its own."""

    def __init__(self, family: str, turn: int) -> None:
        self.family, self._turn = family, turn

    def encode(
        self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False
    ) -> DenseVectors | TokenVectors:
        sources = [np.random.default_rng(zlib.crc32(text.encode())) for text in texts]
        if self.family == "dense":
            return DenseVectors(np.stack([one.normal(size=8) for one in sources]).astype(np.float32))
        tokens = [one.normal(size=(one.integers(1, 5), 8)).astype(np.float32) for one in sources]
        offsets = np.cumsum([0, *(len(one) for one in tokens)])
        return TokenVectors(offsets.astype(np.int64), np.concatenate(tokens))

    def fingerprint(self) -> str:
        return f"{self._turn:064x}"

    def save_pretrained(self, folder: Path) -> None:
        for name in ("config", "weights"):
            (folder / name).write_text(f"{name} {self._turn}\n" * 500)


def encoder(kind: str, turn: int = 0) -> Numbers | None:
    family = FAMILIES[kind]
    return None if family is None else Numbers(family, turn)


def perform(kind: str, root: Path, number: int) -> None:
    """Do an operation, going on with what one that was killed has left."""
    turn, what = operation(number)
    model = encoder(kind, turn)
    match what:
        case "build":
            Retriever.build(model, corpus(turn), root, kind=kind, chunk=8, resume=True)
        case "add":
            Retriever.open(root, model=model).add(more(turn), chunk=8, resume=True)
        case "delete":
            changes.delete(root, gone(turn))
        case "compact":
            changes.compact(root)


def answer(kind: str, retriever: Retriever) -> dict[str, Any]:
    """All that searching tells: the documents with their scores and texts, and those that pass a filter."""
    model = encoder(kind)
    queries = QUERIES if model is None else model.encode(QUERIES, "query")
    hits: Hits = retriever.search(queries, ALL, documents=True)
    few: Hits = retriever.search(queries, ALL, where="n < 33")
    assert hits.documents is not None
    return {
        "version": hits.version,
        "ids": hits.ids.tolist(),
        "scores": hits.scores.tolist(),
        "texts": [[document.text for document in row] for row in hits.documents],
        "few": few.ids.tolist(),
    }


def names(root: Path) -> list[str]:
    """All files of an index but the chunks of a build, which a kill after its commit leaves to the next writer."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in found if path.parts[0] not in ("building", ".building"))


def _document(number: int, when: str) -> Document:
    return Document(f"d{number}", f"water {number} {when}", metadata={"n": number})


class _Calls:
    """Counts the calls of functions, Python's own included, and kills the process at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.count, self._at = 0, at

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1
            if self.count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)


class _Disk:
    """At which calls something on the disk changes."""

    def __init__(self, pointer: Path) -> None:
        self.changes: list[int] = []
        #: Which of the changes is the commit.
        self.commit = 0
        self._pointer = pointer

    def note(self, event: str, arguments: Any, call: int) -> None:
        if event in _CHANGES or (event == "open" and set(arguments[1] or "") & set("wax+")):
            if event == "os.rename" and str(arguments[1]) == str(self._pointer):
                self.commit = len(self.changes)
            self.changes.append(call)


def _warm_up(kind: str) -> None:
    """Have all modules imported, so that calls are those of the operation."""
    memory = Path("/dev/shm")  # where nothing waits for a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        for number in range(len(WHAT)):
            perform(kind, Path(folder, "index"), number)


def _straight(kind: str, root: Path) -> None:
    _warm_up(kind)
    calls, disk = _Calls(), _Disk(root / "CURRENT")
    sys.addaudithook(lambda event, arguments: disk.note(event, arguments, calls.count))
    for number in range(ROUNDS * len(WHAT)):
        calls.count, disk.changes = 0, []
        sys.setprofile(calls)
        perform(kind, root, number)
        sys.setprofile(None)
        told = {"calls": calls.count, "changes": disk.changes, "commit": disk.commit, "names": names(root)}
        _tell(told | {"answer": answer(kind, Retriever.open(root))})


def _perform_and_die(kind: str, root: Path, number: int, at: int) -> None:
    _warm_up(kind)
    sys.setprofile(_Calls(at))
    perform(kind, root, number)
    os.kill(os.getpid(), signal.SIGKILL)  # a few calls earlier than when they were counted


def _read(kind: str, root: Path, stop: Path) -> None:
    """Search what there is now, and one of the versions that were opened before."""
    told: set[str] = set()
    opened: list[Retriever] = []
    searches, last = 0, False
    while not last:
        last = stop.exists()
        try:
            opened = [*opened[-9:], Retriever.open(root)]
        except SourcierError as error:
            if opened or "no index here" not in str(error):
                raise
        for retriever in (opened[-1], random.choice(opened)) if opened else ():
            searches += 1
            line = json.dumps(answer(kind, retriever))
            if line not in told:
                told.add(line)
                _tell({"answer": json.loads(line)})
        time.sleep(0.1)
    _tell({"searches": searches})


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    role, kind, index, *rest = sys.argv[1:]
    match role:
        case "straight":
            _straight(kind, Path(index))
        case "perform":
            _perform_and_die(kind, Path(index), *map(int, rest))
        case "read":
            _read(kind, Path(index), Path(rest[0]))
