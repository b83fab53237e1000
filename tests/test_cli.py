"""The command line: what it prints where, how it ends, and the way from data to figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import DOCUMENTS, Ended, Run

import sourcier
from sourcier.cli import entry, main
from sourcier.cli.command import Command, Output, WrongUse, count, names
from sourcier.types import SourcierError


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
