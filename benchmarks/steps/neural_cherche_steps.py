"""Training steps of neural-cherche's SparseEmbed, for `measure`, in its own environment: its model, its own step.

Padding is to the longest text of a batch and no mask tokens are appended, which is faster than its defaults.
"""

from importlib.metadata import version

from measure import Task, measure, prepare
from neural_cherche import models, train

task = Task.read()
model = models.SparseEmbed(
    model_name_or_path=task.base,
    embedding_size=128,
    max_length_query=task.query_length,
    max_length_document=task.document_length,
    padding=True,
    n_mask_tokens=0,
    device="cpu",
)
optimizer = prepare(model, task)


def step(rows):
    queries, positives, negatives = (list(column) for column in zip(*rows, strict=True))
    found = train.train_sparse_embed(
        model=model,
        optimizer=optimizer,
        anchor=queries,
        positive=positives,
        negative=negatives,
        flops_loss_weight=task.flops,
    )
    return float(found["loss"].detach())


measure(f"neural-cherche {version('neural-cherche')}", task, step)
