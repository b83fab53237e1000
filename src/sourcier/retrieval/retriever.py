"""A retriever: an encoder, an index and its documents, behind one `search`.

Shapes: Q queries, K hits of a query.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from sourcier.encodings import Encoding
from sourcier.indexes import open_index, open_version
from sourcier.indexes.directory import ModelReference, Version
from sourcier.indexes.documents import FILE, DocumentStore
from sourcier.retrieval.building import build, describe, kind_for
from sourcier.types import Document, Encoder, Hits, SourcierError, has_content

if TYPE_CHECKING:
    from sourcier.indexes.base import IndexBase

#: Queries that are encoded and searched together, which bounds the memory of a large batch.
_GROUP = 1024


class Retriever:
    """Answers texts with ranked documents. Threads can share one.

    `index` and `documents` are those of one version, which the retriever keeps whatever is written later;
    `documents` is None where the index was built from encodings alone.
    """

    def __init__(
        self,
        index: IndexBase,
        documents: DocumentStore | None,
        encoder: Encoder | None,
        *,
        model_folder: Path | None = None,
        device: str | None = None,
    ) -> None:
        self.index = index
        self.documents = documents
        self._encoder = encoder
        self._model_folder = model_folder
        self._device = device
        self._loading = threading.Lock()
        self._encoding = threading.Lock()
        self._starting = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._closed = False

    @classmethod
    def build(
        cls,
        model: Encoder | str | os.PathLike[str] | None,
        corpus: Iterable[Document] | str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        kind: str | None = None,
        batch_size: int = 32,
        progress: bool = False,
        save_model: bool = True,
    ) -> Self:
        """Encode a corpus, write an index of it into the folder `path`, and open it.

        `model`: an encoder, the folder of a model, or None for `kind="bm25"`. `corpus`: documents, or what
        `Corpus.read` reads. The model goes into the folder too, so that it can be moved; without it (`save_model`
        False, or an encoder of your own that has no `save_pretrained`) the index is opened with `model=`.
        An index that is there is replaced at the end; who reads it keeps it.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        encoder = _as_encoder(model, None)
        version = build(
            encoder,
            _as_corpus(corpus),
            path,
            kind=kind_for(encoder, kind),
            batch_size=batch_size,
            progress=progress,
            save_model=save_model,
        )
        return cls(open_index(version), _documents(version), encoder)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        model: Encoder | str | os.PathLike[str] | None = None,
        device: str | None = None,
    ) -> Self:
        """Open the index in a folder. Its model is loaded at the first text, onto `device`, unless `model` is given."""
        version = open_version(path)
        encoder = _as_encoder(model, device)
        reference = version.manifest.model
        if encoder is not None:
            _refuse_other_model(encoder, version)
        elif reference is not None and reference.folder is None:
            raise SourcierError(
                f"{path}: the {reference.name} that built this index is not kept in it: give it as model="
            )
        folder = version.root / reference.folder if reference and reference.folder else None
        return cls(open_index(version), _documents(version), encoder, model_folder=folder, device=device)

    @property
    def encoder(self) -> Encoder | None:
        """The model that encodes queries, loaded when it is first needed; None where the index needs none."""
        if self._encoder is None and self._model_folder is not None:
            with self._loading:
                if self._encoder is None:
                    self._encoder = _load(self._model_folder, self._device)
        return self._encoder

    def search(self, queries: Sequence[str] | Encoding, k: int = 10, documents: bool = False) -> Hits:
        """The `k` best documents of each query, best first; all there are where that is fewer.

        A query without content (empty, or only punctuation) has no hits. Queries can also come encoded.
        `documents`: put the documents themselves into the result.
        """
        self._refuse_closed()
        return self._answer(queries, k, documents)

    def submit(self, queries: Sequence[str] | Encoding, k: int = 10, documents: bool = False) -> Future[Hits]:
        """The same, computed in a thread of the retriever's own, one call after the other."""
        with self._starting:
            self._refuse_closed()
            if self._worker is None:
                self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")
            return self._worker.submit(self._answer, queries, k, documents)

    def close(self) -> None:
        """Finish what was submitted, and take no more searches."""
        with self._starting:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SourcierError("this retriever is closed: open the index again")

    def _answer(self, queries: Sequence[str] | Encoding, k: int, documents: bool) -> Hits:
        if isinstance(queries, get_args(Encoding)):
            hits = self.index.search(queries, k)
        else:
            hits = self._search_texts(_checked_texts(queries), k)
        if documents:
            hits.documents = self._documents_of(hits)
        return hits

    def _search_texts(self, texts: Sequence[str], k: int) -> Hits:
        """Search with the texts that have content; the others keep empty rows."""
        from sourcier.indexes.ranking import checked_depth

        shape = (len(texts), min(checked_depth(k), len(self.index)))
        hits = Hits(
            np.full(shape, None, dtype=object), np.full(shape, -np.inf, dtype=np.float32), self.index.version
        )
        asked = [row for row, text in enumerate(texts) if has_content(text)]
        for start in range(0, len(asked), _GROUP):
            rows = asked[start : start + _GROUP]
            found = self.index.search(self._encode([texts[row] for row in rows]), k)
            hits.ids[rows], hits.scores[rows] = found.ids, found.scores
        return hits

    def _encode(self, texts: list[str]) -> Encoding | list[str]:
        """Texts as the index takes them."""
        encoder = self.encoder
        if encoder is None:
            return texts
        # An encoder need not be safe to call from several threads.
        with self._encoding:
            return encoder.encode(texts, "query")

    def _documents_of(self, hits: Hits) -> list[list[Document]]:
        if self.documents is None:
            raise SourcierError("the index holds no documents: it was built from encodings alone")
        return [
            self.documents.get([str(identifier) for identifier in row[:count]])
            for row, count in zip(hits.ids, hits.counts, strict=True)
        ]


