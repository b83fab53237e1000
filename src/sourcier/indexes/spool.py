"""The unfinished build: encoded documents on disk, a chunk at a time, so that a build that was killed can go on.

    INDEX/building/plan.json           what is being built, with what settings
    INDEX/building/chunk-000000/...    ids, which of them have content, encodings, texts

A chunk appears whole: it is written beside its place, synced and renamed. Its arrays are mapped when it is read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from sourcier import encodings
from sourcier.config import write_json
from sourcier.indexes.arrays import map_array
from sourcier.indexes.disk import sync_tree
from sourcier.indexes.documents import DocumentStore, DocumentWriter, as_batch
from sourcier.indexes.sources import Rows
from sourcier.types import Document, SourcierError

_PLAN, _CHUNK, _ABOUT = "plan.json", "chunk-{:06d}", "about.json"
_CONTENT, _PASSAGES = "content.npy", "passages.npy"


class Spool:
    """The chunks of a build, in order."""

    def __init__(self, folder: Path, plan: dict[str, Any], *, resume: bool) -> None:
        self.folder = folder
        if resume and (folder / _PLAN).is_file():
            _refuse_other_plan(folder / _PLAN, plan)
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write_json(folder / _PLAN, plan)

    def __contains__(self, number: int) -> bool:
        return self._chunk(number).is_dir()

    def ids(self, number: int) -> list[str]:
        """The ids of a chunk that is there."""
        return list(self._about(number)["ids"])

    def write(
        self,
        number: int,
        ids: Sequence[str],
        content: np.ndarray,
        encoding: Any,
        documents: Sequence[Document] | None,
        passages: np.ndarray | None = None,
    ) -> None:
        """Put a chunk in its place. `content` [ids] bool; `encoding`: of those with content, None for none.

        `passages` [P, 3]: what was encoded of them, None where they are whole.
        """
        place = self._chunk(number)
        unfinished = place.with_name(f".{place.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        np.save(unfinished / _CONTENT, content)
        if passages is not None:
            np.save(unfinished / _PASSAGES, passages)
        about = {
            "ids": list(ids),
            "encoding": _write_encoding(unfinished, encoding),
            "documents": documents is not None,
        }
        write_json(unfinished / _ABOUT, about)
        if documents is not None:
            with DocumentWriter(unfinished) as writer:
                writer.add(as_batch(documents))
                writer.finish()
        sync_tree(unfinished)
        unfinished.rename(place)

    def rows(self) -> Iterator[Rows]:
        for number in self._numbers():
            about, folder = self._about(number), self._chunk(number)
            documents = list(DocumentStore(folder).batches()) if about["documents"] else None
            passages = map_array(folder / _PASSAGES) if (folder / _PASSAGES).is_file() else None
            yield Rows(about["ids"], map_array(folder / _CONTENT), documents, passages)

    @property
    def chunks(self) -> _SpooledChunks:
        return _SpooledChunks(self)

    def encodings(self) -> Iterator[Any]:
        for number in self._numbers():
            encoding = _read_encoding(self._chunk(number), self._about(number)["encoding"])
            if encoding is not None:
                yield encoding

    def remove(self) -> None:
        """Remove all chunks, and the plan."""
        shutil.rmtree(self.folder)

    def _numbers(self) -> Iterator[int]:
        number = 0
        while number in self:
            yield number
            number += 1

    def _chunk(self, number: int) -> Path:
        return self.folder / _CHUNK.format(number)

    def _about(self, number: int) -> dict[str, Any]:
        return _read(self._chunk(number) / _ABOUT)


class _SpooledChunks:
    """The encodings of a spool, as often as they are asked for."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._count = sum(
            int(np.count_nonzero(rows.content)) if rows.passages is None else len(rows.passages)
            for rows in spool.rows()
        )

    def __iter__(self) -> Iterator[Any]:
        return self._spool.encodings()

    def __len__(self) -> int:
        return self._count


def _write_encoding(folder: Path, encoding: Any) -> str | None:
    """Write an encoding, or a list of texts, into a folder; gives what it is."""
    if encoding is None:
        return None
    if isinstance(encoding, list):
        write_json(folder / "texts.json", {"texts": encoding})
        return "texts"
    for item in fields(encoding):
        np.save(folder / f"{item.name}.npy", getattr(encoding, item.name))
    return type(encoding).__name__


def _read_encoding(folder: Path, name: str | None) -> Any:
    if name is None:
        return None
    if name == "texts":
        return _read(folder / "texts.json")["texts"]
    cls = getattr(encodings, name)
    return cls(**{item.name: map_array(folder / f"{item.name}.npy") for item in fields(cls)})


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _refuse_other_plan(path: Path, plan: dict[str, Any]) -> None:
    """A build goes on as it began."""
    begun = _read(path)
    asked = json.loads(json.dumps(plan))
    for name in {**begun, **asked}:
        if begun.get(name) != asked.get(name):
            raise SourcierError(
                f"{path}: the unfinished build has {name} {begun.get(name)!r}, and this one {asked.get(name)!r}: "
                "ask for the same, or begin anew without resume"
            )
