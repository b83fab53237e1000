"""Sourcier: train, index, serve and evaluate neural search models on your own documents.

The public names are imported when they are first used: `import sourcier` loads neither torch nor faiss nor ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sourcier.data.collections import Collection, Corpus, Query, read_beir
    from sourcier.data.examples import Example, Examples, read_examples
    from sourcier.eval.evaluation import evaluate
    from sourcier.models.checkpoints import load
    from sourcier.models.colbert import ColBERT
    from sourcier.models.dense import Dense
    from sourcier.models.sparse_embed import SparseEmbed
    from sourcier.models.splade import Splade
    from sourcier.retrieval.retriever import Retriever
    from sourcier.train.step import Collator, TrainingStep
    from sourcier.train.trainer import Trainer
    from sourcier.types import Document, Hits, SourcierError

__version__ = "0.1.0"

__all__ = [
    "ColBERT",
    "Collator",
    "Collection",
    "Corpus",
    "Dense",
    "Document",
    "Example",
    "Examples",
    "Hits",
    "Query",
    "Retriever",
    "SourcierError",
    "SparseEmbed",
    "Splade",
    "Trainer",
    "TrainingStep",
    "evaluate",
    "load",
    "read_beir",
    "read_examples",
]

_HOMES = {
    "sourcier.data.collections": ("Collection", "Corpus", "Query", "read_beir"),
    "sourcier.data.examples": ("Example", "Examples", "read_examples"),
    "sourcier.eval.evaluation": ("evaluate",),
    "sourcier.models.checkpoints": ("load",),
    "sourcier.models.colbert": ("ColBERT",),
    "sourcier.models.dense": ("Dense",),
    "sourcier.models.sparse_embed": ("SparseEmbed",),
    "sourcier.models.splade": ("Splade",),
    "sourcier.retrieval.retriever": ("Retriever",),
    "sourcier.train.step": ("Collator", "TrainingStep"),
    "sourcier.train.trainer": ("Trainer",),
    "sourcier.types": ("Document", "Hits", "SourcierError"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, from the module it lives in (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sourcier' has no attribute '{name}'")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
