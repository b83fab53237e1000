"""From a corpus to an index on disk, in chunks: read, encode, write. The chunk bounds the memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from sourcier.config import setting, unknown
from sourcier.encodings import Encoding
from sourcier.indexes import Version, create, extend
from sourcier.indexes.manifest import ModelReference, Splitting
from sourcier.ranges import check_ranges
from sourcier.retrieval.passages import Splitter
from sourcier.types import DataError, Document, Encoder, SourcierError, has_content

if TYPE_CHECKING:
    from sourcier.indexes.writer import IndexWriter

#: What kinds of index hold the encodings of a family; the first is exact, and the default.
KINDS_OF_FAMILY = {
    "colbert": ("multivector", "warp"),
    "dense": ("dense", "dense-hnsw", "dense-ivfpq"),
    "sparse_embed": ("term_vectors",),
    "splade": ("sparse", "seismic"),
}


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
    if encoder.family not in KINDS_OF_FAMILY:
        raise SourcierError(unknown("family of model", encoder.family, KINDS_OF_FAMILY))
    fitting = KINDS_OF_FAMILY[encoder.family]
    if kind not in (None, *fitting):
        offered = " or ".join(f"'{one}'" for one in fitting)
        raise SourcierError(
            f"a {encoder.family} model does not fit an index of kind '{kind}': leave the kind out, or give {offered}"
        )
    return kind or fitting[0]


@dataclass(frozen=True, kw_only=True)
class Building:
    """How documents are encoded on their way into an index."""

    batch_size: int = setting(32, "texts at once", at_least=1)
    #: Documents that are encoded, and wait on disk, together: what bounds the memory.
    chunk: int = setting(1024, "documents that are encoded and put on disk together", at_least=1)
    progress: bool = False
    #: Go on with what an unfinished build has encoded.
    resume: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)


def build(
    encoder: Encoder | None,
    corpus: Iterable[Document],
    path: str | os.PathLike[str],
    *,
    kind: str,
    settings: Mapping[str, Any],
    building: Building,
    save_model: bool,
    passages: Splitting | None = None,
) -> Version:
    """Write an index with its documents and, where it can be saved, its encoder; committed whole at the end.

    `passages`: how documents are cut into passages, which are encoded in their place.
    """
    family = None if encoder is None else encoder.family
    plan = _plan(encoder, building, passages)
    with create(kind, path, family=family, build=settings, plan=plan, resume=building.resume) as writer:
        writer.splitting = passages
        _fill(writer, encoder, corpus, building)
        if not len(writer):
            raise SourcierError("the corpus holds no documents: there is nothing to build an index of")
        if encoder is not None:
            writer.model = _keep(writer, encoder, save_model)
        return writer.finish()


def add(
    encoder: Encoder | None, corpus: Iterable[Document], path: str | os.PathLike[str], building: Building
) -> Version:
    """Add documents to an index; one whose id it holds takes that one's place."""
    with extend(path, plan=_plan(encoder, building, None), resume=building.resume) as writer:
        _fill(writer, encoder, corpus, building)
        if not len(writer):
            raise SourcierError("there are no documents to add")
        return writer.finish()


def _plan(encoder: Encoder | None, building: Building, passages: Splitting | None) -> dict[str, Any]:
    """What has to be the same for an unfinished build to go on."""
    model = None if encoder is None else asdict(describe(encoder))
    return {"model": model, "chunk": building.chunk, "passages": passages and asdict(passages)}


def _fill(
    writer: IndexWriter, encoder: Encoder | None, corpus: Iterable[Document], building: Building
) -> None:
    """Encode a corpus, chunk by chunk. What is encoded stays, should the rest fail."""
    splitter = None if writer.splitting is None else Splitter(writer.splitting, encoder)

    def put(chunk: Sequence[Document]) -> None:
        if splitter is None:
            _add(writer, encoder, chunk, building.batch_size)
        else:
            _add_passages(writer, encoder, splitter, chunk, building.batch_size)

    writer.keep_chunks = True
    with _progress(corpus, building.progress) as advance:
        for chunk in _chunks(_checked(corpus), building.chunk):
            if not writer.take([document.id for document in chunk], chunk):
                put(chunk)
            advance(len(chunk))


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
        writer.add_empty(ids, documents)
        return
    filled = [text for text, one in zip(texts, content, strict=True) if one]
    writer.add(ids, _encoded(encoder, filled, batch_size), content, documents)


def _add_passages(
    writer: IndexWriter,
    encoder: Encoder | None,
    splitter: Splitter,
    documents: Sequence[Document],
    batch_size: int,
) -> None:
    """Encode the passages of documents, and write all."""
    ids = [document.id for document in documents]
    passages, texts = splitter.split(documents)
    if texts:
        writer.add_passages(ids, _encoded(encoder, texts, batch_size), passages, documents)
    else:
        writer.add_empty(ids, documents)


def _encoded(encoder: Encoder | None, texts: list[str], batch_size: int) -> Encoding | list[str]:
    """Texts as the index takes them."""
    return texts if encoder is None else encoder.encode(texts, "document", batch_size=batch_size)


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
