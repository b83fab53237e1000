"""Starting processes on this machine that work together, where no launcher has started any."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sourcier.types import SourcierError

T = TypeVar("T")


def launched() -> bool:
    """Whether this process is one of several that a launcher started."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def in_processes(work: Callable[..., T], *arguments: Any, processes: int) -> T:
    """What `work(*arguments)` gives in the first of so many new processes, each of which calls it.

    They are started afresh: `work` is a function of a module, and a script that calls this needs its `__main__` guard.
    """
    configuration = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        max_restarts=0,
    )
    try:
        outcomes = elastic_launch(configuration, _work)(work, arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise SourcierError(f"process {rank} ended with exit status {failure.exitcode}") from error
    result, failed = outcomes[0]
    if failed is not None:
        raise SourcierError(failed)
    return cast(T, result)


def _work(work: Callable[..., T], arguments: tuple[Any, ...]) -> tuple[T | None, str | None]:
    """In a new process: the result, or the line of an error that the user can mend."""
    together = int(os.environ["LOCAL_WORLD_SIZE"])
    threads = max(1, (os.cpu_count() or 1) // together)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # for accelerate, which else says that it sets it
    torch.set_num_threads(threads)
    if torch.cuda.device_count() < together:
        os.environ["ACCELERATE_USE_CPU"] = "true"  # NCCL has one process a GPU
    try:
        result = work(*arguments)
    except SourcierError as error:
        return None, str(error)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return result, None
