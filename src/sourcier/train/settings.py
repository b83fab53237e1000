"""The settings of a training run, each checked when it is given."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sourcier.config import setting
from sourcier.effects import Idle, refuse_idle
from sourcier.models.encoder import SearchModel
from sourcier.ranges import check_ranges
from sourcier.train.processes import Precision
from sourcier.train.remining import Remining
from sourcier.train.step import TrainingStep
from sourcier.types import SourcierError

#: numpy takes seeds of 32 bits; what processes and resumed runs add to it has to fit too.
_SEEDS = 2**31
#: Two years: far beyond what anyone waits, and within what timers can count.
_MINUTES = 2**20


@dataclass(frozen=True)
class Situation:
    """What decides whether a setting does anything; None is what is not known yet."""

    settings: Settings
    model: SearchModel | None = None
    has_dev: bool | None = None

    @property
    def knows_no_terms(self) -> bool:
        return self.model is not None and not self.model.weighs_terms

    @property
    def looks_queries_up(self) -> bool:
        return self.model is not None and getattr(self.model.config, "document_only", False)


#: What does nothing, when and why. `epochs` is not in it: `steps` counts before it, as its help says.
_IDLE: tuple[Idle[Situation], ...] = (
    Idle(
        ["lora_alpha", "lora_targets"],
        lambda it: it.settings.lora_rank is None,
        "there are no adapters: give lora_rank, or leave it out",
    ),
    Idle(
        ["metric", "patience", "eval_queries", "eval_documents"],
        lambda it: it.has_dev is False,
        "there is no dev to evaluate on: name one, or leave it out",
    ),
    Idle(
        ["step.teacher_temperature"],
        lambda it: not it.settings.step.needs_scores,
        "the loss reads no teacher's scores: choose loss=kl or loss=margin_mse, or leave it out",
    ),
    Idle(
        ["step.flops_query", "step.flops_document", "step.l1_query", "step.l1_document"],
        lambda it: it.knows_no_terms,
        "a model of this family has no terms: leave it out",
    ),
    Idle(
        ["step.flops_query", "step.l1_query"],
        lambda it: it.looks_queries_up,
        "queries are not encoded: leave it out, or document_only",
    ),
    Idle(
        ["step.sparsity_warmup"],
        lambda it: not it.settings.step.penalised,
        "there is no FLOPS or L1 weight that could grow: give one, or leave it out",
    ),
    Idle(
        [f"remine.{item.name}" for item in fields(Remining.Config) if item.name != "every"],
        lambda it: it.settings.remine.every is None,
        "nothing is mined anew: give remine.every, or leave it out",
    ),
    Idle(
        ["remine.teacher"],
        lambda it: not it.settings.step.needs_scores,
        "the loss reads no teacher's scores: choose loss=kl or loss=margin_mse, or leave it out",
    ),
)


def check_effects(
    settings: Settings, model: SearchModel | None = None, *, has_dev: bool | None = None
) -> None:
    """Refuses a setting that was changed and would change nothing; None is what is not known yet."""
    refuse_idle(settings, _IDLE, Situation(settings, model, has_dev))


@dataclass(kw_only=True)
class Settings:
    """What a run is told; `Trainer.Config` adds how a trainer is made of it."""

    output: str = field(metadata={"help": "folder of this run; it must be empty or missing, unless --resume"})
    steps: int | None = setting(None, "optimizer steps; by default as many as `epochs` take", at_least=1)
    epochs: float = setting(1.0, "passes over the examples, where `steps` is not given", above=0)
    batch_size: int = setting(16, "rows of a batch, all processes together", at_least=1)
    accumulation: int = setting(1, "batches whose gradients are averaged into one optimizer step", at_least=1)
    negatives: int = setting(0, "hard negatives a row, the first ones of each example", at_least=0)
    learning_rate: float = setting(2e-5, "rate at the end of the warm-up", above=0)
    warmup: float = setting(0.1, "fraction of the steps over which the rate rises", at_least=0, below=1)
    weight_decay: float = setting(0.01, "weight decay of matrices", at_least=0)
    clip: float = setting(1.0, "largest norm of the gradient; 0 does not clip", at_least=0)
    precision: Precision = field(
        default="auto", metadata={"help": "auto is bf16 on GPUs that have it, else fp32"}
    )
    dropout: float | None = setting(
        None, "probability of every dropout; by default what the base has", at_least=0, below=1
    )
    lora_rank: int | None = setting(
        None, "train low-rank adapters of this rank in place of the backbone", at_least=1
    )
    lora_alpha: float = setting(16.0, "adapters count alpha / rank", above=0)
    lora_targets: tuple[str, ...] = setting((), "names of the layers to adapt; by default all linear ones")
    freeze_but_last: int | None = setting(
        None, "freeze the embeddings and all but the last N layers", at_least=0
    )
    gradient_checkpointing: bool = setting(False, "less memory for about a third more time")
    seed: int = setting(
        42, "decides the order of rows, dropout, and the part of dev that is used", at_least=0, at_most=_SEEDS
    )
    eval_every: int | None = setting(
        None, "steps between evaluations; by default a quarter of the run", at_least=1
    )
    save_every: int | None = setting(
        None, "steps between states to resume from, besides evaluations", at_least=1
    )
    eval_queries: int = setting(200, "queries of dev that are used, at most", at_least=1)
    eval_documents: int | None = setting(
        1000, "documents they are searched in; none for the whole corpus", at_least=0
    )
    metric: str = setting("nDCG@10", "measure on dev, as ir-measures writes it; higher is better")
    patience: int | None = setting(None, "stop after so many evaluations without a better one", at_least=1)
    log_every: int = setting(10, "steps between lines of metrics.jsonl", at_least=1)
    log_with: tuple[str, ...] = setting((), "trackers, such as tensorboard,wandb")
    progress: bool = setting(True, "show progress on standard error")
    workers: int = setting(0, "processes that prepare batches; 0 prepares them between steps", at_least=0)
    timeout: float = setting(
        30.0, "minutes that a process waits for another one before it gives up", above=0, at_most=_MINUTES
    )
    sharded: bool = setting(
        False,
        "each process keeps a part of weights, gradients and optimizer (FSDP2), for models too large for one",
    )
    step: TrainingStep.Config = field(default_factory=TrainingStep.Config)
    remine: Remining.Config = field(default_factory=Remining.Config)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.step.needs_negatives and self.negatives == 0:
            raise SourcierError(
                f"negatives=0: loss={self.step.loss} compares the positive with them: set 1 or more"
            )
        if self.batch_size < (least := self.step.least_rows(self.negatives)):
            negatives = ", or negatives=1 or more" if self.step.loss == "contrastive" else ""
            raise SourcierError(
                f"batch_size={self.batch_size}: loss={self.step.loss} compares each row with the others of its batch: "
                f"set batch_size={least} or more{negatives}"
            )
        if self.lora_rank is not None and self.freeze_but_last is not None:
            raise SourcierError(
                "lora_rank freezes the whole backbone: leave out freeze_but_last, or lora_rank"
            )
        if self.remine.every and self.step.needs_scores and not self.remine.teacher:
            raise SourcierError(
                f"loss={self.step.loss} learns from a teacher's scores: name one for new negatives (remine teacher)"
            )
