"""A cross-encoder's scores are those that transformers gives pair by pair; what is no cross-encoder is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import WORDS, word_piece
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
)

from sourcier.data.examples import Example, Examples
from sourcier.models.cross_encoder import CrossEncoder
from sourcier.train.teacher import scored
from sourcier.types import SourcierError

POSITIONS = 24


def classifier(folder: Path, *, labels: int = 1, head: bool = True) -> Path:
    """A tiny random BERT that reads pairs, with room for 24 tokens."""
    tokenizer = word_piece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=POSITIONS,
        initializer_range=0.5,
        num_labels=labels,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForSequenceClassification(config) if head else BertModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return classifier(tmp_path / "teacher")


def pairs() -> list[tuple[str, str]]:
    """Pairs of many lengths, the last longer than the model can read."""
    return [
        (" ".join(WORDS[n : n + 1 + n % 4]), " ".join(WORDS[n : n + 2 + 3 * (n % 5)])) for n in range(13)
    ] + [("water", " ".join(WORDS))]


def plain_scores(folder: Path) -> list[float]:
    """What transformers says to one pair after the other."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = []
    for query, document in pairs():
        features = tokenizer(query, document, truncation=True, max_length=POSITIONS, return_tensors="pt")
        with torch.inference_mode():
            scores.append(float(model(**features).logits))
    return scores


def test_scores_are_those_of_transformers_pair_by_pair(teacher: Path) -> None:
    scores = CrossEncoder(teacher, batch_size=4).scores(pairs())
    plain = plain_scores(teacher)
    assert max(plain) - min(plain) > 0.1
    assert scores.tolist() == pytest.approx(plain, abs=1e-5)


def test_the_positions_of_the_model_bound_a_pair(teacher: Path) -> None:
    assert CrossEncoder(teacher).limit == POSITIONS


def test_a_row_gets_the_score_of_its_positive_and_then_of_each_negative(teacher: Path) -> None:
    encoder = CrossEncoder(teacher)
    examples = Examples([Example("water", "well", ("rain", "sea")), Example("read", "page", ())])
    expected = encoder.scores([("water", "well"), ("water", "rain"), ("water", "sea"), ("read", "page")])
    first, second = scored(examples, encoder)
    assert first.scores == pytest.approx(expected[:3].tolist(), abs=1e-6)
    assert second.scores == pytest.approx(expected[3:].tolist(), abs=1e-6)


def test_several_labels_are_no_score(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="gives 3 labels: choose a cross-encoder"):
        CrossEncoder(classifier(tmp_path / "nli", labels=3))


def test_a_base_without_a_classifier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match=r"weight 'classifier.bias' is missing"):
        CrossEncoder(classifier(tmp_path / "base", head=False))


def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="cannot be loaded as a cross-encoder") as refused:
        CrossEncoder(tmp_path)
    assert "\n" not in str(refused.value)
