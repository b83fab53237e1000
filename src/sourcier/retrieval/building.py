"""From a corpus to an index on disk, in chunks: read, encode, write. The chunk bounds the memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from sourcier.config import unknown
from sourcier.indexes import IndexWriter, Version, create
from sourcier.indexes.directory import ModelReference
from sourcier.indexes.documents import DocumentWriter
from sourcier.types import DataError, Document, Encoder, SourcierError, has_content

#: What kind of index holds the encodings of a family.
KIND_OF_FAMILY = {
    "colbert": "multivector",
    "dense": "dense",
    "sparse_embed": "term_vectors",
    "splade": "sparse",
}

#: Batches of the encoder in a chunk: enough to sort texts by length, few enough for their vectors to fit in memory.
_BATCHES = 32


@runtime_checkable
class SavedEncoder(Encoder, Protocol):
    """An encoder that an index can keep: it writes a folder that `sourcier.models.checkpoints.load` reads."""

    def fingerprint(self) -> str: ...

    def save_pretrained(self, folder: Path) -> None: ...


def kind_for(encoder: Encoder | None, kind: str | None) -> str:
    """The kind of index for an encoder, or the one that is asked for where the encoder's vectors fit into it."""
    if encoder is None:
        if kind != "bm25":
            raise SourcierError("an index without a model is of kind 'bm25': give kind='bm25', or a model")
        return kind
    if encoder.family not in KIND_OF_FAMILY:
        raise SourcierError(unknown("family of model", encoder.family, KIND_OF_FAMILY))
    fitting = KIND_OF_FAMILY[encoder.family]
    if kind not in (None, fitting):
        raise SourcierError(
            f"a {encoder.family} model does not fit an index of kind '{kind}': leave the kind out, or give '{fitting}'"
        )
    return fitting


def build(
    encoder: Encoder | None,
    corpus: Iterable[Document],
    path: str | os.PathLike[str],
    *,
    kind: str,
    batch_size: int,
    progress: bool,
    save_model: bool,
) -> Version:
    """Write an index with its documents and, where it can be saved, its encoder; committed whole at the end."""
    family = None if encoder is None else encoder.family
    with (
        create(kind, path, family=family) as writer,
        DocumentWriter(writer.folder) as documents,
        _progress(corpus, progress) as advance,
    ):
        for chunk in _chunks(_checked(corpus), batch_size * _BATCHES):
            _add(writer, encoder, chunk, batch_size)
            documents.add(chunk)
            advance(len(chunk))
        if not len(writer):
            raise SourcierError("the corpus holds no documents: there is nothing to build an index of")
        documents.finish()
        if encoder is not None:
            writer.model = _keep(writer, encoder, save_model)
        return writer.finish()


def describe(encoder: Encoder) -> ModelReference:
    """An encoder as a manifest names it."""
    fingerprint = getattr(encoder, "fingerprint", None)
    return ModelReference(
        name=type(encoder).__name__, fingerprint=fingerprint() if callable(fingerprint) else None
    )


def _keep(writer: IndexWriter, encoder: Encoder, save: bool) -> ModelReference:
    """The encoder's reference, with the encoder itself in the index where it is to be and can be saved."""
    reference = describe(encoder)
    if not (save and isinstance(encoder, SavedEncoder) and reference.fingerprint):
        return reference
    return replace(
        reference, folder=writer.directory.keep_model(reference.fingerprint, encoder.save_pretrained)
    )


def _add(
    writer: IndexWriter, encoder: Encoder | None, documents: Sequence[Document], batch_size: int
) -> None:
    """Encode documents that have content, and write all."""
    ids = [document.id for document in documents]
    texts = [document.content for document in documents]
    content = np.array([has_content(text) for text in texts], dtype=bool)
    if not content.any():
        writer.add_empty(ids)
        return
    filled = [text for text, one in zip(texts, content, strict=True) if one]
    encoding = filled if encoder is None else encoder.encode(filled, "document", batch_size=batch_size)
    writer.add(ids, encoding, content)


def _checked(corpus: Iterable[Document]) -> Iterator[Document]:
    """The documents, refused where one is none or has no text: the error names its row, counted from 0."""
    for row, document in enumerate(corpus):
        if not isinstance(document, Document):
            raise DataError(f"row {row} of the corpus: expected a Document, found {type(document).__name__}")
        for name, value in (("text", document.text), ("title", document.title)):
            if not isinstance(value, str):
                raise DataError(
                    f"row {row} of the corpus: the {name} of document '{document.id}' is {value!r}: "
                    "give a text, or leave the document out"
                )
        yield document


def _chunks(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
    while chunk := list(islice(documents, size)):
        yield chunk


@contextmanager
def _progress(corpus: Iterable[Document], shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error with documents a second and the time left; a function that moves it."""
    if not shown:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # Before there is a bar: a fault in the corpus is an error of one line.
    total = len(corpus) if isinstance(corpus, Sized) else None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("indexing", total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].speed or bar.tasks[0].finished_speed
            bar.update(task, rate=f"{speed:.0f} documents/s" if speed else "")

        yield advance
