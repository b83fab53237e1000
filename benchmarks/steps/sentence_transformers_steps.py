"""Training steps of sentence-transformers, for `measure`: its model, its preprocessing and its loss in a plain loop.

The loop does what its trainer does on one device (fused AdamW, gradients clipped at 1), and nothing around it.
"""

from functools import partial
from importlib.metadata import version

from measure import Task, measure, prepare, update
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss


def splade_loss(model):
    ranking = SparseMultipleNegativesRankingLoss(model)
    return SpladeLoss(
        model, ranking, document_regularizer_weight=task.flops, query_regularizer_weight=task.flops
    )


task = Task.read()
kind, make_loss = {
    "dense": (SentenceTransformer, MultipleNegativesRankingLoss),
    "splade": (SparseEncoder, splade_loss),
    "colbert": (MultiVectorEncoder, MultiVectorMultipleNegativesRankingLoss),
}[task.family]
model = kind(task.base, device="cpu", local_files_only=True)
optimizer = prepare(model, task)
loss = make_loss(model)
query = partial(model.preprocess, task="query", max_length=task.query_length)
document = partial(model.preprocess, task="document", max_length=task.document_length)


def step(rows):
    queries, *columns = (list(column) for column in zip(*rows, strict=True))
    features = [query(queries), *(document(column) for column in columns)]
    found = loss(features, None)
    return update(model, sum(found.values()) if isinstance(found, dict) else found, optimizer)


measure(f"sentence-transformers {version('sentence-transformers')}", task, step)
