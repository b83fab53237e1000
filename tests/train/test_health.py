"""Figures of a batch against arithmetic, and when the rule speaks."""

import json
import math

import pytest
import torch
from torch import Tensor

from sourcier.models.representations import (
    DenseRepresentation,
    Representation,
    TermVectorRepresentation,
    TermWeightRepresentation,
    TokenVectorRepresentation,
)
from sourcier.train import health
from sourcier.train.health import HealthRule, examine


def numbers(queries: Representation, documents: Representation, **settings: object) -> dict[str, float]:
    return {name: value.item() for name, value in examine(queries, documents, **settings).items()}  # type: ignore[arg-type]


def plane(*angles: float) -> DenseRepresentation:
    """Unit vectors at these angles in degrees: products are cosines of differences."""
    radians = torch.tensor(angles, dtype=torch.float64).deg2rad()
    return DenseRepresentation(torch.stack([radians.cos(), radians.sin()], dim=1))


def axes(*numbers: int, size: int = 6) -> DenseRepresentation:
    return DenseRepresentation(torch.eye(size, dtype=torch.float64)[list(numbers)])


def test_similarities_of_three_rows() -> None:
    """Queries and positives at 0, 60 and 180 degrees: random cosines ½, -1 | ½, -½ | -½, -1."""
    figures = numbers(plane(0, 60, 180), plane(0, 60, 180), width=1)
    assert figures["positive"] == pytest.approx(1.0)
    assert figures["hardest"] == pytest.approx((0.5 + 0.5 - 0.5) / 3)
    assert figures["random"] == pytest.approx((-0.5 + 0.0 - 1.5) / 2 / 3)


def test_spread_is_pooled_around_each_querys_own_mean() -> None:
    """Squares around the means -¼, 0 and -¾: 2·(¾)², 2·(½)², 2·(¼)², over three degrees of freedom."""
    figures = numbers(plane(0, 60, 180), plane(0, 60, 180), width=1)
    spread = math.sqrt(2 * (0.75**2 + 0.5**2 + 0.25**2) / 3)
    assert figures["spread"] == pytest.approx(spread)
    assert figures["margin"] == pytest.approx((0.5 + 0.5 + 1.5) / 3 / spread)
    assert figures["separation"] == pytest.approx((1.25 + 1 + 1.75) / 3 / spread)


def test_a_rows_own_negative_is_hard_and_not_random() -> None:
    """The second document of each row is a copy of its query's neighbour at 10 degrees."""
    figures = numbers(plane(0, 90), plane(0, 10, 90, 100), width=2)
    assert figures["hardest"] == pytest.approx(math.cos(math.radians(10)))
    radians = [math.radians(angle) for angle in (90, 100, 90, 80)]
    assert figures["random"] == pytest.approx(sum(math.cos(angle) for angle in radians) / 4)


def test_excluded_documents_are_nobodys_negative() -> None:
    excluded = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    figures = numbers(axes(0, 0, 1), axes(0, 0, 1), width=1, excluded=excluded)
    assert figures["hardest"] == 0.0
    assert figures["accuracy"] == 1.0


def test_accuracy_counts_strict_winners_and_first_places_are_counted_once() -> None:
    """All three queries are at document 0: only the first is right, and one document has all first places."""
    figures = numbers(axes(0, 0, 0), axes(0, 1, 2), width=1)
    assert figures["accuracy"] == pytest.approx(1 / 3)
    assert figures["distinct_top1"] == pytest.approx(1 / 3)


def test_documents_on_axes_use_as_many_directions_as_there_are_documents() -> None:
    figures = numbers(axes(0, 1, 2), axes(0, 1, 2), width=1)
    assert figures["effective_rank"] == pytest.approx(3.0)
    assert figures["mean_cosine"] == pytest.approx(0.0)


def test_equal_documents_use_one_direction_and_leave_no_margin() -> None:
    figures = numbers(axes(0, 1, 2), axes(4, 4, 4), width=1)
    assert figures["effective_rank"] == pytest.approx(1.0, abs=1e-3)
    assert figures["mean_cosine"] == pytest.approx(1.0)
    assert figures["margin"] == figures["accuracy"] == 0.0


def test_effective_rank_of_two_directions_is_that_of_their_singular_values() -> None:
    """Cosine c of two vectors: singular values √(1 ± c)."""
    figures = numbers(plane(0, 60), plane(0, 60), width=1)
    values = [math.sqrt(1.5), math.sqrt(0.5)]
    shares = [value / sum(values) for value in values]
    assert figures["effective_rank"] == pytest.approx(
        math.exp(-sum(share * math.log(share) for share in shares))
    )


