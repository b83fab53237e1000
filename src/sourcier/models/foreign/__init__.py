"""Models that other libraries wrote: each format is one file, which says whose a folder is and what is in it.

    st_modules, st_text            what all folders of sentence-transformers have: modules, prompts, lengths
    st_dense, st_sparse,           its SentenceTransformer, SparseEncoder, and MultiVectorEncoder, which holds
    st_multi_vector                PyLate's folders too
    stanford                       ColBERT as Stanford's library writes it
    neural_cherche                 SPLADE, SparseEmbed and ColBERT of neural-cherche
    st_writing                     the way back: the files by which sentence-transformers opens a folder of ours

A folder is read into a `Foreign`: family, settings, backbone and heads. What cannot be said in our settings is an
error that names it: never other vectors in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sourcier.models.foreign import neural_cherche, st_dense, st_multi_vector, st_sparse, stanford
from sourcier.models.foreign.found import Foreign

_FORMATS = (st_dense, st_sparse, st_multi_vector, neural_cherche, stanford)


@dataclass(frozen=True)
class Finding:
    """A folder of another library: the family of its model, and how to read it."""

    family: str
    read: Callable[[], Foreign]


def find(folder: Path, wanted: str | None = None) -> Finding | None:
    """What another library left in a folder; None where it is none of those that are known here.

    `wanted` is the family that the user asks for, where a folder may be read as several.
    """
    for form in _FORMATS:
        family = form.family_of(folder, wanted)
        if family is not None:
            return Finding(family, lambda form=form, family=family: form.read(folder, family))  # type: ignore[misc]
    return None
