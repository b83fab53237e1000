"""N processes = 1 process, tried with a user's own base model, settings and rows before a long run.

    verdict = verify(config, lambda: sourcier.ColBERT.from_base(base), examples)  # in each of the processes

Each process first takes some optimizer steps alone on a small global batch, before there is a process group. Then all
take the same steps together, each with its own rows of the batch. What differs by more than rounding is named.

Dropout is off, since ranks draw numbers of their own, and all is computed in float64: what is left is rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from sourcier.data.examples import Example, Examples
from sourcier.data.sampling import BatchSampler
from sourcier.models.encoder import SearchModel
from sourcier.train import adapters
from sourcier.train.batches import check_examples
from sourcier.train.processes import prepare, start
from sourcier.train.schedule import adamw
from sourcier.train.settings import Settings
from sourcier.train.sharding import whole
from sourcier.train.step import Batch, Collator, TrainingStep
from sourcier.types import SourcierError

Dtype = Literal["float64", "float32"]

#: Largest difference of losses and gradients, as a fraction of the loss and of the largest gradient.
TOLERANCE: dict[Dtype, float] = {"float64": 1e-6, "float32": 1e-3}

#: The same for weights, as a fraction of the way they went: AdamW makes a step of a gradient that is rounding alone.
WEIGHT_TOLERANCE = 1e-3

STEPS = 3

#: Of so many rows the batch is drawn, so that a large source need not be sorted.
ROWS = 1000


@dataclass(frozen=True)
class Course:
    """What some steps on the same batch came to."""

    loss: float  # of the first step
    gradients: Mapping[str, Tensor]  # of the first step
    weights: Mapping[str, Tensor]  # after the last one
    way: float  # how far the weight went that went farthest


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """By how much one course differs from another, at most."""

    loss: float
    gradient: float
    largest: float  # gradient
    weight: float
    way: float
    tolerance: float
    different: str | None  # the first of what differs by more than rounding

    @property
    def nothing(self) -> str | None:
        """Why it says nothing, where it does not."""
        return "all gradients are zero" if self.largest == 0.0 else None


@dataclass(frozen=True)
class Verdict:
    """What a comparison on every process says."""

    processes: int
    rows: int
    dtype: Dtype
    worst: Comparison

    @property
    def holds(self) -> bool:
        return self.processes > 1 and self.worst.nothing is None and self.worst.different is None

    def __str__(self) -> str:
        if self.processes == 1:
            return "nothing compared: there is 1 process"
        if self.worst.nothing:
            return f"nothing compared: {self.worst.nothing}"
        found = self.worst
        weights = (
            f", weights after {STEPS} steps by {found.weight:.0e} (they moved by {found.way:.0e})"
            if self.dtype == "float64"
            else ""
        )
        outcome = "equal" if found.different is None else f"NOT EQUAL, first in {found.different}"
        return (
            f"{self.processes} processes {'=' if found.different is None else '≠'} 1 on {self.rows} rows in "
            f"{self.dtype}: loss differs by {found.loss:.0e}, gradients by {found.gradient:.0e} (largest "
            f"{found.largest:.2g}){weights}: {outcome}"
        )


def verify(
    config: Settings,
    build: Callable[[], SearchModel],
    examples: Examples,
    *,
    dtype: Dtype = "float64",
) -> Verdict:
    """To be called by each of the processes that a launcher started, before any of them has joined the others.

    `build` makes the model, the same one each time.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    check_examples(examples, negatives=config.negatives, scores=config.step.needs_scores)
    shares = _shares(examples, world, seed=config.seed)
    rows = [example for share in shares for example in share]
    trial = _Trial(config, build, examples, dtype)

    alone = trial.alone(rows)
    accelerator = start(
        precision="fp32", timeout=config.timeout, sharded=config.sharded
    )  # that is: no autocast
    model = trial.model().to(accelerator.device)
    optimizer = trial.optimizer(model)
    step, optimizer = prepare(accelerator, trial.step(model), optimizer)

    def update() -> None:
        if config.clip:
            accelerator.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad()

    together = follow(step, model, trial.batch(model, shares[rank]), update, first=trial.first)
    found = compare(alone, together, dtype=dtype)
    everywhere: list[Comparison] = gather_object([found])
    return Verdict(accelerator.num_processes, len(rows), dtype, _worst(everywhere))


def follow(
    step: nn.Module, model: nn.Module, batch: Batch, update: Callable[[], None], *, first: int = 0
) -> Course:
    """Takes `STEPS` steps on one batch, numbered from `first`; `update` changes the weights and forgets gradients.

    `model` is what `step` trains. Under sharding all processes take part in every line of this.
    """
    before = _weights(model)
    gradients: dict[str, Tensor] = {}
    for number in range(STEPS):
        output = step(batch, first + number)
        output.loss.backward()
        if number == 0:
            loss, gradients = float(output.metrics["loss"]), _gradients(model)
        update()
    after = _weights(model)
    return Course(loss, gradients, after, _largest(after[name] - before[name] for name in after))


