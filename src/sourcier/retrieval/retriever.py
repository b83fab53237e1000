"""A retriever: an encoder, an index and its documents, behind one `search`.

Shapes: Q queries, K hits of a query.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from sourcier.encodings import Encoding
from sourcier.indexes import open_index
from sourcier.indexes.manifest import ModelReference, Splitting
from sourcier.indexes.version import Version, reading
from sourcier.indexes.where import Where
from sourcier.retrieval.building import Building, add, build, describe, kind_for
from sourcier.retrieval.service import Service, documents_of
from sourcier.types import Document, Encoder, Hits, SourcierError, has_content

if TYPE_CHECKING:
    from sourcier.indexes.index import Documents, Index

#: Queries that are encoded and searched together, which bounds the memory of a large batch.
_GROUP = 1024


class Retriever(Service):
    """Answers texts with ranked documents. Threads can share one.

    `index` and `documents` are those of one version, which the retriever keeps whatever is written later;
    `documents` is None where the index was built from encodings alone.
    """

    def __init__(
        self,
        index: Index,
        encoder: Encoder | None,
        *,
        model_folder: Path | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.index = index
        self.documents: Documents | None = index.documents
        self._encoder = encoder
        self._model_folder = model_folder
        self._device = device
        self._loading = threading.Lock()
        self._encoding = threading.Lock()

    @classmethod
    def build(
        cls,
        model: Encoder | str | os.PathLike[str] | None,
        corpus: Iterable[Document] | str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        kind: str | None = None,
        settings: Mapping[str, Any] | None = None,
        passages: int | None = None,
        overlap: int | None = None,
        batch_size: int = 32,
        chunk: int = 1024,
        progress: bool = False,
        resume: bool = False,
        save_model: bool = True,
    ) -> Self:
        """Encode a corpus, write an index of it into the folder `path`, and open it.

        `model`: an encoder, the folder of a model, or None for `kind="bm25"`. `corpus`: documents, or what
        `Corpus.read` reads. The model goes into the folder too, so that it can be moved; without it (`save_model`
        False, or an encoder of your own that has no `save_pretrained`) the index is opened with `model=`.
        An index that is there is replaced at the end; who reads it keeps it. `settings`: those of the kind, see its
        `Build`. `chunk` documents are encoded and put on disk at a time, which bounds the memory; `resume` goes on
        with the chunks that a build of the same model and corpus left behind when it was stopped.
        `passages`: cut each document into passages of so many tokens of the model, title included (words, where the
        model is not one of ours), of which each repeats the last `overlap` of the one before (a quarter of a passage,
        unless it is given); a document scores by its best passage. Documents are cut at the model's length otherwise.
        """
        building = Building(batch_size=batch_size, chunk=chunk, progress=progress, resume=resume)
        encoder = _as_encoder(model, None)
        version = build(
            encoder,
            _as_corpus(corpus),
            path,
            kind=kind_for(encoder, kind),
            settings=settings or {},
            building=building,
            save_model=save_model,
            passages=_splitting(passages, overlap),
        )
        return cls(open_index(version), encoder)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        model: Encoder | str | os.PathLike[str] | None = None,
        device: str | None = None,
    ) -> Retriever:
        """Open the index in a folder. Its model is loaded at the first text, onto `device`, unless `model` is given."""
        encoder = _as_encoder(model, device)

        def opened(version: Version) -> Retriever:
            reference = version.manifest.model
            if encoder is not None:
                _refuse_other_model(encoder, version)
            elif reference is not None and reference.folder is None:
                raise SourcierError(
                    f"{path}: the {reference.name} that built this index is not kept in it: give it as model="
                )
            folder = version.root / reference.folder if reference and reference.folder else None
            return cls(open_index(version), encoder, model_folder=folder, device=device)

        return reading(path, opened)

    def add(
        self,
        corpus: Iterable[Document] | str | os.PathLike[str],
        *,
        batch_size: int = 32,
        chunk: int = 1024,
        progress: bool = False,
        resume: bool = False,
    ) -> Retriever:
        """Add documents to the index on disk, and open the version that holds them; this one keeps its own.

        A document whose id the index holds takes that one's place. The settings are those of `build`.
        """
        building = Building(batch_size=batch_size, chunk=chunk, progress=progress, resume=resume)
        version = add(self.encoder, _as_corpus(corpus), self.index.root, building)
        return type(self)(
            open_index(version), self._encoder, model_folder=self._model_folder, device=self._device
        )

    @property
    def encoder(self) -> Encoder | None:
        """The model that encodes queries, loaded when it is first needed; None where the index needs none."""
        if self._encoder is None and self._model_folder is not None:
            with self._loading:
                if self._encoder is None:
                    self._encoder = self._load_kept(self._model_folder)
        return self._encoder

    def _load_kept(self, folder: Path) -> Encoder:
        """The model that is kept in the index."""
        if not folder.is_dir():
            raise SourcierError(
                f"{folder}: the model of this version is gone, since another took its place: open the index again"
            )
        # A model whose weights or words changed finds other documents without a word.
        self.index.check_model()
        return _load(folder, self._device)

    def search(
        self,
        queries: Sequence[str] | Encoding,
        k: int = 10,
        documents: bool = False,
        *,
        where: Where | str | None = None,
        search: Any = None,
    ) -> Hits:
        """The `k` best documents of each query, best first; all there are where that is fewer.

        A query without content (empty, or only punctuation) has no hits. Queries can also come encoded.
        `documents`: put the documents themselves into the result. `where`: only documents whose metadata pass this
        filter, like "lang = 'de'". `search`: what trades speed for recall, the `Search` of the index's kind.
        """
        self._refuse_closed()
        return self._answer(queries, k, documents, where, search)

    def submit(
        self,
        queries: Sequence[str] | Encoding,
        k: int = 10,
        documents: bool = False,
        *,
        where: Where | str | None = None,
        search: Any = None,
    ) -> Future[Hits]:
        """The same, computed in a thread of the retriever's own, one call after the other."""
        return self._later(self._answer, queries, k, documents, where, search)

    def _answer(
        self,
        queries: Sequence[str] | Encoding,
        k: int,
        documents: bool,
        where: Where | str | None,
        search: Any,
    ) -> Hits:
        if isinstance(queries, get_args(Encoding)):
            hits = self.index.search(queries, k, where=where, search=search)
        else:
            hits = self._search_texts(_checked_texts(queries), k, where, search)
        if documents:
            hits.documents = documents_of(hits, self.documents)
        return hits

    def _search_texts(self, texts: Sequence[str], k: int, where: Where | str | None, search: Any) -> Hits:
        """Search with the texts that have content, some at a time; the others keep empty rows."""
        asked = [row for row, text in enumerate(texts) if has_content(text)]
        found = [
            self.index.search(self._encode([texts[row] for row in rows]), k, where=where, search=search)
            for rows in (asked[start : start + _GROUP] for start in range(0, len(asked), _GROUP))
        ]
        depth = found[0].ids.shape[1] if found else self.index.depth(k, where)
        hits = Hits(
            np.full((len(texts), depth), None, dtype=object),
            np.full((len(texts), depth), -np.inf, dtype=np.float32),
            self.index.version,
        )
        if found:
            hits.ids[asked] = np.concatenate([part.ids for part in found])
            hits.scores[asked] = np.concatenate([part.scores for part in found])
        if found and found[0].passages is not None:
            hits.passages = np.full((len(texts), depth, 2), -1, dtype=np.int64)
            hits.passages[asked] = np.concatenate([part.passages for part in found])
        hits.short = (hits.counts < depth) & np.isin(np.arange(len(texts)), asked)
        return hits

    def _encode(self, texts: list[str]) -> Encoding | list[str]:
        """Texts as the index takes them."""
        encoder = self.encoder
        if encoder is None:
            return texts
        # An encoder need not be safe to call from several threads.
        with self._encoding:
            return encoder.encode(texts, "query")


def _splitting(passages: int | None, overlap: int | None) -> Splitting | None:
    if passages is None:
        if overlap is not None:
            raise ValueError(f"overlap={overlap} is one of passages: give passages=, their size")
        return None
    return Splitting(size=passages, overlap=passages // 4 if overlap is None else overlap)


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
