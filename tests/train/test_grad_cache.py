"""GradCache: the same gradients as the forward it stands for, and the activations of one chunk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from sourcier.data.examples import Example
from sourcier.kernels import best_products
from sourcier.models import FAMILIES
from sourcier.models.encoder import SearchModel
from sourcier.train.grad_cache import encode_in_chunks
from sourcier.train.step import Collator, TrainingStep

TEXTS = ["water", "a spring in the ground", "rain on the lake and the river", "well of water", "rain"] + [
    "the ground water of " + "the lake and " * count for count in (1, 4, 2)
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return tiny_model("bert", tmp_path_factory.mktemp("base") / "bert", **dropout)


def build(family: str, base: Path) -> SearchModel:
    torch.manual_seed(0)
    return FAMILIES[family].from_base(base).double().train()


def gradients(model: SearchModel, chunk: int, *, cached: bool) -> list[Tensor]:
    """Of the sum of squares of all scores, with dropout from the same seed."""
    model.zero_grad()
    torch.manual_seed(1)
    queries = model(model.tokenize(TEXTS[:3], "query"), "query")
    features = model.tokenize(TEXTS, "document")
    documents = encode_in_chunks(lambda part: model(part, "document"), features, chunk, cached=cached)
    queries.scores(documents).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_dropout_is_replayed_exactly(family: str, chunk: int, base: Path) -> None:
    """Chunks whose activations are dropped give the gradients of chunks whose activations were kept."""
    model = build(family, base)
    kept, dropped = (gradients(model, chunk, cached=cached) for cached in (False, True))
    assert max(gradient.abs().max().item() for gradient in kept) > 1e-3
    assert max((a - b).abs().max().item() for a, b in zip(kept, dropped, strict=True)) == 0.0


def test_dropout_is_on_in_that_comparison(base: Path) -> None:
    """Else it would say nothing."""
    model = build("dense", base)
    different_draws = (gradients(model, chunk, cached=True) for chunk in (2, 3))
    assert max((a - b).abs().max().item() for a, b in zip(*different_draws, strict=True)) > 1e-6


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("loss", ["contrastive", "symmetric", "pairwise", "kl", "margin_mse"])
def test_a_step_in_chunks_is_the_step(family: str, loss: Any, base: Path) -> None:
    """Loss and gradients with regularisers, without dropout."""
    model = build(family, base)
    model.set_dropout(0.0)
    examples = [
        Example(text, TEXTS[row + 1], (TEXTS[row + 2], TEXTS[row + 3]), (3.0, 1.0, -1.0))
        for row, text in enumerate(TEXTS[:5])
    ]
    batch = Collator(model, negatives=2)(examples)
    found = []
    for chunk in (None, 4):
        model.zero_grad()
        weights = {"flops_query": 0.1, "flops_document": 0.2, "l1_query": 0.01, "l1_document": 0.02}
        output = TrainingStep.Config(loss=loss, chunk=chunk, **weights).build(model)(batch)
        output.loss.backward()
        grads = [parameter.grad for parameter in model.parameters()]
        found.append((output.loss.item(), [gradient.clone() for gradient in grads if gradient is not None]))
    (loss_plain, plain), (loss_cached, cached) = found
    assert loss_cached == pytest.approx(loss_plain, abs=1e-12)
    assert max((a - b).abs().max().item() for a, b in zip(plain, cached, strict=True)) < 1e-10


@pytest.fixture
def held() -> Iterator[list[int]]:
    """Bytes of the tensors that autograd keeps for the backward, outside of chunks."""
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def test_activations_of_finished_chunks_are_not_held(base: Path, held: list[int]) -> None:
    """What is kept is the representations: 8 vectors of 32 numbers, and what joins and orders them."""
    model = build("dense", base)
    features = model.tokenize(TEXTS, "document")
    encode_in_chunks(lambda part: model(part, "document"), features, 2)
    assert sum(held) <= 4 * 8 * 32 * 8


def test_terms_are_not_searched_for_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary is compared with each chunk once, not once more in the backward."""
    searched: list[int] = []
    search = best_products._search

    def counted(vectors: Tensor, texts: Tensor, *rest: Any, **options: Any) -> Any:
        searched.append(len(texts))
        return search(vectors, texts, *rest, **options)

    monkeypatch.setattr(best_products, "_search", counted)
    gradients(build("splade", base), 4, cached=True)
    assert searched == [3, 4, 4]


def test_texts_come_back_in_their_order(base: Path) -> None:
    model = build("dense", base).eval()
    features = model.tokenize(TEXTS, "document")
    whole = model(features, "document").vectors
    parts = encode_in_chunks(lambda part: model(part, "document"), features, 3).vectors
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


def test_columns_that_a_chunk_does_not_need_are_not_computed(base: Path) -> None:
    widths: list[int] = []
    model = build("dense", base)

    def encode(part: dict[str, Tensor]) -> Any:
        widths.append(part["input_ids"].shape[1])
        return model(part, "document")

    features = model.tokenize(["water", "water", "a spring in the ground"], "document")
    encode_in_chunks(encode, features, 1, cached=False)
    assert widths == [7, 3, 3]
