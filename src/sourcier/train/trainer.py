"""The one training loop, over accelerate, for all families and any number of processes.

    config = Trainer.Config(output="runs/first", epochs=1)
    result = config.build(model, examples, dev).run()

Each process draws its own rows of every global batch, calls the module that DistributedDataParallel wraps,
and steps its own optimizer on the averaged gradient. The main process alone evaluates, writes and reports.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from torch import Tensor

from sourcier.config import to_dict, write_json, write_yaml
from sourcier.data.collections import Collection
from sourcier.data.examples import Examples
from sourcier.data.sampling import BatchSampler
from sourcier.models.encoder import SearchModel
from sourcier.train.batches import stream
from sourcier.train.checkpoint import RunFolder
from sourcier.train.processes import Precision, on_main, prepare, start
from sourcier.train.report import Averages, Report
from sourcier.train.schedule import LinearSchedule, adamw, set_learning_rate
from sourcier.train.step import Collator, TrainingStep
from sourcier.train.validation import Validation, take_part
from sourcier.types import SourcierError


def setting(default: Any, text: str) -> Any:
    """A field of a configuration with its line of help."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Standing:
    """The best of the evaluations so far, and how many have passed since."""

    best: float | None = None
    best_step: int = 0
    misses: int = 0

    def after(self, step: int, value: float | None) -> Standing:
        """The standing after an evaluation at `step`; without dev (None) the newest model is the best."""
        if value is None or self.best is None or value > self.best:
            return Standing(value, step, 0)
        return Standing(self.best, self.best_step, self.misses + 1)


@dataclass(frozen=True)
class TrainingResult:
    """What a run came to."""

    metric: str | None  # None where there was no dev
    best: float | None
    best_step: int  # 0 is the model as it came
    steps: int
    stopped_early: bool
    best_folder: Path
    last_folder: Path
    seconds: float


class LossGuard:
    """Stops a run whose loss is not a number.

    It looks at the loss of a step when the next one is under way, so that a GPU never waits for the question.
    """

    def __init__(self) -> None:
        self._unseen: tuple[int, list[int], Tensor] | None = None

    def watch(self, step: int, rows: list[int], loss: Tensor) -> None:
        """Checks the step before this one."""
        self.check()
        self._unseen = (step, rows, loss)

    def check(self) -> None:
        """Checks the last step that was watched."""
        if self._unseen is None:
            return
        (step, rows, loss), self._unseen = self._unseen, None
        if not math.isfinite(loss):
            named = ", ".join(map(str, rows))
            raise SourcierError(
                f"the loss is {float(loss)} at step {step} (rows {named} of the examples): "
                "lower learning_rate, set precision=fp32, or look at these rows"
            )