def _checked_texts(queries: object) -> Sequence[str]:
    if isinstance(queries, str) or not isinstance(queries, Sequence):
        raise TypeError(
            f"queries are a list of texts, not {type(queries).__name__}: put a single one into a list"
        )
    for row, text in enumerate(queries):
        if not isinstance(text, str):
            raise TypeError(f"query {row} is {text!r}, not a text")
    return queries


def _as_encoder(model: Any, device: str | None) -> Encoder | None:
    if model is None or isinstance(model, Encoder):
        return model
    if isinstance(model, (str, os.PathLike)):
        return _load(Path(model), device)
    raise TypeError(f"a model is an encoder or the folder of one, not {type(model).__name__}")


def _load(folder: Path, device: str | None) -> Encoder:
    # Here, because it brings PyTorch, which BM25 and encoders of other kinds do without.
    from sourcier.models import checkpoints

    return checkpoints.load(folder, device)


def _as_corpus(corpus: Iterable[Document] | str | os.PathLike[str]) -> Iterable[Document]:
    if isinstance(corpus, (str, os.PathLike)):
        from sourcier.data.collections import Corpus

        return Corpus.read(Path(corpus))
    return corpus


def _documents(version: Version) -> DocumentStore | None:
    return DocumentStore(version.folder) if (version.folder / FILE).is_file() else None


def _refuse_other_model(encoder: Encoder, version: Version) -> None:
    """Refuse an encoder whose vectors do not belong to those of the index, as far as the two can be told apart."""
    built = version.manifest.model
    if built is None:
        raise SourcierError(
            f"{version.root}: an index of kind '{version.manifest.kind}' takes no model: leave model= out"
        )
    given = describe(encoder)
    if (
        encoder.family != version.manifest.family
        or (built.fingerprint or given.fingerprint) != given.fingerprint
    ):
        raise SourcierError(
            f"{version.root}: was built by {_named(built, version.manifest.family)}, and the model given is "
            f"{_named(given, encoder.family)}: give the one that built it, or build the index again"
        )


def _named(model: ModelReference, family: str | None) -> str:
    fingerprint = model.fingerprint[:16] if model.fingerprint else "without a fingerprint"
    return f"{model.name} ({family}, {fingerprint})"
