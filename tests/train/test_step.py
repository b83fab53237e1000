"""The training step on a model whose vectors are a table: losses and gradients against arithmetic."""

import math

import pytest
import torch
from torch import Tensor, nn

from sourcier.data.examples import Example
from sourcier.models.representations import DenseRepresentation, Representation, TermWeightRepresentation
from sourcier.train.step import Batch, Collator, TrainingStep, text_key
from sourcier.types import SourcierError


class Table(nn.Module):
    """The encoder of a vocabulary of whole texts: "a" is row 0, "b" row 1, …"""

    default_temperature = 1 / 20

    def __init__(self, rows: Tensor, kind: type[Representation] = DenseRepresentation) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)
        self.kind = kind

    def tokenize(self, texts: list[str], side: str) -> dict[str, Tensor]:
        return {"rows": torch.tensor([ord(text) - ord("a") for text in texts])}

    def forward(self, features: dict[str, Tensor], side: str) -> Representation:
        return self.kind(self.rows[features["rows"]])


def batch_of(model: Table, *rows: tuple[str, str, tuple[str, ...]]) -> Batch:
    examples = [
        Example(query=query, positive=positive, negatives=negatives) for query, positive, negatives in rows
    ]
    return Collator(model, negatives=len(rows[0][2]))(examples)


@pytest.mark.parametrize("negatives", [0, 1, 2])
def test_one_hot_rows_with_any_number_of_negatives(negatives: int) -> None:
    """Four queries on their own one-hot positives: ln(1 + (N - 1) e^-20). A label on a negative gives 20."""
    model = Table(torch.eye(12, dtype=torch.float64))
    others = "efghijkl"
    rows = [(text, text, tuple(others[2 * i : 2 * i + negatives])) for i, text in enumerate("abcd")]
    output = TrainingStep.Config().build(model)(batch_of(model, *rows))
    candidates = 4 * (1 + negatives)
    assert output.loss.item() == pytest.approx(math.log1p((candidates - 1) * math.exp(-20)), rel=1e-6)
    assert output.metrics["accuracy"].item() == 1.0


def test_a_copy_of_the_positive_is_no_negative() -> None:
    """Two queries share a positive: each is left with itself alone, and its loss is ln 1."""
    model = Table(torch.eye(3, dtype=torch.float64))
    output = TrainingStep.Config().build(model)(batch_of(model, ("a", "c", ()), ("b", "c", ())))
    assert output.loss.item() == 0.0


def test_pairwise_loss_looks_at_the_rows_own_negatives() -> None:
    """Scores 1 and 0 at temperature 1: ln(1 + e^-1) in each row, whatever the other row holds."""
    model = Table(torch.eye(4, dtype=torch.float64))
    step = TrainingStep.Config(loss="pairwise", temperature=1.0).build(model)
    output = step(batch_of(model, ("a", "a", ("c",)), ("b", "b", ("a",))))
    assert output.loss.item() == pytest.approx(math.log1p(math.exp(-1)))


def test_pairwise_loss_without_negatives_says_what_to_set() -> None:
    model = Table(torch.eye(4))
    step = TrainingStep.Config(loss="pairwise").build(model)
    with pytest.raises(SourcierError, match="negatives=1"):
        step(batch_of(model, ("a", "b", ())))


def test_too_few_negatives_name_the_query() -> None:
    with pytest.raises(SourcierError, match="'a' has 0 negatives, 2 are asked for"):
        Collator(Table(torch.eye(4)), negatives=2)([Example(query="a", positive="b")])


def sparse_model() -> Table:
    rows = torch.tensor([[2.0, 0, 0, 0], [0, 2.0, 0, 0]], dtype=torch.float64)
    return Table(rows, TermWeightRepresentation)


def test_flops_of_queries_and_of_documents_have_weights_of_their_own() -> None:
    """Queries "a" and "b": FLOPS 2; documents "b" and "a": FLOPS 2 as well."""
    model = sparse_model()
    batch = batch_of(model, ("a", "b", ()), ("b", "a", ()))
    plain = TrainingStep.Config(temperature=1.0).build(model)(batch).loss.item()
    on_queries = TrainingStep.Config(temperature=1.0, flops_query=3.0).build(model)(batch).loss.item()
    on_documents = TrainingStep.Config(temperature=1.0, flops_document=5.0).build(model)(batch).loss.item()
    assert on_queries - plain == pytest.approx(3.0 * 2.0)
    assert on_documents - plain == pytest.approx(5.0 * 2.0)


def test_flops_on_queries_leaves_documents_without_its_gradient() -> None:
    """Only "a" stands among the queries and only "b" among the documents; equal documents leave no ranking gradient."""
    model = sparse_model()
    step = TrainingStep.Config(temperature=1.0, flops_query=1.0).build(model)
    step(batch_of(model, ("a", "b", ()))).loss.backward()
    assert model.rows.grad is not None
    assert model.rows.grad[1].abs().max().item() == 0.0
    assert model.rows.grad[0, 0].item() == 4.0  # d/dw of w² at w = 2


def test_flops_grows_as_a_square_over_the_warmup() -> None:
    model = sparse_model()
    batch = batch_of(model, ("a", "a", ()))
    step = TrainingStep.Config(temperature=1.0, flops_query=1.0, sparsity_warmup=10).build(model)
    first, middle, last = (step(batch, number).loss.item() for number in (0, 5, 10))
    assert [middle - first, last - first] == pytest.approx([0.25 * 4, 4.0])


def test_l1_of_queries_and_of_documents_have_weights_of_their_own() -> None:
    """Each text has one weight of 2."""
    model = sparse_model()
    batch = batch_of(model, ("a", "b", ()), ("b", "a", ()))
    plain, on_queries, on_documents = (
        TrainingStep.Config(temperature=1.0, **weights).build(model)(batch).loss.item()
        for weights in ({}, {"l1_query": 3.0}, {"l1_document": 5.0})
    )
    assert on_queries - plain == pytest.approx(3.0 * 2.0)
    assert on_documents - plain == pytest.approx(5.0 * 2.0)


def test_active_terms_are_counted_a_text() -> None:
    model = sparse_model()
    metrics = TrainingStep.Config().build(model)(batch_of(model, ("a", "b", ()), ("b", "a", ()))).metrics
    assert metrics["terms_query"].item() == 1.0
    assert metrics["terms_document"].item() == 1.0


def test_text_keys_are_the_same_in_every_process() -> None:
    """The first eight bytes of BLAKE2b with an 8-byte digest, little-endian, as an independent tool prints them."""
    assert text_key("") == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "little", signed=True)
