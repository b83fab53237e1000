"""Training steps of Sourcier, for `measure`: its collator and its step, as its trainer drives them."""

from measure import Task, measure, prepare, update

from sourcier.data.examples import Example
from sourcier.models import FAMILIES
from sourcier.train.step import Collator, TrainingStep

task = Task.read()
#: What makes a family's model do the work that its peer's does.
settings = {
    "dense": {},
    "splade": {},
    "colbert": {"query_expansion": 0, "skip_punctuation": False},
    "sparse_embed": {
        "query_terms": task.query_length, "document_terms": task.document_length, "dimension": 128
    },
}  # fmt: skip
sparse = task.family in ("splade", "sparse_embed")
model = FAMILIES[task.family].from_base(
    task.base,
    query_length=task.query_length,
    document_length=task.document_length,
    **settings[task.family],
)
optimizer = prepare(model, task)
config = TrainingStep.Config(
    loss="pairwise" if task.family == "sparse_embed" else "contrastive",
    chunk=task.chunk,
    flops_query=task.flops if sparse else 0.0,
    flops_document=task.flops if sparse else 0.0,
)
training_step = config.build(model)
collator = Collator(model, negatives=len(task.batches[0][0]) - 2)


def step(rows):
    batch = collator([Example(query, positive, tuple(negatives)) for query, positive, *negatives in rows])
    return update(model, training_step(batch).loss, optimizer)


measure("Sourcier", task, step)
