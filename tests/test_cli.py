"""The command line: what it prints where, how it ends, and the way from data to figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sourcier
from sourcier.cli import entry, main
from sourcier.cli.command import Command, Output, WrongUse, count, names
from sourcier.types import SourcierError

DOCUMENTS = {
    "cat": "the cat sleeps on the warm sofa",
    "dog": "the dog runs in the green park",
    "fish": "a fish swims in the cold sea",
    "bird": "a bird sings in the old tree",
}
QUERIES = {"q1": "cat sofa", "q2": "dog park", "q3": "fish sea", "q4": "bird tree"}
ANSWERS = dict(zip(QUERIES, DOCUMENTS, strict=True))


@dataclass
class Ended:
    """How a command ended: its exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: object) -> Ended:
        capsys.readouterr()  # what was printed before is not the command's
        status = main([str(argument) for argument in arguments])
        return Ended(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A BEIR folder with the splits train, dev and test, all of the same four queries."""
    folder = tmp_path / "docs"
    (folder / "qrels").mkdir(parents=True)
    _write_lines(
        folder / "corpus.jsonl", [{"_id": key, "title": "", "text": text} for key, text in DOCUMENTS.items()]
    )
    _write_lines(folder / "queries.jsonl", [{"_id": key, "text": text} for key, text in QUERIES.items()])
    rows = "".join(f"{query}\t{document}\t1\n" for query, document in ANSWERS.items())
    for split in ("train", "dev", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


def _write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def bm25(beir: Path, tmp_path: Path, run: Run) -> Path:
    index = tmp_path / "bm25"
    assert run("index", "build", "--kind", "bm25", "--data", beir, "--output", index).status == 0
    return index


class TestUse:
    def test_version(self, run: Run) -> None:
        assert run("--version") == Ended(0, f"sourcier {sourcier.__version__}\n", "")

    def test_help_names_every_command(self, run: Run) -> None:
        ended = run("--help")
        assert ended.status == 0
        assert all(f"  {name} " in ended.out for name in entry.COMMANDS)

    @pytest.mark.parametrize("name", [name for name in entry.COMMANDS if name != "train"])
    def test_every_command_has_help_with_its_example(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), "--help"])
        assert ended.value.code == 0
        assert entry.COMMANDS[name].example in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "no command given"),
            (["serch"], "unknown command 'serch': did you mean 'search'?"),
            (["index"], "'index' needs one of: build, add, delete"),
            (["index", "buidl"], "unknown index command 'buidl': did you mean 'build'?"),
            (["search", "index", "query", "--josn"], "unknown option '--josn': did you mean '--json'?"),
            (["search", "index"], "the following arguments are required: query"),
            (["search", "index", "query", "-k", "0"], "must be a whole number above 0, not '0'"),
            (["index", "build", "--data", "a", "--output", "b"], "needs --model RUN, or --kind bm25"),
        ],
    )
    def test_wrong_use_is_one_line_and_status_2(self, run: Run, arguments: list[str], message: str) -> None:
        ended = run(*arguments)
        assert (ended.status, ended.out) == (2, "")
        assert message in ended.err
        assert ended.err.startswith("sourcier: ")
        assert ended.err.count("\n") == 1

    def test_measures_are_parted_by_commas_outside_brackets(self) -> None:
        assert names("nDCG@10, P(rel=2,judged_only=True)@5") == ["nDCG@10", "P(rel=2,judged_only=True)@5"]

    def test_a_count_that_was_converted_stays(self) -> None:
        assert count(3) == count("3") == 3


class TestErrors:
    @pytest.fixture
    def fail(self, monkeypatch: pytest.MonkeyPatch, run: Run) -> Callable[..., Ended]:
        """Run a command that raises an error."""

        def run_failing(error: BaseException, *arguments: str) -> Ended:
            def work(_: Any) -> Output:
                raise error

            monkeypatch.setitem(
                entry.COMMANDS,
                "fail",
                Command(summary="", example="", add_flags=lambda parser, arguments: None, run=work),
            )
            return run("fail", *arguments)

        return run_failing

    @pytest.mark.parametrize(
        ("error", "status", "text"),
        [
            (SourcierError("a.tsv:3: wrong"), 1, "a.tsv:3: wrong"),
            (WrongUse("give --model"), 2, "give --model"),
            (RuntimeError("two\nlines"), 1, "unexpected RuntimeError: two lines (--debug shows where)"),
            (FileNotFoundError(2, "No such file or directory", "x"), 1, "x: No such file or directory"),
            (
                ModuleNotFoundError("no", name="torch"),
                1,
                "torch is not installed: pip install 'sourcier[train]'",
            ),
            (KeyboardInterrupt(), 130, "interrupted"),
        ],
    )
    def test_an_error_is_one_line(
        self, fail: Callable[..., Ended], error: BaseException, status: int, text: str
    ) -> None:
        assert fail(error) == Ended(status, "", f"sourcier: {text}\n")

    def test_debug_shows_the_traceback(self, fail: Callable[..., Ended]) -> None:
        assert "Traceback (most recent call last)" in fail(SourcierError("wrong"), "--debug").err

    def test_what_libraries_print_stays_out_of_the_result(
        self, monkeypatch: pytest.MonkeyPatch, run: Run
    ) -> None:
        def work(_: Any) -> Output:
            print("noise")
            return Output({"a": 1}, "text")

        command = Command(summary="", example="", add_flags=lambda parser, arguments: None, run=work)
        monkeypatch.setitem(entry.COMMANDS, "noisy", command)
        assert run("noisy", "--json") == Ended(0, '{"a": 1}\n', "noise\n")


class TestBm25:
    def test_search_prints_one_json_object(self, run: Run, bm25: Path) -> None:
        found = run("search", bm25, "the green park", "-k", 2, "--json").json
        assert found["hits"][0] | {"score": 0} == {
            "rank": 1,
            "score": 0,
            "id": "dog",
            "text": DOCUMENTS["dog"],
            "title": "",
            "metadata": {},
        }

    def test_search_shows_people_id_score_and_text(self, run: Run, bm25: Path) -> None:
        first, second = run("search", bm25, "green park").out.splitlines()[:2]
        assert first.startswith("  1. dog  (")
        assert second == f"     {DOCUMENTS['dog']}"

    def test_nothing_found_is_said(self, run: Run, bm25: Path) -> None:
        assert run("search", bm25, "?!").out == "nothing found\n"

    def test_a_query_may_begin_with_a_dash(self, run: Run, bm25: Path) -> None:
        assert run("search", bm25, "--json", "--", "-cat").json["hits"][0]["id"] == "cat"

    def test_info_counts_documents(self, run: Run, bm25: Path) -> None:
        info = run("index", "info", bm25, "--json").json
        assert info["kind"] == "bm25"
        assert 4 in info["counts"].values()
        assert info["bytes"] > 0

    def test_evaluate_measures_and_writes_a_run(
        self, run: Run, bm25: Path, beir: Path, tmp_path: Path
    ) -> None:
        ended = run("evaluate", bm25, "--data", beir, "--run", tmp_path / "ours.run", "--json")
        assert ended.json["measures"] == {"nDCG@10": 1.0, "MRR@10": 1.0, "recall@100": 1.0, "success@1": 1.0}
        assert ended.json["queries"] == 4
        assert (tmp_path / "ours.run").read_text().startswith("q1 Q0 cat 1 ")

    def test_evaluate_prints_the_measures_for_people(self, run: Run, bm25: Path, beir: Path) -> None:
        out = run("evaluate", bm25, "--data", beir).out
        assert all(name in out for name in ("nDCG@10", "MRR@10", "recall@100", "success@1"))

    def test_evaluate_compares_with_a_run(self, run: Run, bm25: Path, beir: Path, tmp_path: Path) -> None:
        (tmp_path / "old.run").write_text("q1 Q0 dog 1 2.0 old\nq1 Q0 cat 2 1.0 old\n")
        arguments = [
            "evaluate",
            bm25,
            "--data",
            beir,
            "--measures",
            "MRR@10",
            "--compare",
            tmp_path / "old.run",
        ]
        (comparison,) = run(*arguments, "--json").json["compare"]
        assert (comparison["baseline"], comparison["value"], comparison["wins"]) == (0.125, 1.0, 4)
        assert "compared with" in run(*arguments).out

    def test_a_run_to_compare_with_is_read_before_the_index_is_opened(
        self, run: Run, beir: Path, tmp_path: Path
    ) -> None:
        old = tmp_path / "old.run"
        old.write_text("q1 Q0 dog 1 2.0 old\nq1 dog\n")
        ended = run("evaluate", tmp_path / "no-index", "--data", beir, "--compare", old)
        assert (ended.status, ended.err.count("\n")) == (1, 1)
        assert f"{old}:2: 2 columns where a run has 6" in ended.err

    @pytest.mark.parametrize(
        ("name", "message"), [("ERR", "'ERR' is computed by no library"), ("nDGC@5", "did you mean 'nDCG'?")]
    )
    def test_a_measure_is_refused_before_the_index_is_opened(
        self, run: Run, beir: Path, tmp_path: Path, name: str, message: str
    ) -> None:
        ended = run("evaluate", tmp_path / "no-index", "--data", beir, "--measures", name)
        assert (ended.status, ended.err.count("\n"), message in ended.err) == (1, 1, True)

    def test_a_measure_deeper_than_k_is_refused(self, run: Run, bm25: Path, beir: Path) -> None:
        ended = run("evaluate", bm25, "--data", beir, "-k", 5)
        assert (ended.status, "raise k" in ended.err) == (1, True)

    def test_lenient_tells_what_was_skipped(self, run: Run, beir: Path, tmp_path: Path) -> None:
        with (beir / "corpus.jsonl").open("a") as file:
            file.write("{broken\n")
        arguments = ["index", "build", "--kind", "bm25", "--data", beir, "--output", tmp_path / "index"]
        strict = run(*arguments)
        assert (strict.status, "corpus.jsonl:5" in strict.err) == (1, True)
        lenient = run(*arguments, "--lenient")
        assert (lenient.status, "skipped 1" in lenient.err) == (0, True)


class TestTraining:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        from tiny import tiny_model  # needs torch, which the other tests here do without

        return tiny_model("bert", tmp_path / "base")

    @pytest.fixture
    def arguments(self, beir: Path, base: Path, tmp_path: Path) -> list[object]:
        what = ["--base", base, "--data", beir, "--output", tmp_path / "run"]
        return ["train", *what, "--steps", 2, "--batch-size", 2, "--no-progress"]

    @pytest.mark.parametrize("family", ["dense", "splade", "sparse_embed", "colbert"])
    def test_from_data_to_figures(
        self, run: Run, arguments: list[object], family: str, beir: Path, tmp_path: Path
    ) -> None:
        trained = run(*arguments, "--family", family, "--json")
        assert trained.status == 0, trained.err
        assert trained.json["steps"] == 2
        built = run(
            "index", "build", "--model", tmp_path / "run", "--data", beir, "--output", tmp_path / "index"
        )
        assert built.status == 0, built.err
        evaluated = run("evaluate", tmp_path / "index", "--data", beir, "--json")
        assert set(evaluated.json["measures"]) == {"nDCG@10", "MRR@10", "recall@100", "success@1"}

    def test_a_metric_is_refused_before_the_base_is_loaded(
        self, run: Run, beir: Path, tmp_path: Path
    ) -> None:
        what = ["--family", "dense", "--base", "no-base", "--data", beir, "--output", tmp_path / "run"]
        ended = run("train", *what, "--metric", "nDGC@10")
        assert (ended.status, "did you mean 'nDCG'?" in ended.err) == (1, True)
        assert not (tmp_path / "run").exists()

    def test_a_named_dev_split_has_to_be_there(self, run: Run, arguments: list[object]) -> None:
        ended = run(*arguments, "--family", "dense", "--dev-split", "nope")
        assert (ended.status, len(ended.err.splitlines())) == (1, 1)
        assert "nope" in ended.err

    def test_a_checkpoint_is_indexed_as_it_comes(
        self, run: Run, base: Path, beir: Path, tmp_path: Path
    ) -> None:
        what = ["index", "build", "--model", base, "--data", beir, "--output", tmp_path / "index", "--json"]
        built = run(*what, "--family", "dense")
        assert (built.status, built.json["family"]) == (0, "dense"), built.err
        assert "'dense'" in run(*what, "--family", "dens").err

    def test_heads_that_a_checkpoint_lacks_are_the_same_in_every_build(
        self, run: Run, base: Path, beir: Path, tmp_path: Path
    ) -> None:
        """The index names its model by a hash of all weights. (Hazard D1.)"""
        what = ["index", "build", "--model", base, "--data", beir, "--family", "colbert", "--json"]
        first, second = (run(*what, "--output", tmp_path / name).json["model"] for name in ("a", "b"))
        assert first == second

    def test_flags_override_the_file(self, run: Run, arguments: list[object], tmp_path: Path) -> None:
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

    def test_the_same_seed_gives_the_same_heads(
        self, run: Run, arguments: list[object], tmp_path: Path
    ) -> None:
        heads = []
        for name in ("first", "second"):
            ended = run(*arguments, "--family", "colbert", "--output", tmp_path / name)
            assert ended.status == 0, ended.err
            heads.append((tmp_path / name / "last" / "sourcier.safetensors").read_bytes())
        assert heads[0] == heads[1]

    def test_a_run_can_be_repeated_from_its_settings_alone(
        self, run: Run, arguments: list[object], tmp_path: Path
    ) -> None:
        """A head, dropout and the order of rows are drawn as they were."""
        from sourcier.models.checkpoints import load

        first = run(*arguments, "--family", "colbert", "--dimension", 8, "--dropout", 0.1)
        assert first.status == 0, first.err
        again = run("train", "--config", tmp_path / "run" / "config.yaml", "--output", tmp_path / "again")
        assert again.status == 0, again.err
        assert len({load(tmp_path / name / "last").fingerprint() for name in ("run", "again")}) == 1

    def test_a_stopped_run_goes_on_with_its_own_settings(
        self, run: Run, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    def test_what_neither_flag_nor_file_names_is_missing(self, run: Run, tmp_path: Path, name: str) -> None:
        given = {"base": "some", "data": "thing"}
        del given[name]
        flags = [part for flag, value in given.items() for part in (f"--{flag}", value)]
        ended = run("train", "--family", "dense", "--output", tmp_path / "run", *flags)
        assert (ended.status, f"--{name} is missing" in ended.err) == (2, True)

    def test_a_trained_model_can_be_trained_on(
        self, run: Run, arguments: list[object], tmp_path: Path
    ) -> None:
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
        self, run: Run, arguments: list[object], given: list[str], status: int, message: str
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
        self, run: Run, arguments: list[object], tmp_path: Path, content: str, message: str
    ) -> None:
        (tmp_path / "run.yaml").write_text(content)
        ended = run(*arguments, "--family", "dense", "--config", tmp_path / "run.yaml")
        assert ended.status == 1
        assert f"{tmp_path / 'run.yaml'}" in ended.err
        assert message in ended.err

    def test_help_shows_the_settings_of_the_family(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["train", "--family", "sparse_embed", "--help"])
        out = capsys.readouterr().out
        assert "--query-terms" in out
        assert "--learning-rate" in out
        assert "--flops-query" in out


def test_corpus_python_writes_a_collection(run: Run, tmp_path: Path) -> None:
    packages = ["--packages", "rich,jsonargparse,hypothesis", "--dev", "jsonargparse", "--test", "hypothesis"]
    written = run("corpus", "python", tmp_path / "docs", *packages, "--limit", 30, "--json").json
    assert written["packages"] == {"train": ["rich"], "dev": ["jsonargparse"], "test": ["hypothesis"]}
    assert sum(written["documents"].values()) == 30
    assert sourcier.read_beir(tmp_path / "docs", "test").queries


def test_module_and_status_reach_the_shell() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sourcier", "serch"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