def tokens(*rows: tuple[int, ...], length: int = 4) -> TokenVectorRepresentation:
    """Texts whose tokens are axes; padding holds NaN, which must not be read."""
    vectors = torch.full((len(rows), length, 6), math.nan, dtype=torch.float64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for number, row in enumerate(rows):
        vectors[number, : len(row)] = torch.eye(6, dtype=torch.float64)[list(row)]
        mask[number, : len(row)] = True
    return TokenVectorRepresentation(vectors, mask)


def test_maxsim_is_divided_by_the_number_of_query_tokens() -> None:
    """Queries of 2 and of 3 tokens, each wholly in its document, which share one token."""
    figures = numbers(tokens((0, 1), (1, 2, 3)), tokens((0, 1), (1, 2, 3)), width=1)
    assert figures["positive"] == pytest.approx(1.0)
    assert figures["random"] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_token_vectors_are_compared_by_their_mean() -> None:
    """Means of axes 0, 1 and of axes 1, 2, 3: the product of the unit vectors is 1 / √6."""
    figures = numbers(tokens((0, 1), (1, 2, 3)), tokens((0, 1), (1, 2, 3)), width=1)
    assert figures["mean_cosine"] == pytest.approx(1 / math.sqrt(6))


def weights(*rows: list[float]) -> TermWeightRepresentation:
    return TermWeightRepresentation(torch.tensor(rows, dtype=torch.float64))


def test_term_weights_are_measured_by_the_querys_own() -> None:
    """Weight 2 finds 3 in its document, 6 of its own 4; weight 1 finds 1."""
    queries = weights([2.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    figures = numbers(queries, weights([3.0, 0.0, 0.0], [0.0, 1.0, 1.0]), width=1)
    assert figures["positive"] == pytest.approx((1.5 + 1.0) / 2)


def test_empty_representations_give_zeros() -> None:
    figures = numbers(weights([0.0, 0.0], [0.0, 0.0]), weights([0.0, 0.0], [0.0, 0.0]), width=1)
    assert figures["margin"] == figures["mean_cosine"] == figures["score_spread"] == 0.0


def test_term_vectors_take_part() -> None:
    """One term each, the same: products of their vectors."""
    vectors = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    texts = TermVectorRepresentation(torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1).bool(), vectors)
    figures = numbers(texts, texts, width=1)
    assert (figures["positive"], figures["random"], figures["accuracy"]) == (1.0, 0.0, 1.0)


def test_one_row_has_nothing_to_compare() -> None:
    assert math.isnan(numbers(axes(0), axes(0), width=1)["margin"])


def test_no_gradient_is_kept() -> None:
    vectors: Tensor = torch.eye(3, requires_grad=True)
    figures = examine(DenseRepresentation(vectors), DenseRepresentation(vectors), width=1)
    assert not any(value.requires_grad for value in figures.values())


def test_ranks_count_by_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows that are all found, and two that are not: the sums of one rank are added to the other's."""
    sent: list[Tensor] = []
    monkeypatch.setattr(health, "sum_over_ranks", lambda tensor: sent.append(tensor) or tensor)
    examine(axes(0, 1), axes(1, 0), width=1)
    monkeypatch.setattr(health, "sum_over_ranks", lambda tensor: tensor + sent[0])
    assert numbers(axes(0, 1, 2), axes(0, 1, 2), width=1)["accuracy"] == pytest.approx(3 / 5)


def test_a_rank_with_one_row_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Tensor] = []
    monkeypatch.setattr(health, "sum_over_ranks", lambda tensor: sent.append(tensor) or tensor)
    examine(axes(0), axes(1), width=1)
    monkeypatch.setattr(health, "sum_over_ranks", lambda tensor: tensor + sent[0])
    assert numbers(axes(0, 1, 2), axes(0, 1, 2), width=1)["accuracy"] == 1.0


# The rule.

HEALTHY = {
    "margin": 1.0,
    "separation": 3.0,
    "mean_cosine": 0.4,
    "effective_rank": 9.0,
    "random": 0.3,
    "score_spread": 0.1,
}


def rule(**settings: object) -> HealthRule:
    usual = {
        "family": "dense",
        "loss": "contrastive",
        "temperature": 0.05,
        "learning_rate": 2e-5,
        "warmup_steps": 100,
    }
    return HealthRule(**usual | settings)  # type: ignore[arg-type]


def logs(judge: HealthRule, *figures: dict[str, float], every: int = 20) -> list[str]:
    """What a rule says of these figures, logged every so many of 1000 steps."""
    said = [
        judge.judge(
            number * every, 1000, {f"health/{name}": value for name, value in (HEALTHY | one).items()}
        )
        for number, one in enumerate(figures, start=1)
    ]
    return [line for line in said if line]


def test_a_healthy_run_is_left_alone() -> None:
    assert logs(rule(), *[{}] * 50) == []


def test_a_temperature_that_hides_the_spread_is_named_with_one_that_would_not() -> None:
    """The spread of 0.1 is a tenth of the temperature; half the spread makes two logits of it."""
    (line,) = logs(rule(temperature=1.0), *[{}] * 10)
    assert line.startswith("step 60: ")
    assert "temperature=1 " in line
    assert "set temperature=0.05" in line


@pytest.mark.parametrize(("share", "lines"), [(0.98, 1), (1.02, 0)])
def test_flat_is_below_an_eighth_of_the_temperature(share: float, lines: int) -> None:
    assert len(logs(rule(temperature=1.0), *[{"score_spread": 0.125 * share}] * 3)) == lines


def test_margin_mse_makes_no_probability_of_its_scores() -> None:
    assert logs(rule(loss="margin_mse", temperature=1.0), *[{}] * 10) == []


def test_documents_that_move_together_name_the_learning_rate() -> None:
    (line,) = logs(rule(learning_rate=2e-3), {}, {"separation": 0.3, "mean_cosine": 0.8})
    assert line.startswith("step 40: ")
    assert "learning_rate=0.002" in line
    assert "set 2e-04" in line


def test_documents_may_come_nearer_while_positives_stay_ahead() -> None:
    """As with a low temperature, which lets all cosines rise and ranks well."""
    assert logs(rule(), {}, *[{"mean_cosine": 0.8}] * 20) == []


def test_a_base_whose_vectors_begin_together_is_given_time() -> None:
    """Such as RoBERTa's means of tokens: alike, but less so with every step."""
    rising = [{"separation": 0.3 + step / 5, "mean_cosine": 0.99 - step / 100} for step in range(9)]
    assert logs(rule(), *rising) == []


def test_a_model_that_stays_blind_is_named_when_the_warm_up_is_well_over() -> None:
    (line,) = logs(rule(), *[{"separation": 0.4, "margin": -1.2}] * 20)
    assert line.startswith("step 200: ")


def test_hard_negatives_above_the_positive_name_a_warm_temperature_and_false_negatives() -> None:
    (line,) = logs(rule(temperature=0.2), *[{"margin": -0.3}] * 20)
    assert "set temperature=0.05" in line
    assert "false negatives" in line


def test_hard_negatives_that_are_being_overtaken_are_no_fault() -> None:
    assert logs(rule(), *[{"margin": -2.0}] * 3, *[{"margin": -0.3}] * 20) == []


def test_the_pairwise_loss_is_a_cause() -> None:
    (line,) = logs(rule(loss="pairwise"), *[{"margin": -0.3}] * 20)
    assert "loss=contrastive" in line


def test_padding_is_a_cause_where_random_tokens_match() -> None:
    (line,) = logs(rule(family="colbert"), *[{"margin": -0.3, "random": 0.95}] * 20)
    assert "padding" in line


def test_one_odd_batch_among_good_ones_is_no_fault() -> None:
    assert logs(rule(), *[{}] * 15, {"margin": -2.0, "separation": 0.5}, *[{}] * 15) == []


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped() -> None:
    """Two logs before the stop and one after it make three, and what was said is not said again."""
    before, after, again = rule(temperature=1.0), rule(temperature=1.0), rule(temperature=1.0)
    assert logs(before, {}, {}) == []
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert len(logs(after, {}, {}, {})) == 1
    again.load_state_dict(json.loads(json.dumps(after.state_dict())))
    assert logs(again, {}, {}, {}) == []


def test_steps_without_health_figures_are_passed_over() -> None:
    judge = rule(temperature=1.0)
    assert judge.judge(10, 1000, {"loss": 1.0, "health/margin": None}) is None
    assert judge.state_dict()["first"] is None
