"""The four families of search models; each is one file on a shared core (encoder, backbone, tokens, checkpoints)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sourcier.models.checkpoints import FAMILIES, load

__all__ = ["FAMILIES", "load"]


def __getattr__(name: str) -> Any:
    """`FAMILIES` and `load`, imported when first used: who needs the representations alone loads no transformers."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from sourcier.models import checkpoints

    return getattr(checkpoints, name)
