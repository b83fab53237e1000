"""The one training loop, over accelerate, for all families and any number of processes.

    config = Trainer.Config(output="runs/first", epochs=1)
    result = config.build(model, examples, dev).run()

Each process draws its own rows of every global batch, calls the module that DistributedDataParallel wraps,
and steps its own optimizer on the averaged gradient. The main process alone evaluates, writes and reports.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from accelerate.utils import gather_object, set_seed

from sourcier.config import to_dict, write_json, write_yaml
from sourcier.data.collections import Collection
from sourcier.data.examples import Examples
from sourcier.data.sampling import BatchSampler
from sourcier.models.encoder import SearchModel
from sourcier.train import adapters
from sourcier.train.batches import BatchStream, SameExamples, check_examples, warn_of_unread_scores
from sourcier.train.checkpoint import RunFolder
from sourcier.train.guard import Guard
from sourcier.train.health import HealthRule
from sourcier.train.processes import on_main, prepare, start, together
from sourcier.train.record import Origin, RunRecord, check_alike
from sourcier.train.remining import Remining
from sourcier.train.report import Averages, Report, is_logged
from sourcier.train.schedule import LinearSchedule, adamw, set_learning_rate
from sourcier.train.settings import Settings, check_effects
from sourcier.train.sharding import PlainModel, shards
from sourcier.train.standing import Standing, TrainingResult
from sourcier.train.state import RunState, Snapshot, Stateful
from sourcier.train.step import Collator
from sourcier.train.validation import SamePart, Validation, take_part
from sourcier.types import SourcierError

logger = logging.getLogger(__name__)


class Trainer:
    """One run: a model, its examples, and the settings under which the one learns from the others."""

    @dataclass(kw_only=True)
    class Config(Settings):
        def build(
            self,
            model: SearchModel,
            examples: Examples,
            dev: Collection | None = None,
            origin: Origin | None = None,
        ) -> Trainer:
            """A trainer of `model`, which is trained in place; without `dev` the last model is the best.

            `origin` is kept in the run's config.yaml, so that the run can be repeated from it.
            """
            return Trainer(self, model, examples, dev, origin)

    def __init__(
        self,
        config: Config,
        model: SearchModel,
        examples: Examples,
        dev: Collection | None = None,
        origin: Origin | None = None,
    ) -> None:
        check_effects(config, model, has_dev=dev is not None)
        self.config = config
        self.examples = examples
        self.dev = dev
        self.folder = RunFolder(config.output)
        self.accelerator = start(
            precision=config.precision,
            timeout=config.timeout,
            log_with=config.log_with,
            folder=self.folder.path,
            sharded=config.sharded,
        )
        check_examples(examples, negatives=config.negatives, scores=config.step.needs_scores)
        if self.accelerator.is_main_process:
            warn_of_unread_scores(examples, loss=config.step.loss, read=config.step.needs_scores)
        self._sampler = self._make_sampler()
        batches = config.epochs * len(self._sampler)
        self.steps = config.steps or max(1, math.ceil(batches / config.accumulation))
        self._eval_every = config.eval_every or math.ceil(self.steps / 4)
        self._schedule = LinearSchedule(peak=config.learning_rate, steps=self.steps, warmup=config.warmup)
        collator = Collator(model, config.negatives, relevant=examples.relevant_to)
        self._remining = self._make_remining() if config.remine.every else None
        trained = self._remining.examples if self._remining else examples
        self._batches = BatchStream(trained, self._sampler, collator, workers=config.workers)
        self._record = RunRecord.of(origin or Origin(), model, config)
        self._frozen = adapters.adapt(model, config)
        if config.dropout is not None:
            model.set_dropout(config.dropout)
        if config.gradient_checkpointing:
            model.checkpoint_activations()
        self.model = model.to(self.accelerator.device)
        self._plain = PlainModel(self.accelerator, self.model)
        optimizer = adamw(model, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
        self._step, self._optimizer = prepare(self.accelerator, config.step.build(self.model), optimizer)
        #: What remembers something, by the name that it has in the state of a run.
        self._parts: dict[str, Stateful] = {"batches": self._batches}
        if self._remining:
            self._parts["remining"] = self._remining
        module = self.accelerator.unwrap_model(self._step)
        self._state = RunState(self.accelerator, module, self._optimizer, self._parts)
        self._guard = Guard(self.folder.states)
        self._standing = Standing()
        self._earlier = 0.0  # seconds of training in earlier sittings
        self._started = time.perf_counter()
        self._validation: Validation | None = None  # these two: on the main process, once the run has begun
        self._report: Report | None = None

    def run(self, *, resume: bool = False) -> TrainingResult:
        """Trains to the end, or until dev gets no better, and leaves `best` and `last` in the output folder.

        `resume` goes on with the run in that folder from its last state; where there is none, from the beginning.
        """
        self._started = time.perf_counter()
        with together(self.accelerator), ExitStack() as closing:
            if not shards(self.accelerator):  # else nobody holds a weight that could be given back
                closing.callback(adapters.release, self.model, self._frozen)
            if self._remining:
                closing.callback(self._remining.close)
            same_examples = self._check_alike()
            finished = on_main(self.accelerator, lambda: self._open(closing, resume, same_examples))
            if finished is not None:
                return finished
            steps = self._train()
            result = TrainingResult(
                metric=self.config.metric if self.dev is not None else None,
                best=self._standing.best,
                best_step=self._standing.best_step,
                steps=steps,
                stopped_early=steps < self.steps,
                best_folder=self.folder.best,
                last_folder=self.folder.last,
                seconds=round(self._seconds(), 3),
            )
            on_main(self.accelerator, lambda: self._summarise(result))
        return result

    def _train(self) -> int:
        """Step after step; returns how many were made."""
        step = self._begin()
        while step < self.steps and not self._gets_no_better():
            step += 1
            if self._remining:
                self._remine(step, self._remining)
            self._update(step)
            if step % self._eval_every == 0 or step == self.steps:
                self._save(step, evaluate=True)
            elif self.config.save_every and step % self.config.save_every == 0:
                self._save(step, evaluate=False)
        return step

    def _begin(self) -> int:
        """Brings all processes to where the run was; the step at which that is."""
        set_seed(self.config.seed, device_specific=True)  # so that ranks drop out different units
        self._step.train()
        folder = on_main(self.accelerator, self.folder.state)
        if folder is None:
            self._save(0, evaluate=True)
            return 0
        values = self._state.read(folder)
        self._standing, self._earlier = Standing(**values["standing"]), values["seconds"]
        self._guard.saved = values["step"]
        if values["processes"] != self.accelerator.num_processes:
            set_seed(self.config.seed + values["step"], device_specific=True)
            if self.accelerator.is_main_process:
                logger.warning(
                    "the run began with %d processes and goes on with %d: dropout draws other numbers",
                    values["processes"], self.accelerator.num_processes,
                )  # fmt: skip
        return int(values["step"])

    def _remine(self, step: int, remining: Remining) -> None:
        """Has negatives mined anew, and new ones come in, where that is due before this step."""
        if remining.before_step(
            step, lambda folder: adapters.merged_copy(self.model).save_pretrained(folder)
        ):
            self._batches.refresh()
            if self._report:
                text = f"step {step - 1}: negatives mined with the model of step {remining.in_force} come in"
                self._report.evaluation(step - 1, {"negatives_of_step": float(remining.in_force or 0)}, text)

    def _update(self, step: int) -> None:
        """One step of the optimizer, over `accumulation` global batches."""
        rate = self._schedule(step - 1)
        set_learning_rate(self._optimizer, rate)
        rows: list[int] = []
        averages = Averages()
        examine = is_logged(step, steps=self.steps, every=self.config.log_every)
        for part in range(1, self.config.accumulation + 1):
            numbered = next(self._batches)
            with nullcontext() if part == self.config.accumulation else self.accelerator.no_sync(self._step):
                output = self._step(numbered.batch.to(self.accelerator.device), step - 1, examine=examine)
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

    def _save(self, step: int, *, evaluate: bool) -> None:
        """Saves the state of the run, after an evaluation or between two; all take the main process' word for it."""
        self._guard.check_loss()
        self._guard.check_weights(step, self.model)
        model = self._plain() if evaluate else None
        if model is not None:
            self._standing = on_main(self.accelerator, lambda: self._evaluate(step, model))
        snapshot = self._state.collect()  # after the evaluation, which may draw random numbers
        on_main(self.accelerator, lambda: self._write_state(step, snapshot, model))
        self._guard.saved = step

    def _write_state(self, step: int, snapshot: Snapshot, model: SearchModel | None) -> None:
        """Writes what it takes to go on, and the model where it was evaluated."""
        assert self._report is not None
        with self._report.paused(), self.folder.new_state(step) as folder:
            if model is not None:
                plain = adapters.merged_copy(model)
                for name in ("last", "best") if self._standing.best_step == step else ("last",):
                    plain.save_pretrained(folder / name)
            values = {"step": step, "standing": asdict(self._standing), "seconds": self._seconds()}
            self._state.write(folder, snapshot, **values)

    def _evaluate(self, step: int, model: SearchModel) -> Standing:
        """The standing after an evaluation."""
        assert self._report is not None
        with self._report.paused():
            value = self._validation(model) if self._validation else None
        standing = self._standing.after(step, value)
        if self._validation and value is not None:
            name, extent = self.config.metric, self._validation.part.extent
            text = (
                f"step {step}: dev {name} {value:.4f}, best {standing.best:.4f} at step {standing.best_step}"
            )
            self._report.evaluation(step, {f"dev/{name}": value}, f"{text} ({extent})")
        return standing

    def _gets_no_better(self) -> bool:
        return self.config.patience is not None and self._standing.misses >= self.config.patience

    def _seconds(self) -> float:
        """How long the run has taken, without the time between a stop and its resumption."""
        return self._earlier + time.perf_counter() - self._started

    def _make_remining(self) -> Remining:
        config = self.config
        if shards(self.accelerator):
            raise SourcierError(
                "remine: the model is sharded, so no process has a copy to mine with: leave out one"
            )
        return Remining(
            config.remine,
            self.folder.negatives,
            self.examples,
            negatives=config.negatives,
            seed=config.seed,
            steps=self.steps,
            timeout=0.9 * config.timeout,  # before the other processes give up the main one
            on_main=partial(on_main, self.accelerator),
        )

    def _make_sampler(self) -> BatchSampler:
        config, accelerator = self.config, self.accelerator
        sampler = BatchSampler(
            self.examples,
            config.batch_size,
            seed=config.seed,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
            least=config.step.least_rows(config.negatives),
        )
        if len(sampler) == 0:
            found = f"{len(self.examples)} examples, {accelerator.num_processes} processes, loss={config.step.loss}"
            raise SourcierError(
                f"{found}: no batch has {sampler.least} rows, since rows of one query or positive never share one: "
                "add examples"
            )
        return sampler

    def _check_alike(self) -> SameExamples:
        """Refuses processes that do not all have the same settings and examples; gives what knows the latter."""
        same_examples = SameExamples(self.examples)
        records, digests = zip(*gather_object([(self._record, same_examples.digest)]), strict=True)
        on_main(self.accelerator, lambda: check_alike(records, digests))
        return same_examples

    def _open(self, closing: ExitStack, resume: bool, same_examples: SameExamples) -> TrainingResult | None:
        """What the main process needs before the first step: its folder, its part of dev, and its report.

        Gives the result of a run that is over already.
        """
        config = self.config
        if not (resume and self.folder.summary.is_file()):
            # Before the folder is taken: a mistake in what is named leaves none behind.
            self._validation = self._make_validation()
            if self._remining:
                self._remining.check()
        self._claim(resume)
        if self.folder.summary.is_file():
            return TrainingResult.read(self.folder.summary)
        self._parts["examples"] = same_examples
        self._parts["dev"] = SamePart(self._validation.part if self._validation else None)
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
                rule=self._health_rule(),
            )
        )
        self._parts["report"] = self._report
        return None

    def _make_validation(self) -> Validation | None:
        if self.dev is None:
            return None
        config = self.config
        part = take_part(
            self.dev, queries=config.eval_queries, documents=config.eval_documents, seed=config.seed
        )
        return Validation(part, config.metric)

    def _health_rule(self) -> HealthRule:
        return HealthRule(
            family=self.model.family,
            loss=self.config.step.loss,
            temperature=self.accelerator.unwrap_model(self._step).objective.temperature,
            learning_rate=self.config.learning_rate,
            warmup_steps=self._schedule.rising,
        )

    def _claim(self, resume: bool) -> None:
        """Takes the output folder: a new one, or that of this very run, or of one that never began."""
        config = self.folder.config
        begun = resume and config.is_file() and self.folder.begun
        if begun:
            RunRecord.read(config).check_same(self._record, where=config)
        if resume:
            self.folder.reopen()
        else:
            self.folder.create()
            self.folder.lock()
        if not begun:
            write_yaml(config, self._record)

    def _summarise(self, result: TrainingResult) -> None:
        parameters = list(self.model.parameters())
        values: dict[str, Any] = result.record() | {
            "dev": self._validation.part.extent if self._validation else None,
            "family": self.model.family,
            "examples": len(self.examples),
            "parameters": sum(parameter.numel() for parameter in parameters),
            "trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
            "processes": self.accelerator.num_processes,
            "device": str(self.accelerator.device),
            "precision": self.accelerator.mixed_precision.replace("no", "fp32"),
        }
        write_json(self.folder.summary, values)
        self.folder.finish()
        if self._remining:
            self._remining.finish()
