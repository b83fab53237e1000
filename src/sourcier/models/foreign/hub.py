"""A model of another library that a hub id names: its settings stand in files that transformers does not fetch."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from transformers.utils.hub import cached_file

#: Files by which a repository shows that there is more to it than a Hugging Face model.
_MARKS = ("modules.json", "artifact.metadata", "metadata.json")
#: Copies of the weights for other frameworks.
_OTHER = ("*.onnx", "*.h5", "*.msgpack", "*.ot", "*.tflite", "onnx/*", "openvino/*", "coreml/*")


def local(base: str | Path) -> Path:
    """The folder of a base: its own, or the whole repository where the id of one of another library is given."""
    path = Path(base)
    if path.exists():
        return path
    try:
        if any(_has(str(base), name) for name in _MARKS):
            return Path(snapshot_download(str(base), ignore_patterns=list(_OTHER)))
    except (OSError, ValueError):
        # No such repository, or none that can be reached: the loader of the model says so.
        return path
    return path


def _has(repository: str, name: str) -> bool:
    found = cached_file(
        repository,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found is not None
