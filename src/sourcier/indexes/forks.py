"""What keeps faiss alive in a forked child.

The threads of OpenMP do not come along into a child, and a child that asks for them waits for ever. Children that are
forked (as multiprocessing does it on Linux before Python 3.14) therefore compute on one thread; those of the start
methods `spawn` and `forkserver` are not concerned.
"""

from __future__ import annotations

import os
from functools import cache

import faiss


@cache
def survive_forks() -> None:
    """Have faiss compute on one thread in processes that are forked from now on."""
    os.register_at_fork(after_in_child=_in_child)


@cache
def _state() -> dict[str, bool]:
    return {"forked": False}


def _in_child() -> None:
    _state()["forked"] = True
    faiss.omp_set_num_threads(1)


def threads(wanted: int) -> int:
    """How many of the threads that were asked for this process can have."""
    return 1 if _state()["forked"] else wanted
