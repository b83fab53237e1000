"""The processes of a run: starting accelerate, and what one of them does for all."""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, broadcast_object_list
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from sourcier.train.sharding import autocast, plan_sharding, shard_on_cpu, sharding_plugin, shards
from sourcier.train.step import TrainingStep
from sourcier.types import SourcierError

T = TypeVar("T")
Precision = Literal["auto", "fp32", "bf16", "fp16"]


#: Numbers the runs of this process. All processes of a launcher begin the same runs, in the same order.
_runs = itertools.count(1)


class OtherFailed(SourcierError):
    """This process stops because another one did, which says itself what is wrong."""


class Member(Accelerator):
    """An accelerator that knows the number of the run it was started for."""

    def __init__(self, run: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.run = run


def start(
    *,
    precision: Precision,
    timeout: float,
    log_with: Sequence[str] = (),
    folder: str | Path | None = None,
    sharded: bool = False,
) -> Member:
    """Joins the processes that a launcher started, or stands alone where there was none.

    `timeout` in minutes bounds every wait for another process, which may have failed. `sharded`: each process keeps a
    part of what `prepare` is given.
    """
    run = next(_runs)  # before anything that can fail in one process alone
    for tracker in log_with:
        _check_tracker(tracker)
    precision = _resolve(precision)
    plugin = sharding_plugin(sharded)
    deadline = timedelta(minutes=timeout)
    _join_after_restart(deadline)
    try:
        accelerator = Member(
            run,
            fsdp_plugin=plugin,
            cpu=_several_on_cpu(),
            mixed_precision="no" if precision == "fp32" else precision,
            log_with=list(log_with) or None,
            project_dir=folder,
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=deadline),
                # One forward a step and no unused head: no graph has to be searched, no buffer copied.
                DistributedDataParallelKwargs(
                    broadcast_buffers=False, find_unused_parameters=False, gradient_as_bucket_view=True
                ),
            ],
        )
    except ValueError as error:
        raise SourcierError(f"accelerate cannot start with precision={precision}: {error}") from error
    _check_world(accelerator.num_processes)
    shard_on_cpu(accelerator, plugin)
    atexit.unregister(_end_group)
    atexit.register(_end_group)
    return accelerator


def _join_after_restart(deadline: timedelta) -> None:
    """Has processes that their launcher started once more meet under keys of their own in its store.

    PyTorch 2.13 takes the store of the attempt that failed, where a process may find the address of one that is gone.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("WORLD_SIZE", "1") == "1" or dist.is_initialized():
        return
    accelerator = None if _several_on_cpu() else torch.accelerator.current_accelerator()
    store, rank, world = next(iter(rendezvous("env://", timeout=deadline)))
    dist.init_process_group(
        "gloo" if accelerator is None else dist.get_default_backend_for_device(accelerator),
        store=dist.PrefixStore(f"attempt {attempt}", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        timeout=deadline,
    )


def prepare(
    accelerator: Accelerator, module: TrainingStep, optimizer: Optimizer
) -> tuple[nn.Module, AcceleratedOptimizer]:
    """The module as several processes train it together, and the optimizer to go with it."""
    if shards(accelerator):
        plan_sharding(accelerator, module.model)
    with warnings.catch_warnings():
        # Newer PyTorch has another name for the setting, which accelerate does not know yet.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        prepared: tuple[nn.Module, AcceleratedOptimizer] = accelerator.prepare(module, optimizer)
    if shards(accelerator):
        autocast(accelerator, prepared[0])
    return prepared


def on_main(accelerator: Accelerator, work: Callable[[], T]) -> T:
    """Has the main process do `work` while the others wait, and gives its result to all.

    If it fails there, it fails everywhere: nobody waits for a process that has given up.
    """
    result: T | None = None
    failure: Exception | None = None
    if accelerator.is_main_process:
        try:
            result = work()
        except Exception as error:
            failure = error
    outcome = [result, failure and (str(failure) or repr(failure))]
    broadcast_object_list(outcome)
    if failure is not None:
        raise failure
    if outcome[1] is not None:
        raise OtherFailed(f"the main process stopped: {outcome[1]}")
    return cast(T, outcome[0])


@contextmanager
def together(accelerator: Member) -> Iterator[None]:
    """Has what fails here in one process end all of them, each with the reason.

    A process that waits for one that is gone is told by the backend, in words of its own, or by its launcher, or at the
    latest when `timeout` is over; what it then looks for is what the other one left in the launcher's store.
    """
    try:
        yield
    except OtherFailed:
        raise
    except Exception as error:
        if accelerator.num_processes > 1:
            own, text = accelerator.process_index, str(error) or repr(error)
            failed, reason = _first_failure(accelerator.run, own, text)
            if failed != own:
                raise OtherFailed(f"process {failed} stopped: {reason}") from error
        raise


def leave(status: int = 0) -> NoReturn:
    """Ends a process that a launcher started, and its group where all went well, without taking the interpreter apart.

    DTensor caches its meshes, so that after sharding Gloo's threads outlive the group (see `_end_group`).
    """
    if status == 0:
        _end_group()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_group() -> None:
    """Ends the group of the processes, and with it Gloo's threads, while there is an interpreter.

    One that lets go of a tensor while the interpreter goes aborts the process, after all its work was done. A process
    that fails leaves its group alone: to end it may mean to wait for the others.
    """
    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


def _first_failure(run: int, process: int, reason: str) -> tuple[int, str]:
    """Which process failed first in a run and why; this one, unless another one has said so before."""
    key = f"sourcier/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{run}"
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        waiting = timedelta(seconds=10)
        store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=waiting)  # type: ignore[attr-defined]
        said = store.compare_set(key, "", json.dumps([process, reason]))
    except (KeyError, ValueError, RuntimeError):  # no store, or one that went with the first process
        return process, reason
    first, why = json.loads(said)
    return first, why


def _resolve(precision: Precision) -> Precision:
    """What `auto` means on this machine."""
    if precision != "auto":
        return precision
    has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "fp32"


def _several_on_cpu() -> bool:
    """Whether a launcher started several processes on a machine without GPUs.

    accelerate has to be told: by itself it lets each of them run as the only one.
    """
    has_gpu = torch.cuda.is_available() or torch.xpu.is_available()
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and not has_gpu


def _check_tracker(name: str) -> None:
    if name not in LOGGER_TYPE_TO_CLASS:
        known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
        raise SourcierError(f"log_with={name} is unknown: choose from {known}")
    if name not in map(str, get_available_trackers()):
        raise SourcierError(f"log_with={name} is not installed: pip install {name}")


def _check_world(processes: int) -> None:
    """Stops where fewer processes run than a launcher was asked for: each would train a model of its own."""
    asked = int(os.environ.get("WORLD_SIZE", processes))
    if asked != processes:
        raise SourcierError(f"{asked} processes were asked for, {processes} joined: start them with torchrun")
    # `accelerate launch --cpu --num_processes 2` starts one process. What gives it away is the address of a
    # main process, which it sets for several alone.
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    if by_accelerate and processes == 1 and "WORLD_SIZE" not in os.environ:
        raise SourcierError(
            "accelerate launch was asked for several processes and started one: "
            "on CPU use `torchrun --nproc_per_node N -m sourcier train …`"
        )
