"""What retrievers share: searches that are wanted later, an end, documents of hits; and what those over others do."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from sourcier.indexes.where import Where
from sourcier.types import Document, Hits, SourcierError


class Service:
    """Has a thread for searches that are wanted later, and an end."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._closed = False

    def close(self) -> None:
        """Finish what was submitted, and take no more."""
        with self._starting:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _later(self, work: Callable[..., Hits], *arguments: Any, **settings: Any) -> Future[Hits]:
        """A call that runs in the thread, after those before it."""
        with self._starting:
            self._refuse_closed()
            if self._worker is None:
                self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")
            return self._worker.submit(work, *arguments, **settings)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SourcierError("this retriever is closed: open the index again")


class Stage(Service, ABC):
    """A retriever that has its hits from other retrievers. Closing it closes them, once what was submitted is done."""

    def __init__(self, below: Sequence[Any]) -> None:
        super().__init__()
        self._below = below

    def search(
        self,
        queries: Sequence[str],
        k: int = 10,
        documents: bool = False,
        *,
        where: Where | str | None = None,
    ) -> Hits:
        """The `k` best documents of each query, with the documents themselves if asked for, of those that pass."""
        self._refuse_closed()
        return self._answer(queries, k, documents, where)

    def submit(
        self,
        queries: Sequence[str],
        k: int = 10,
        documents: bool = False,
        *,
        where: Where | str | None = None,
    ) -> Future[Hits]:
        """The same, computed in a thread of the retriever's own, one call after the other."""
        return self._later(self._answer, queries, k, documents, where)

    def close(self) -> None:
        super().close()
        for one in self._below:
            one.close()

    @abstractmethod
    def _answer(self, queries: Sequence[str], k: int, documents: bool, where: Where | str | None) -> Hits:
        """What `search` gives, also for what was submitted before the end."""


def documents_of(hits: Hits, store: Any) -> list[list[Document]]:
    """The documents of all hits, from where they are kept."""
    if store is None:
        raise SourcierError("the index holds no documents: it was built from encodings alone")
    return [
        store.get([str(identifier) for identifier in row[:count]])
        for row, count in zip(hits.ids, hits.counts, strict=True)
    ]


def passages_of(hits: Hits, rankings: Sequence[Hits]) -> np.ndarray | None:
    """The best passages of documents, each from the first ranking that has one. [Q, K, 2]"""
    if all(one.passages is None for one in rankings):
        return None
    spans = np.full((*hits.ids.shape, 2), -1, dtype=np.int64)
    for row, ids in enumerate(hits.ids):
        known: dict[str, np.ndarray] = {}
        for one in reversed(rankings):
            if one.passages is not None:
                known |= {
                    identifier: span
                    for identifier, span in zip(one.ids[row], one.passages[row], strict=True)
                    if span[0] >= 0
                }
        for rank, identifier in enumerate(ids):
            spans[row, rank] = known.get(identifier, -1)
    return spans


def ranked(rows: Sequence[tuple[Sequence[str], np.ndarray]], k: int) -> Hits:
    """Hits from the candidates of each query and their scores; equal scores in the order of the candidates."""
    found = []
    for ids, scores in rows:
        order = np.argsort(-scores, kind="stable")[:k]
        found.append([(ids[place], float(scores[place])) for place in order])
    return Hits.from_rows(found)
