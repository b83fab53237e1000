"""The settings of a training run, each checked when it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sourcier.config import setting
from sourcier.train.processes import Precision
from sourcier.train.remining import Remining
from sourcier.train.step import TrainingStep
from sourcier.types import SourcierError

_AT_LEAST = {
    1: ("steps", "batch_size", "accumulation", "eval_every", "save_every", "eval_queries", "patience",
        "log_every", "lora_rank"),
    0: ("negatives", "weight_decay", "clip", "eval_documents", "workers", "freeze_but_last"),
}  # fmt: skip


@dataclass(kw_only=True)
class Settings:
    """What a run is told; `Trainer.Config` adds how a trainer is made of it."""

    output: str = field(metadata={"help": "folder of this run; it must be empty or missing, unless --resume"})
    steps: int | None = setting(None, "optimizer steps; by default as many as `epochs` take")
    epochs: float = setting(1.0, "passes over the examples, where `steps` is not given")
    batch_size: int = setting(16, "rows of a batch, all processes together")
    accumulation: int = setting(1, "batches whose gradients are averaged into one optimizer step")
    negatives: int = setting(0, "hard negatives a row, the first ones of each example")
    learning_rate: float = setting(2e-5, "rate at the end of the warm-up")
    warmup: float = setting(0.1, "fraction of the steps over which the rate rises")
    weight_decay: float = setting(0.01, "weight decay of matrices")
    clip: float = setting(1.0, "largest norm of the gradient; 0 does not clip")
    precision: Precision = field(
        default="auto", metadata={"help": "auto is bf16 on GPUs that have it, else fp32"}
    )
    dropout: float | None = setting(None, "probability of every dropout; by default what the base has")
    lora_rank: int | None = setting(None, "train low-rank adapters of this rank in place of the backbone")
    lora_alpha: float = setting(16.0, "adapters count alpha / rank")
    lora_targets: tuple[str, ...] = setting((), "names of the layers to adapt; by default all linear ones")
    freeze_but_last: int | None = setting(None, "freeze the embeddings and all but the last N layers")
    gradient_checkpointing: bool = setting(False, "less memory for about a third more time")
    seed: int = setting(42, "decides the order of rows, dropout, and the part of dev that is used")
    eval_every: int | None = setting(None, "steps between evaluations; by default a quarter of the run")
    save_every: int | None = setting(None, "steps between states to resume from, besides evaluations")
    eval_queries: int = setting(200, "queries of dev that are used, at most")
    eval_documents: int | None = setting(1000, "documents they are searched in; none for the whole corpus")
    metric: str = setting("nDCG@10", "measure on dev, as ir-measures writes it; higher is better")
    patience: int | None = setting(None, "stop after so many evaluations without a better one")
    log_every: int = setting(10, "steps between lines of metrics.jsonl")
    log_with: tuple[str, ...] = setting((), "trackers, such as tensorboard,wandb")
    progress: bool = setting(True, "show progress on standard error")
    workers: int = setting(0, "processes that prepare batches; 0 prepares them between steps")
    timeout: float = setting(30.0, "minutes that a process waits for another one before it gives up")
    sharded: bool = setting(
        False,
        "each process keeps a part of weights, gradients and optimizer (FSDP2), for models too large for one",
    )
    step: TrainingStep.Config = field(default_factory=TrainingStep.Config)
    remine: Remining.Config = field(default_factory=Remining.Config)

    def __post_init__(self) -> None:
        for least, names in _AT_LEAST.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not value >= least:
                    raise SourcierError(f"{name}={value} must be at least {least}")
        for name in ("epochs", "learning_rate", "timeout", "lora_alpha"):
            if not 0 < getattr(self, name) < math.inf:
                raise SourcierError(f"{name}={getattr(self, name)} must be above 0 and finite")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise SourcierError(f"dropout={self.dropout} must be a probability, from 0 to below 1")
        if not 0 <= self.warmup < 1:
            raise SourcierError(f"warmup={self.warmup} must be a fraction of the run, from 0 to below 1")
        if self.step.needs_negatives and self.negatives == 0:
            raise SourcierError(
                f"negatives=0: loss={self.step.loss} compares the positive with them: set 1 or more"
            )
        if self.lora_rank is not None and self.freeze_but_last is not None:
            raise SourcierError(
                "lora_rank freezes the whole backbone: leave out freeze_but_last, or lora_rank"
            )
        if self.remine.every and self.step.needs_scores and not self.remine.teacher:
            raise SourcierError(
                f"loss={self.step.loss} learns from a teacher's scores: name one for new negatives (remine teacher)"
            )
