"""The processes of a run: starting accelerate, and what one of them does for all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, broadcast_object_list
from torch import nn
from torch.optim import Optimizer

from sourcier.types import SourcierError

T = TypeVar("T")
Precision = Literal["auto", "fp32", "bf16", "fp16"]


def start(
    *, precision: Precision, timeout: float, log_with: Sequence[str] = (), folder: str | Path | None = None
) -> Accelerator:
    """Joins the processes that a launcher started, or stands alone where there was none.

    `timeout` in minutes bounds every wait for another process, which may have failed.
    """
    for tracker in log_with:
        _check_tracker(tracker)
    precision = _resolve(precision)
    try:
        accelerator = Accelerator(
            cpu=_several_on_cpu(),
            mixed_precision="no" if precision == "fp32" else precision,
            log_with=list(log_with) or None,
            project_dir=folder,
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=timedelta(minutes=timeout)),
                # One forward a step and no unused head: no graph has to be searched, no buffer copied.
                DistributedDataParallelKwargs(
                    broadcast_buffers=False, find_unused_parameters=False, gradient_as_bucket_view=True
                ),
            ],
        )
    except ValueError as error:
        raise SourcierError(f"accelerate cannot start with precision={precision}: {error}") from error
    _check_world(accelerator.num_processes)
    return accelerator


def prepare(
    accelerator: Accelerator, module: nn.Module, optimizer: Optimizer
) -> tuple[nn.Module, AcceleratedOptimizer]:
    """The module as DistributedDataParallel where there are several processes, and the optimizer to go with it."""
    with warnings.catch_warnings():
        # Newer PyTorch has another name for the setting, which accelerate does not know yet.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        prepared: tuple[nn.Module, AcceleratedOptimizer] = accelerator.prepare(module, optimizer)
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
        raise SourcierError(f"the main process stopped: {outcome[1]}")
    return cast(T, outcome[0])


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