def compare(one: Course, many: Course, *, dtype: Dtype = "float64") -> Comparison:
    """How far `many` is from `one`."""
    tolerance = TOLERANCE[dtype]
    largest = _largest(one.gradients.values())
    gradients = {name: _largest([value - many.gradients[name]]) for name, value in one.gradients.items()}
    # In float32 rounding takes AdamW anywhere where a gradient is rounding alone.
    weights = {
        name: _largest([value - many.weights[name]])
        for name, value in one.weights.items()
        if dtype == "float64"
    }
    loss = abs(one.loss - many.loss)
    limit = tolerance * max(1.0, abs(one.loss))
    # Each said as "not within", which a NaN is not either.
    wrong = [f"the loss ({one.loss:.6g} and {many.loss:.6g})"] if not loss <= limit else []
    wrong += [f"the gradient of '{n}'" for n, value in gradients.items() if not value <= tolerance * largest]
    wrong += [f"'{n}'" for n, value in weights.items() if not value <= WEIGHT_TOLERANCE * one.way]
    return Comparison(
        loss=loss,
        gradient=max(gradients.values(), default=0.0),
        largest=largest,
        weight=max(weights.values(), default=0.0),
        way=one.way,
        tolerance=tolerance,
        different=wrong[0] if wrong else None,
    )


@dataclass(frozen=True)
class _Trial:
    """What both courses have in common."""

    config: Settings
    build: Callable[[], SearchModel]
    examples: Examples
    dtype: Dtype

    @property
    def first(self) -> int:
        """The number of the first step: behind the warm-up, so that regularisers count."""
        return self.config.step.sparsity_warmup

    def alone(self, rows: Sequence[Example]) -> Course:
        """What one process comes to with the whole batch."""
        model = self.model().to(_own_device())
        optimizer = self.optimizer(model)

        def update() -> None:
            if self.config.clip:
                nn.utils.clip_grad_norm_(model.parameters(), self.config.clip)
            optimizer.step()
            optimizer.zero_grad()

        return follow(self.step(model), model, self.batch(model, rows), update, first=self.first)

    def model(self) -> SearchModel:
        """The model as the run trains it, without dropout."""
        model = self.build().to(getattr(torch, self.dtype))
        adapters.adapt(model, self.config)
        model.set_dropout(0.0)
        if self.config.gradient_checkpointing:
            model.checkpoint_activations()
        return model.train()

    def optimizer(self, model: SearchModel) -> torch.optim.Optimizer:
        config = self.config
        return adamw(model, learning_rate=config.learning_rate, weight_decay=config.weight_decay)

    def step(self, model: SearchModel) -> TrainingStep:
        """The step of the run; chunks are small, so that the small batch makes several."""
        config = self.config.step
        return replace(config, chunk=config.chunk and min(config.chunk, 2)).build(model)

    def batch(self, model: SearchModel, rows: Sequence[Example]) -> Batch:
        collator = Collator(model, self.config.negatives, relevant=self.examples.relevant_to)
        return collator(rows).to(model.device)


def _shares(examples: Examples, world: int, *, seed: int) -> list[list[Example]]:
    """The rows of each process: a first batch as the run would draw it, of 2 or 3 rows a process, unequally shared."""
    drawn = Examples(examples.rows[:ROWS], name=examples.name)
    samplers = [
        BatchSampler(drawn, 2 * world + 1, seed=seed, rank=rank, world=world) for rank in range(world)
    ]
    if not len(samplers[0]):
        raise SourcierError(
            f"{examples.name}: no batch has a row for each of {world} processes: add examples"
        )
    return [[drawn[row] for row in next(iter(sampler))] for sampler in samplers]


def _own_device() -> torch.device:
    """Where this process will compute when it has joined the others."""
    if os.environ.get("ACCELERATE_USE_CPU", "false").lower() != "true":
        for kind in ("cuda", "xpu"):
            if getattr(torch, kind).is_available():
                return torch.device(kind, int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: _kept(value) for name, value in model.named_parameters() if value.requires_grad}


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                raise SourcierError(f"'{name}' gets no gradient: freeze it, or leave it out of the model")
            gradients[name] = _kept(parameter.grad)
    return gradients


def _kept(tensor: Tensor) -> Tensor:
    """A whole copy in ordinary memory, which an accelerator need not hold."""
    return whole(tensor.detach()).cpu().clone()


def _largest(tensors: object) -> float:
    """The largest absolute value in any of the tensors; NaN where there is one."""
    values = [tensor.abs().max() for tensor in tensors]  # type: ignore[attr-defined]
    return float(torch.stack(values).max()) if values else 0.0


def _worst(found: Sequence[Comparison]) -> Comparison:
    """Of the comparisons of all processes the one that says most against equality."""
    return max(found, key=lambda one: (one.different is not None, one.gradient, one.weight, one.loss))
