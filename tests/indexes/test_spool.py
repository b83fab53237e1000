"""An unfinished build goes on where it was, ends as one that was never stopped, and refuses to become another one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourcier.encodings import DenseVectors
from sourcier.indexes import changes, collect_garbage, create, open_version
from sourcier.indexes.spool import Spool
from sourcier.retrieval.retriever import Retriever
from sourcier.types import Document, SourcierError

CORPUS = [Document(f"d{number}", "rain " * (number % 7 + 1), metadata={"n": number}) for number in range(50)]


class Lengths:
    """An encoder whose vectors are made from the length of a text; it fails once after some texts."""

    family = "dense"

    def __init__(self, limit: int = 10**9) -> None:
        self.encoded: list[str] = []
        self.limit = limit

    def encode(
        self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False
    ) -> DenseVectors:
        if len(self.encoded) + len(texts) > self.limit:
            raise KeyboardInterrupt
        self.encoded += texts
        return DenseVectors(np.array([[len(text), 1] for text in texts], dtype=np.float32))


def build(folder: Path, encoder: Lengths, corpus: Sequence[Document] = CORPUS, **options: Any) -> None:
    Retriever.build(encoder, corpus, folder, chunk=options.pop("chunk", 10), **options).close()


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A build that was interrupted after three chunks of five."""
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "index", Lengths(limit=35))
    return tmp_path / "index"


MORE = [Document(f"m{number}", "water") for number in range(30)]


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index to which `MORE` was added, with the chunks that a kill after the commit leaves behind."""
    build(tmp_path, Lengths(), CORPUS[:20])
    monkeypatch.setattr(Spool, "remove", lambda self: None)
    Retriever.open(tmp_path, model=Lengths()).add(MORE, chunk=10)
    monkeypatch.undo()
    assert (tmp_path / "building" / "chunk-000002").is_dir()
    return tmp_path


@pytest.fixture
def uncommitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index to which `MORE` was to be added when the process was stopped right before the commit."""
    build(tmp_path, Lengths(), CORPUS[:20])

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sourcier.indexes.directory.replace_text", stop)
    with pytest.raises(KeyboardInterrupt):
        Retriever.open(tmp_path, model=Lengths()).add(MORE, chunk=10)
    monkeypatch.undo()
    assert (tmp_path / "building" / "finished").is_file()
    return tmp_path


def test_a_resumed_build_ends_as_one_that_was_not_stopped(stopped: Path, tmp_path: Path) -> None:
    encoder = Lengths()
    build(stopped, encoder, resume=True)
    build(tmp_path / "straight", Lengths())
    assert len(encoder.encoded) == 20
    assert files(stopped) == files(tmp_path / "straight")


def test_without_resume_a_build_begins_anew(stopped: Path) -> None:
    encoder = Lengths()
    build(stopped, encoder)
    assert len(encoder.encoded) == 50


def test_resuming_what_was_never_begun_is_a_build(tmp_path: Path) -> None:
    build(tmp_path, Lengths(), resume=True)
    assert open_version(tmp_path).manifest.documents == 50


def test_chunks_are_gone_when_the_index_is_there(tmp_path: Path) -> None:
    build(tmp_path, Lengths())
    assert not (tmp_path / "building").exists()


def test_other_settings_cannot_go_on(stopped: Path) -> None:
    with pytest.raises(
        SourcierError, match=r"plan\.json: the unfinished build has chunk 10, and this one 20"
    ):
        build(stopped, Lengths(), chunk=20, resume=True)


def test_another_model_cannot_go_on(stopped: Path) -> None:
    class Others(Lengths):
        pass

    with pytest.raises(SourcierError, match=r"has model .*Lengths.*, and this one .*Others"):
        build(stopped, Others(), resume=True)


def test_another_corpus_cannot_go_on(stopped: Path) -> None:
    corpus = [*CORPUS[:14], Document("other", "rain"), *CORPUS[15:]]
    with pytest.raises(
        SourcierError, match="row 14: the unfinished build has 'd14' there and the corpus has 'other'"
    ):
        build(stopped, Lengths(), corpus, resume=True)


def test_what_other_texts_have_the_same_ids_is_encoded_again(stopped: Path, tmp_path: Path) -> None:
    corpus = [*CORPUS[:14], Document("d14", "snow", metadata={"n": 14}), *CORPUS[15:]]
    encoder = Lengths()
    build(stopped, encoder, corpus, resume=True)
    build(tmp_path / "straight", Lengths(), corpus)
    assert len(encoder.encoded) == 30
    assert files(stopped) == files(tmp_path / "straight")


@pytest.mark.parametrize("change", [{"title": "weather"}, {"metadata": {"n": -1}}])
def test_what_is_kept_of_a_document_can_have_changed_too(stopped: Path, change: dict[str, Any]) -> None:
    changed = replace(CORPUS[3], **change)
    build(stopped, Lengths(), [*CORPUS[:3], changed, *CORPUS[4:]], resume=True)
    with Retriever.open(stopped, model=Lengths()) as retriever:
        assert retriever.documents is not None
        assert list(retriever.documents)[3] == changed


def test_a_corpus_that_became_shorter_ends_where_it_ends(stopped: Path) -> None:
    build(stopped, Lengths(), CORPUS[:20], resume=True)
    assert open_version(stopped).manifest.documents == 20


