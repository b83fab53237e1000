"""Tiny bases of every kind, saved once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

from sourcier.models.checkpoints import FAMILIES
from sourcier.models.encoder import SearchModel


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random model of a kind."""
    root = tmp_path_factory.mktemp("bases")

    def folder(kind: str) -> Path:
        path = root / kind
        return path if path.exists() else tiny_model(kind, path)

    return folder


@pytest.fixture
def build(base: Callable[[str], Path]) -> Callable[..., SearchModel]:
    """A new model of a family on a kind, e.g. `build("splade", "bert", query_prompt="query: ")`."""

    def new(family: str, kind: str = "bert", **settings: Any) -> SearchModel:
        return FAMILIES[family].from_base(base(kind), **settings)

    return new
