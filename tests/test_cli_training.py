"""`sourcier train` as it is typed: from data to figures, settings from flags and files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run

from sourcier.cli import main


@pytest.fixture
def arguments(beir: Path, tiny_bert: Path, tmp_path: Path) -> list[object]:
    what = ["--base", tiny_bert, "--data", beir, "--output", tmp_path / "run"]
    return ["train", *what, "--steps", 2, "--batch-size", 2, "--no-progress"]


@pytest.mark.parametrize("family", ["dense", "splade", "sparse_embed", "colbert"])
def test_from_data_to_figures(
    run: Run, arguments: list[object], family: str, beir: Path, tmp_path: Path
) -> None:
    trained = run(*arguments, "--family", family, "--json")
    assert trained.status == 0, trained.err
    assert trained.json["steps"] == 2
    built = run("index", "build", "--model", tmp_path / "run", "--data", beir, "--output", tmp_path / "index")
    assert built.status == 0, built.err
    evaluated = run("evaluate", tmp_path / "index", "--data", beir, "--json")
    assert set(evaluated.json["measures"]) == {"nDCG@10", "MRR@10", "recall@100", "success@1"}


def test_a_metric_is_refused_before_the_base_is_loaded(run: Run, beir: Path, tmp_path: Path) -> None:
    what = ["--family", "dense", "--base", "no-base", "--data", beir, "--output", tmp_path / "run"]
    ended = run("train", *what, "--metric", "nDGC@10")
    assert (ended.status, "did you mean 'nDCG'?" in ended.err) == (1, True)
    assert not (tmp_path / "run").exists()


def test_a_named_dev_split_has_to_be_there(run: Run, arguments: list[object]) -> None:
    ended = run(*arguments, "--family", "dense", "--dev-split", "nope")
    assert (ended.status, len(ended.err.splitlines())) == (1, 1)
    assert "nope" in ended.err


def test_a_checkpoint_is_indexed_as_it_comes(run: Run, tiny_bert: Path, beir: Path, tmp_path: Path) -> None:
    what = ["index", "build", "--model", tiny_bert, "--data", beir, "--output", tmp_path / "index", "--json"]
    built = run(*what, "--family", "dense")
    assert (built.status, built.json["family"]) == (0, "dense"), built.err
    assert "'dense'" in run(*what, "--family", "dens").err


def test_heads_that_a_checkpoint_lacks_are_the_same_in_every_build(
    run: Run, tiny_bert: Path, beir: Path, tmp_path: Path
) -> None:
    """The index names its model by a hash of all weights. (Hazard D1.)"""
    what = ["index", "build", "--model", tiny_bert, "--data", beir, "--family", "colbert", "--json"]
    first, second = (run(*what, "--output", tmp_path / name).json["model"] for name in ("a", "b"))
    assert first == second


def test_flags_override_the_file(run: Run, arguments: list[object], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "model: {dimension: 8, query_length: 16}\ntrain: {learning_rate: 1e-4, step: {temperature: 0.5}}\n"
    )
    ended = run(*arguments, "--family", "dense", "--config", tmp_path / "run.yaml", "--dimension", 4)
    assert ended.status == 0, ended.err
    model = json.loads((tmp_path / "run" / "best" / "sourcier.json").read_text())["config"]
    assert (model["dimension"], model["query_length"]) == (4, 16)
    assert "learning_rate: 0.0001" in (tmp_path / "run" / "config.yaml").read_text()
    settings = tmp_path / "run" / "config.yaml"
    assert "temperature: 0.5" in settings.read_text()
    again = [*arguments, "--output", tmp_path / "again", "--family", "dense", "--config", settings]
    assert run(*again).status == 0
    assert (tmp_path / "again" / "config.yaml").read_text().count("learning_rate: 0.0001") == 1


def test_the_same_seed_gives_the_same_heads(run: Run, arguments: list[object], tmp_path: Path) -> None:
    heads = []
    for name in ("first", "second"):
        ended = run(*arguments, "--family", "colbert", "--output", tmp_path / name)
        assert ended.status == 0, ended.err
        heads.append((tmp_path / name / "last" / "sourcier.safetensors").read_bytes())
    assert heads[0] == heads[1]


def test_a_run_can_be_repeated_from_its_settings_alone(
    run: Run, arguments: list[object], tmp_path: Path
) -> None:
    """A head, dropout and the order of rows are drawn as they were."""
    from sourcier.models.checkpoints import load

    first = run(*arguments, "--family", "colbert", "--dimension", 8, "--dropout", 0.1)
    assert first.status == 0, first.err
    again = run("train", "--config", tmp_path / "run" / "config.yaml", "--output", tmp_path / "again")
    assert again.status == 0, again.err
    assert len({load(tmp_path / name / "last").fingerprint() for name in ("run", "again")}) == 1


def test_a_stopped_run_goes_on_with_its_own_settings(
    run: Run, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sourcier.train.trainer import Trainer

    def stop(trainer: Trainer, step: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", stop)
        assert run(*arguments, "--family", "dense", "--learning-rate", "1e-3").status == 130
    refused = run("train", "--resume", "--output", tmp_path / "run", "--learning-rate", "2e-3")
    assert (refused.status, len(refused.err.splitlines())) == (1, 2)
    assert "the run began with learning_rate=0.001, not 0.002" in refused.err
    resumed = run("train", "--resume", "--output", tmp_path / "run")
    assert resumed.status == 0, resumed.err
    assert resumed.out.startswith("2 steps")
    finished = run("train", "--resume", "--output", tmp_path / "run")
    assert finished.status == 0, finished.err
    assert f"{tmp_path / 'run'} was finished before: 2 steps" in finished.out
    refused = run("train", "--resume", "--output", tmp_path / "run", "--learning-rate", "2e-3")
    assert "the run began with learning_rate=0.001, not 0.002" in refused.err


@pytest.mark.parametrize("name", ["base", "data"])
def test_what_neither_flag_nor_file_names_is_missing(run: Run, tmp_path: Path, name: str) -> None:
    given = {"base": "some", "data": "thing"}
    del given[name]
    flags = [part for flag, value in given.items() for part in (f"--{flag}", value)]
    ended = run("train", "--family", "dense", "--output", tmp_path / "run", *flags)
    assert (ended.status, f"--{name} is missing" in ended.err) == (2, True)


def test_a_trained_model_can_be_trained_on(run: Run, arguments: list[object], tmp_path: Path) -> None:
    dense = [*arguments, "--family", "dense"]
    assert run(*dense, "--dimension", 4).status == 0
    again = [*dense, "--base", tmp_path / "run", "--output", tmp_path / "again"]
    refused = run(*again, "--dimension", 8)
    assert (refused.status, "leave out dimension" in refused.err) == (1, True)
    assert run(*again).status == 0


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ([], 2, "--family must be one of dense, splade, sparse_embed, colbert"),
        (["--family", "colbret"], 2, "--family must be one of dense, splade, sparse_embed, colbert"),
        (["--family", "dense", "--query-terms", "3"], 2, "unknown option '--query-terms'"),
        (
            ["--family", "dense", "--steps", "few"],
            2,
            "'--steps' must be a whole number or none, not 'few'",
        ),
        (
            ["--family", "dense", "--pooling", "middle"],
            2,
            "must be 'mean' or 'cls' or 'last'",
        ),
        (["--family", "dense", "--warmup", "2"], 1, "train: warmup=2.0 must be at least 0 and below 1"),
        (["--family", "dense", "--config", "absent.yaml"], 1, "absent.yaml: cannot be read"),
    ],
)
def test_wrong_settings_are_one_line(
    run: Run, arguments: list[object], given: list[str], status: int, message: str
) -> None:
    ended = run(*arguments, *given)
    assert (ended.status, ended.out) == (status, "")
    assert message in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("trian: {}", "unknown key 'trian': did you mean 'train'?"),
        (
            "train: {learning_rat: 1}",
            ": train: unknown key 'learning_rat': did you mean 'learning_rate'?",
        ),
        ("train: {step: {temprature: 1}}", "unknown key 'temprature': did you mean 'temperature'?"),
        ("model: {dimenson: 1}", ": model: unknown key 'dimenson': did you mean 'dimension'?"),
    ],
)
def test_an_unknown_key_of_the_file_is_named(
    run: Run, arguments: list[object], tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "run.yaml").write_text(content)
    ended = run(*arguments, "--family", "dense", "--config", tmp_path / "run.yaml")
    assert ended.status == 1
    assert f"{tmp_path / 'run.yaml'}" in ended.err
    assert message in ended.err


def test_help_shows_the_settings_of_the_family(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--family", "sparse_embed", "--help"])
    out = capsys.readouterr().out
    assert "--query-terms" in out
    assert "--learning-rate" in out
    assert "--flops-query" in out