@pytest.mark.parametrize("name", ["about.json", "content.npy", "vectors.npy", "documents.arrow"])
@pytest.mark.parametrize("size", [None, 0, 100])
def test_a_chunk_that_is_not_whole_is_made_again(
    stopped: Path, tmp_path: Path, name: str, size: int | None
) -> None:
    path = stopped / "building" / "chunk-000001" / name
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    encoder = Lengths()
    build(stopped, encoder, resume=True)
    build(tmp_path / "straight", Lengths())
    assert len(encoder.encoded) == 30
    assert files(stopped) == files(tmp_path / "straight")


@pytest.mark.parametrize("text", [None, "", '{"kind": '])
def test_without_its_plan_a_build_begins_anew(stopped: Path, text: str | None) -> None:
    plan = stopped / "building" / "plan.json"
    if text is None:
        plan.unlink()
    else:
        plan.write_text(text)
    encoder = Lengths()
    build(stopped, encoder, resume=True)
    assert len(encoder.encoded) == 50


def test_a_refused_resume_loses_nothing(stopped: Path) -> None:
    with pytest.raises(SourcierError):
        build(stopped, Lengths(), chunk=20, resume=True)
    encoder = Lengths()
    build(stopped, encoder, resume=True)
    assert len(encoder.encoded) == 20


def test_a_bad_row_late_in_the_corpus_costs_no_encoding(tmp_path: Path) -> None:
    """The corpus is mended, and the build goes on."""
    with pytest.raises(SourcierError, match="row 45"):
        build(tmp_path, Lengths(), [*CORPUS[:45], Document("x", None), *CORPUS[46:]])  # type: ignore[arg-type]
    encoder = Lengths()
    build(tmp_path, encoder, resume=True)
    assert len(encoder.encoded) == 10


def test_adding_can_go_on_too(tmp_path: Path) -> None:
    build(tmp_path, Lengths(), CORPUS[:20])
    with pytest.raises(KeyboardInterrupt):
        Retriever.open(tmp_path, model=Lengths(limit=15)).add(MORE, chunk=10)
    encoder = Lengths()
    grown = Retriever.open(tmp_path, model=encoder).add(MORE, chunk=10, resume=True)
    assert (len(encoder.encoded), len(grown.index)) == (20, 50)


def test_adding_goes_on_though_the_index_changed_meanwhile(tmp_path: Path) -> None:
    build(tmp_path, Lengths(), CORPUS[:20])
    with pytest.raises(KeyboardInterrupt):
        Retriever.open(tmp_path, model=Lengths(limit=15)).add(MORE, chunk=10)
    changes.delete(tmp_path, ["d3"])
    encoder = Lengths()
    grown = Retriever.open(tmp_path, model=encoder).add(MORE, chunk=10, resume=True)
    assert (len(encoder.encoded), len(grown.index)) == (20, 49)


def test_going_on_with_what_was_committed_encodes_nothing_and_changes_no_document(spare: Path) -> None:
    encoder = Lengths()
    grown = Retriever.open(spare, model=encoder).add(MORE, chunk=10, resume=True)
    assert (len(encoder.encoded), len(grown.index)) == (0, 50)
    assert not (spare / "building").exists()


def test_what_is_left_of_a_committed_build_stands_in_the_way_of_no_other_documents(spare: Path) -> None:
    encoder = Lengths()
    others = [*MORE[:10], *(Document(f"o{number}", "water") for number in range(15))]
    grown = Retriever.open(spare, model=encoder).add(others, chunk=10, resume=True)
    assert (len(encoder.encoded), len(grown.index)) == (15, 65)


def test_what_is_left_of_a_committed_build_stands_in_the_way_of_no_other_plan(spare: Path) -> None:
    encoder = Lengths()
    build(spare, encoder, resume=True)
    assert (len(encoder.encoded), open_version(spare).manifest.documents) == (50, 50)


def test_what_is_left_of_a_committed_build_is_not_taken_without_texts_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of the same ids may have been made anew."""
    monkeypatch.setattr(Spool, "remove", lambda self: None)
    with create("dense", tmp_path) as writer:
        writer.add(["a"], DenseVectors(np.ones((1, 2), dtype=np.float32)))
        writer.finish()
    monkeypatch.undo()
    with create("dense", tmp_path, resume=True) as writer:
        assert not writer.take(["a"])


def test_collecting_garbage_removes_what_is_left_of_a_committed_build(spare: Path) -> None:
    assert collect_garbage(spare) > 0
    assert not (spare / "building").exists()


def test_chunks_of_a_build_that_was_stopped_before_its_commit_are_kept_for_it_alone(
    uncommitted: Path,
) -> None:
    """The next version has the number that it was to have."""
    assert changes.delete(uncommitted, ["d3"]).version == "000002"
    collect_garbage(uncommitted)
    encoder = Lengths()
    with pytest.raises(SourcierError, match="the unfinished build has extends True"):
        build(uncommitted, encoder, resume=True)
    grown = Retriever.open(uncommitted, model=encoder).add(MORE, chunk=10, resume=True)
    assert (len(encoder.encoded), len(grown.index)) == (0, 49)
