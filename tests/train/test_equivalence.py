"""Two and three Gloo processes do what one does: every family with every loss, and on every kind of base."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from equivalence_worker import KINDS, examples_of_unequal_lengths, share
from tiny import tiny_model

WORKER = Path(__file__).with_name("equivalence_worker.py")
FAMILIES = {"dense", "splade", "sparse_embed", "colbert"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 3])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All cases in one launch."""
    folder = tmp_path_factory.mktemp("equivalence")
    for kind in ("bert", *KINDS):
        tiny_model(kind, folder / kind)
    result = folder / "result.json"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(request.param),
    ]
    finished = subprocess.run(
        [*command, str(WORKER), str(folder), str(result)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return {"world": request.param, **json.loads(result.read_text())}


def beyond(found: dict[str, Any], what: str, limit: float) -> list[dict[str, Any]]:
    return [case for case in found["cases"] if not case[what] < limit]


def test_the_comparison_compares_something(found: dict[str, Any]) -> None:
    assert [case for case in found["cases"] if not (case["largest"] > 1e-4 and case["way"] > 1e-4)] == []


def test_the_comparison_covers_what_it_should(found: dict[str, Any]) -> None:
    cases = [one["case"] | {"cached": one["case"]["chunk"] is not None} for one in found["cases"]]

    def families(**wanted: Any) -> set[str]:
        return {case["family"] for case in cases if all(case[name] == wanted[name] for name in wanted)}

    for cached in (False, True):
        for negatives in (0, 1, 2):
            assert families(loss="contrastive", negatives=negatives, cached=cached) == FAMILIES
        for loss in ("symmetric", "kl", "margin_mse"):
            assert families(loss=loss, cached=cached) == FAMILIES
            assert families(loss=loss, cached=cached, flops=0.1) == {"splade", "sparse_embed"}
    for loss in ("pairwise", "kl", "margin_mse"):
        assert families(loss=loss, accumulated=True) == FAMILIES
    assert families(l1=0.01, cached=False) == families(l1=0.01, cached=True) == {"splade", "sparse_embed"}
    for checkpointed in (False, True):
        kinds = {case["kind"] for case in cases if case["flops"] and case["checkpointed"] == checkpointed}
        assert kinds == {"bert", *KINDS}


def test_the_rows_try_what_could_go_wrong(found: dict[str, Any]) -> None:
    """Unequal shares, chunks and lengths; a positive on two ranks; scores of a teacher that differ."""
    world = found["world"]
    rows = examples_of_unequal_lengths(2 * world + 1, 2)
    shares = [share(rows, rank, world) for rank in range(world)]
    assert {len(part) for part in shares} == {2, 3}
    for chunk, negatives in ((2, 0), (4, 1), (4, 2)):
        assert len({-(-len(part) * (1 + negatives) // chunk) for part in shares}) == 2
    assert len({max(len(row.positive) for row in part) for part in shares}) == world
    assert shares[0][0].positive == shares[-1][-1].positive
    assert all(len(row.negatives) == 2 for row in rows)
    assert len({score for row in rows for score in row.scores or ()}) == 3 * len(rows)


def test_losses_are_equal(found: dict[str, Any]) -> None:
    assert beyond(found, "loss", 1e-6) == []


def test_gradients_are_equal(found: dict[str, Any]) -> None:
    assert beyond(found, "gradient", 1e-6) == []


def test_weights_after_three_steps_are_equal(found: dict[str, Any]) -> None:
    assert beyond(found, "weight", 1e-6) == []


def test_every_rank_has_the_same_gradients(found: dict[str, Any]) -> None:
    """To the bit. (Hazard A1.)"""
    assert [case for case in found["cases"] if case["ranks"] != 0.0] == []


def test_labels_follow_the_gathered_negatives(found: dict[str, Any]) -> None:
    """A wrong label gives about 20. (Hazard A5.)"""
    assert found["right"]["one hot"] == pytest.approx(found["right"]["expected"], rel=1e-6)


def test_flops_is_that_of_the_global_batch(found: dict[str, Any]) -> None:
    """On two ranks 2.0, and 0.5 a nonzero entry; the mean over ranks would give 4.0 and 1.0. (Hazard B1.)"""
    world, flops = found["world"], found["right"]["flops"]
    means = [2.0 / world, 2.0 * (world - 1) / world]
    gradients = [2 * mean / (2 * world) for mean in means]
    assert flops["value"] == pytest.approx(means[0] ** 2 + means[1] ** 2)
    assert flops["gradient"] == pytest.approx([gradients[0]] * 2 + [gradients[1]] * (2 * world - 2))
    if world == 2:
        assert (flops["value"], set(flops["gradient"])) == (2.0, {0.5})


def test_flops_of_queries_leaves_documents_alone(found: dict[str, Any]) -> None:
    assert found["right"]["flops"]["document gradient"] == 0.0


def test_gradients_are_reduced_once_a_step(found: dict[str, Any]) -> None:
    """With GradCache, on ranks of 5 and 3 chunks. (Hazard A8.)"""
    assert found["right"]["reductions"] == [1, 1]
