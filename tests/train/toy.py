"""A model without a network: each text is one letter, and its vector is a row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from sourcier.data.examples import Example, Examples
from sourcier.models.encoder import EncoderConfig
from sourcier.models.representations import DenseRepresentation
from sourcier.train.validation import Part

#: Of dev, where a test has its evaluations find what it wants.
NOTHING = Part(documents=[], queries={}, qrels={}, corpus_size=0)


class Table(nn.Module):
    family = "dense"
    weighs_terms = False
    default_temperature = 1.0
    config = EncoderConfig()

    def __init__(self, rows: int = 26, width: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.rows = nn.Parameter(torch.randn(rows, width, generator=generator, dtype=torch.float64))

    def tokenize(self, texts: Sequence[str], side: str) -> dict[str, Tensor]:
        return {"rows": torch.tensor([ord(text) - ord("a") for text in texts])}

    def forward(self, features: dict[str, Tensor], side: str) -> DenseRepresentation:
        return DenseRepresentation(self.rows[features["rows"]])

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        torch.save(self.rows.detach(), folder / "rows.pt")


def letters(count: int = 8, negatives: int = 0) -> Examples:
    """Each letter asks for the letter thirteen places further on; negatives are the places between."""
    return Examples(
        [
            Example(
                query=chr(97 + place),
                positive=chr(110 + place),
                negatives=tuple(chr(97 + (place + 1 + step) % 13) for step in range(negatives)),
            )
            for place in range(count)
        ]
    )
