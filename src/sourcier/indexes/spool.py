"""The unfinished build: encoded documents on disk, a chunk at a time, so that a build that was killed can go on.

    INDEX/building/plan.json           what is being built, with what settings
    INDEX/building/chunk-000000/...    ids, which of them have content, encodings, texts
    INDEX/building/chunk-000000/about.json     of what documents the chunk was made, and the size of each file
    INDEX/building/finished            the version that is about to be committed, or was, with these chunks

A chunk appears whole: it is written beside its place, synced and renamed. One that is not whole any more, or was made
from other texts, is made again. Arrays are mapped when they are read.

The chunks go when their version is committed. Those that a kill left behind after that are spare: the same build, asked
for again, need not encode its texts a second time, and they stand in the way of no other one.
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
from sourcier.indexes.arrays import map_array, save_array
from sourcier.indexes.disk import files_in, make_folder, remove_folder, sync_tree, writing
from sourcier.indexes.documents import DocumentStore, DocumentWriter, as_batch, digest
from sourcier.indexes.finished import note, noted
from sourcier.indexes.sources import Rows
from sourcier.types import Document, SourcierError

_PLAN, _CHUNK, _ABOUT = "plan.json", "chunk-{:06d}", "about.json"
_CONTENT, _PASSAGES = "content.npy", "passages.npy"


class Spool:
    """The chunks of a build, in order: those that it made, and those that it took over."""

    def __init__(self, folder: Path, plan: dict[str, Any], *, resume: bool) -> None:
        self.folder = folder
        self._chunks = 0
        self._spare = noted(folder) is not None
        begun = _read(folder / _PLAN) if resume else None
        if begun is not None and not (self._spare and _differing(begun, plan)):
            _refuse_other_plan(folder / _PLAN, begun, plan)
            return
        self._spare = False
        self.remove()
        make_folder(folder)
        write_json(folder / _PLAN, plan)

    def take(self, row: int, ids: Sequence[str], documents: Sequence[Document] | None) -> bool:
        """Take the next chunk over where it is there, whole, and made from these documents.

        `row`: of the first document. Other ids are another corpus, and refused unless the chunks are spare; other texts
        under the same ids are what the corpus has become, and the chunk has to be made again.
        """
        place = self._chunk(self._chunks)
        about = _about_whole(place)
        if about is None:
            return False
        if self._spare and (about["ids"] != list(ids) or documents is None):
            return False  # without texts, nothing tells whether it is the same build that is asked for again
        _refuse_other_ids(row, about["ids"], ids)
        if documents is not None and about["digest"] != digest(documents):
            return False
        self._chunks += 1
        return True

    def write(
        self,
        ids: Sequence[str],
        content: np.ndarray,
        encoding: Any,
        documents: Sequence[Document] | None,
        passages: np.ndarray | None = None,
    ) -> None:
        """Put the next chunk in its place. `content` [ids] bool; `encoding`: of those with content, None for none.

        `passages` [P, 3]: what was encoded of them, None where they are whole.
        """
        place = self._chunk(self._chunks)
        if place.is_dir():
            remove_folder(place)
        unfinished = place.with_name(f".{place.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            make_folder(unfinished)
            self._write(unfinished, ids, content, encoding, documents, passages)
            with writing(place):
                unfinished.rename(place)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._chunks += 1

    def _write(
        self,
        unfinished: Path,
        ids: Sequence[str],
        content: np.ndarray,
        encoding: Any,
        documents: Sequence[Document] | None,
        passages: np.ndarray | None,
    ) -> None:
        save_array(unfinished / _CONTENT, content)
        if passages is not None:
            save_array(unfinished / _PASSAGES, passages)
        written = _write_encoding(unfinished, encoding)
        if documents is not None:
            with DocumentWriter(unfinished) as writer:
                writer.add(as_batch(documents))
                writer.finish()
        about = {
            "ids": list(ids),
            "encoding": written,
            "documents": documents is not None,
            "digest": None if documents is None else digest(documents),
            "files": {path.name: path.stat().st_size for path in files_in(unfinished)},
        }
        write_json(unfinished / _ABOUT, about)
        sync_tree(unfinished)

    def rows(self) -> Iterator[Rows]:
        for number in range(self._chunks):
            about, folder = self._about(number), self._chunk(number)
            documents = list(DocumentStore(folder).batches()) if about["documents"] else None
            passages = map_array(folder / _PASSAGES) if (folder / _PASSAGES).is_file() else None
            yield Rows(about["ids"], map_array(folder / _CONTENT), documents, passages)

    @property
    def chunks(self) -> _SpooledChunks:
        return _SpooledChunks(self)

    def encodings(self) -> Iterator[Any]:
        for number in range(self._chunks):
            encoding = _read_encoding(self._chunk(number), self._about(number)["encoding"])
            if encoding is not None:
                yield encoding

    def finish(self, version: int) -> None:
        """Note what the chunks become, before that is committed."""
        note(self.folder, version)

    def remove(self) -> None:
        """Remove all chunks, and the plan."""
        if self.folder.is_dir():
            remove_folder(self.folder)

    def _chunk(self, number: int) -> Path:
        return self.folder / _CHUNK.format(number)

    def _about(self, number: int) -> dict[str, Any]:
        return _json(self._chunk(number) / _ABOUT)


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
        save_array(folder / f"{item.name}.npy", np.asarray(getattr(encoding, item.name)))
    return type(encoding).__name__


def _read_encoding(folder: Path, name: str | None) -> Any:
    if name is None:
        return None
    if name == "texts":
        return _json(folder / "texts.json")["texts"]
    cls = getattr(encodings, name)
    return cls(**{item.name: map_array(folder / f"{item.name}.npy") for item in fields(cls)})


def _about_whole(chunk: Path) -> dict[str, Any] | None:
    """What a chunk tells of itself; None where it is not there, or any of its files is not as it was written."""
    about = _read(chunk / _ABOUT)
    sizes = {path.name: path.stat().st_size for path in files_in(chunk) if path.name != _ABOUT}
    return about if about is not None and about.get("files") == sizes else None


def _read(path: Path) -> dict[str, Any] | None:
    """What a file holds; None where it is missing, or cut short."""
    try:
        return _json(path)
    except (FileNotFoundError, ValueError):
        return None


def _json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _refuse_other_plan(path: Path, begun: dict[str, Any], plan: dict[str, Any]) -> None:
    """A build goes on as it began."""
    name = _differing(begun, plan)
    if name is not None:
        raise SourcierError(
            f"{path}: the unfinished build has {name} {begun.get(name)!r}, and this one {plan.get(name)!r}: "
            "ask for the same, or begin anew without resume"
        )


def _differing(begun: dict[str, Any], plan: dict[str, Any]) -> str | None:
    """What of a plan is not as it was when the build began."""
    asked = json.loads(json.dumps(plan))
    return next((name for name in {**begun, **asked} if begun.get(name) != asked.get(name)), None)


def _refuse_other_ids(row: int, here: Sequence[str], asked: Sequence[str]) -> None:
    """A build goes on with the corpus that it began with."""
    for place, (one, other) in enumerate(zip(here, asked, strict=False)):
        if one != other:
            raise SourcierError(
                f"document in row {row + place}: the unfinished build has '{one}' there and the corpus has "
                f"'{other}': give the corpus it began with, or begin anew without resume"
            )
    if len(here) != len(asked):
        raise SourcierError(
            f"document in row {row + min(len(here), len(asked))}: the unfinished build has chunks of other "
            "documents: give the corpus and the chunk size it began with, or begin anew without resume"
        )