class Trainer:
    """One run: a model, its examples, and the settings under which the one learns from the others."""

    @dataclass(kw_only=True)
    class Config:
        output: str = field(metadata={"help": "folder of this run; it must be empty or missing"})
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
        gradient_checkpointing: bool = setting(False, "less memory for about a third more time")
        seed: int = setting(42, "decides the order of rows, dropout, and the part of dev that is used")
        eval_every: int | None = setting(None, "steps between evaluations; by default a quarter of the run")
        eval_queries: int = setting(200, "queries of dev that are used, at most")
        eval_documents: int | None = setting(
            1000, "documents they are searched in; none for the whole corpus"
        )
        metric: str = setting("nDCG@10", "measure on dev, as ir-measures writes it; higher is better")
        patience: int | None = setting(None, "stop after so many evaluations without a better one")
        log_every: int = setting(10, "steps between lines of metrics.jsonl")
        log_with: tuple[str, ...] = setting((), "trackers, such as tensorboard,wandb")
        progress: bool = setting(True, "show progress on standard error")
        workers: int = setting(0, "processes that prepare batches; 0 prepares them between steps")
        timeout: float = setting(30.0, "minutes that a process waits for another one before it gives up")
        step: TrainingStep.Config = field(default_factory=TrainingStep.Config)

        def __post_init__(self) -> None:
            for name in (
                "steps",
                "batch_size",
                "accumulation",
                "eval_every",
                "eval_queries",
                "patience",
                "log_every",
            ):
                self._require(name, at_least=1)
            for name in ("negatives", "weight_decay", "clip", "eval_documents", "workers"):
                self._require(name, at_least=0)
            for name in ("epochs", "learning_rate", "timeout"):
                if not 0 < getattr(self, name) < math.inf:
                    raise SourcierError(f"{name}={getattr(self, name)} must be above 0 and finite")
            if self.dropout is not None and not 0 <= self.dropout < 1:
                raise SourcierError(f"dropout={self.dropout} must be a probability, from 0 to below 1")
            if not 0 <= self.warmup < 1:
                raise SourcierError(f"warmup={self.warmup} must be a fraction of the run, from 0 to below 1")

        def _require(self, name: str, *, at_least: int) -> None:
            value = getattr(self, name)
            if value is not None and not value >= at_least:
                raise SourcierError(f"{name}={value} must be at least {at_least}")

        def build(self, model: SearchModel, examples: Examples, dev: Collection | None = None) -> Trainer:
            """A trainer of `model`, which is trained in place; without `dev` the last model is the best."""
            return Trainer(self, model, examples, dev)

    def __init__(
        self, config: Config, model: SearchModel, examples: Examples, dev: Collection | None = None
    ) -> None:
        self.config = config
        self.examples = examples
        self.dev = dev
        self.folder = RunFolder(config.output)
        self.accelerator = start(
            precision=config.precision,
            timeout=config.timeout,
            log_with=config.log_with,
            folder=self.folder.path,
        )
        self._sampler = self._make_sampler()
        batches = config.epochs * len(self._sampler)
        self.steps = config.steps or max(1, math.ceil(batches / config.accumulation))
        self._schedule = LinearSchedule(peak=config.learning_rate, steps=self.steps, warmup=config.warmup)
        self._batches = stream(
            examples, self._sampler, Collator(model, config.negatives), workers=config.workers
        )
        if config.dropout is not None:
            model.set_dropout(config.dropout)
        if config.gradient_checkpointing:
            model.checkpoint_activations()
        self.model = model.to(self.accelerator.device)
        optimizer = adamw(model, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
        self._step, self._optimizer = prepare(self.accelerator, config.step.build(self.model), optimizer)
        self._guard = LossGuard()
        self._standing = Standing()
        self._validation: Validation | None = None  # these two: on the main process, once the run has begun
        self._report: Report | None = None

    def run(self) -> TrainingResult:
        """Trains to the end, or until dev gets no better, and leaves `best` and `last` in the output folder."""
        started = time.perf_counter()
        with ExitStack() as closing:
            on_main(self.accelerator, lambda: self._open(closing))
            steps = self._train()
        result = TrainingResult(
            metric=self.config.metric if self.dev is not None else None,
            best=self._standing.best,
            best_step=self._standing.best_step,
            steps=steps,
            stopped_early=steps < self.steps,
            best_folder=self.folder.best,
            last_folder=self.folder.last,
            seconds=round(time.perf_counter() - started, 3),
        )
        on_main(self.accelerator, lambda: self._summarise(result))
        return result

    def _train(self) -> int:
        """Step after step; returns how many were made."""
        set_seed(self.config.seed, device_specific=True)  # so that ranks drop out different units
        self._step.train()
        self._checkpoint(0)
        eval_every = self.config.eval_every or math.ceil(self.steps / 4)
        for step in range(1, self.steps + 1):
            self._update(step)
            if step % eval_every == 0 or step == self.steps:
                self._checkpoint(step)
                if self.config.patience and self._standing.misses >= self.config.patience:
                    return step
        return self.steps

    def _update(self, step: int) -> None:
        """One step of the optimizer, over `accumulation` global batches."""
        rate = self._schedule(step - 1)
        set_learning_rate(self._optimizer, rate)
        rows: list[int] = []
        averages = Averages()
        for part in range(1, self.config.accumulation + 1):
            numbered = next(self._batches)
            with nullcontext() if part == self.config.accumulation else self.accelerator.no_sync(self._step):
                output = self._step(numbered.batch.to(self.accelerator.device), step - 1)
                self.accelerator.backward(output.loss / self.config.accumulation)
            rows += numbered.rows
            averages.add(output.metrics)
        if self.config.clip:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()

        metrics = averages.take()
        self._guard.watch(step, rows, metrics["loss"])
        if self._report:
            self._report.step(
                step,
                metrics,
                examples=len(rows) * self.accelerator.num_processes,
                epoch=step * self.config.accumulation / len(self._sampler),
                learning_rate=rate,
            )

    def _checkpoint(self, step: int) -> None:
        """Evaluates and saves the model on the main process; all take its word for how the run stands."""
        self._guard.check()
        self._standing = on_main(self.accelerator, lambda: self._evaluate_and_save(step))

    def _evaluate_and_save(self, step: int) -> Standing:
        assert self._report is not None
        with self._report.paused():
            value = self._validation(self.model) if self._validation else None
            standing = self._standing.after(step, value)
            self.model.save_pretrained(self.folder.last)
            if standing.best_step == step:
                self.model.save_pretrained(self.folder.best)
        if self._validation and value is not None:
            name, extent = self.config.metric, self._validation.part.extent
            text = (
                f"step {step}: dev {name} {value:.4f}, best {standing.best:.4f} at step {standing.best_step}"
            )
            self._report.evaluation(step, {f"dev/{name}": value}, f"{text} ({extent})")
        return standing

    def _make_sampler(self) -> BatchSampler:
        config, accelerator = self.config, self.accelerator
        sampler = BatchSampler(
            self.examples,
            config.batch_size,
            seed=config.seed,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
        )
        if len(sampler) == 0:
            found = f"{len(self.examples)} examples, {accelerator.num_processes} processes"
            raise SourcierError(f"{found}: no batch has a row for each process: add examples")
        return sampler

    def _open(self, closing: ExitStack) -> None:
        """What the main process needs before the first step: its folder, its part of dev, and its report."""
        config = self.config
        self.folder.create()
        write_yaml(self.folder.config, {"model": to_dict(self.model.config), "train": to_dict(config)})
        if self.dev is not None:
            part = take_part(
                self.dev, queries=config.eval_queries, documents=config.eval_documents, seed=config.seed
            )
            self._validation = Validation(part, config.metric)
        if config.log_with:
            simple = {
                key: value for key, value in to_dict(config).items() if isinstance(value, (int, float, str))
            }
            self.accelerator.init_trackers("sourcier", config=simple)
            for tracker in self.accelerator.trackers:
                closing.callback(tracker.finish)
        self._report = closing.enter_context(
            Report(
                self.folder.metrics,
                steps=self.steps,
                log_every=config.log_every,
                show=config.progress,
                tracker=self.accelerator if config.log_with else None,
            )
        )

    def _summarise(self, result: TrainingResult) -> None:
        write_json(
            self.folder.summary,
            asdict(result)
            | {
                "best_folder": self.folder.best.name,
                "last_folder": self.folder.last.name,
                "dev": self._validation.part.extent if self._validation else None,
                "family": self.model.family,
                "examples": len(self.examples),
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                "processes": self.accelerator.num_processes,
                "device": str(self.accelerator.device),
                "precision": self.accelerator.mixed_precision.replace("no", "fp32"),
            },
        )
