"""A retriever with an encoder of the user's own, with BM25, and with models of all four families."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_model

from sourcier.encodings import DenseVectors
from sourcier.retrieval.retriever import Retriever
from sourcier.types import EMPTY_SCORE, DataError, Document, SourcierError

WORDS = ("water", "ground", "rain", "river")
CORPUS = [
    Document("ground", "water under the ground", title="Wells"),
    Document("empty", "..."),
    Document("rain", "rain rain", metadata={"lang": "en"}),
    Document("river", "the river"),
]


class Counter:
    """An encoder as a user may write one: how often each of four words stands in a text."""

    family = "dense"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def encode(
        self, texts: Sequence[str], side: str, *, batch_size: int = 32, progress: bool = False
    ) -> DenseVectors:
        self.seen.extend(texts)
        return DenseVectors(
            np.array([[text.split().count(word) for word in WORDS] for text in texts], dtype=np.float32)
        )


class Marked(Counter):
    """One that can be told apart."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def fingerprint(self) -> str:
        return self.mark


@pytest.fixture
def retriever(tmp_path: Path) -> Iterable[Retriever]:
    with Retriever.build(Counter(), CORPUS, tmp_path / "index") as built:
        yield built


def test_texts_find_documents(retriever: Retriever) -> None:
    hits = retriever.search(["rain", "the ground"], k=1)
    assert hits.ids.tolist() == [["rain"], ["ground"]]
    assert hits.scores.tolist() == [[2.0], [1.0]]
    assert hits.version == "000001"


def test_more_than_there_are_is_all_with_the_empty_last(retriever: Retriever) -> None:
    (hits,) = retriever.search(["rain"], k=10)
    assert [hit.id for hit in hits] == ["rain", "ground", "river", "empty"]
    assert hits[-1].score == EMPTY_SCORE


@pytest.mark.parametrize("query", ["", " ", "...", "\u200b"])
def test_an_empty_query_has_no_hits(retriever: Retriever, query: str) -> None:
    hits = retriever.search([query, "rain"], k=2)
    assert hits.counts.tolist() == [0, 2]


def test_only_texts_with_content_reach_the_encoder(tmp_path: Path) -> None:
    encoder = Counter()
    Retriever.build(encoder, CORPUS, tmp_path).search(["", "rain"])
    assert encoder.seen == ["Wells water under the ground", "rain rain", "the river", "rain"]


def test_no_queries(retriever: Retriever) -> None:
    assert retriever.search([], k=3).ids.shape == (0, 3)


def test_documents_come_with_the_hits(retriever: Retriever) -> None:
    (hits,) = retriever.search(["rain"], k=2, documents=True)
    assert [hit.document for hit in hits] == [CORPUS[2], CORPUS[0]]


def test_encoded_queries_need_no_encoder(retriever: Retriever) -> None:
    hits = retriever.search(DenseVectors(np.array([[0, 0, 0, 1]], dtype=np.float32)), k=1)
    assert hits.ids.tolist() == [["river"]]


def test_more_queries_than_are_searched_together(retriever: Retriever) -> None:
    hits = retriever.search(["rain", "river", ""] * 900, k=1)
    assert hits.ids[:, 0].tolist() == ["rain", "river", None] * 900


@pytest.mark.parametrize("k", [0, -1, "3", None])
def test_k_must_be_positive(retriever: Retriever, k: Any) -> None:
    with pytest.raises(ValueError, match="k must be"):
        retriever.search([], k=k)


def test_one_text_alone_is_refused(retriever: Retriever) -> None:
    with pytest.raises(TypeError, match="put a single one into a list"):
        retriever.search("rain")


def test_a_query_that_is_no_text_is_named(retriever: Retriever) -> None:
    with pytest.raises(TypeError, match="query 1 is None"):
        retriever.search(["rain", None])  # type: ignore[list-item]


def test_submitted_queries_are_answered_later(retriever: Retriever) -> None:
    futures = [retriever.submit([word], k=1) for word in ("rain", "river")]
    assert [future.result(30).ids.tolist() for future in futures] == [[["rain"]], [["river"]]]


def test_a_bad_submission_fails_alone(retriever: Retriever) -> None:
    bad, good = retriever.submit([None]), retriever.submit(["rain"], k=1)  # type: ignore[list-item]
    assert good.result(30).ids.tolist() == [["rain"]]
    with pytest.raises(TypeError):
        bad.result(30)


def test_closing_finishes_what_was_submitted(retriever: Retriever) -> None:
    future = retriever.submit(["rain"], k=1)
    retriever.close()
    assert future.done()
    with pytest.raises(SourcierError, match="closed"):
        retriever.search(["rain"])
    with pytest.raises(SourcierError, match="closed"):
        retriever.submit(["rain"])


def test_many_threads_get_what_one_gets(tmp_path: Path) -> None:
    corpus = [Document(f"d{number}", f"rain {'water ' * (number % 7)}") for number in range(200)]
    retriever = Retriever.build(Counter(), corpus, tmp_path)
    queries = [["water"], ["rain water"], ["rain", "water water"]]
    expected = [retriever.search(query, k=9).ids.tolist() for query in queries]
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(40):
            one = (number + turn) % len(queries)
            found = retriever.search(queries[one], k=9).ids.tolist()
            if found != expected[one]:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_chunk_of_documents_is_encoded_at_a_time(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Sizes(Counter):
        def encode(self, texts: Sequence[str], side: str, **options: Any) -> DenseVectors:
            sizes.append(len(texts))
            return super().encode(texts, side, **options)

    Retriever.build(Sizes(), (Document(str(n), "rain") for n in range(100)), tmp_path, chunk=32)
    assert sizes == [32, 32, 32, 4]


def test_a_text_of_none_is_named_with_its_row(tmp_path: Path) -> None:
    corpus = [Document("a", "rain"), Document("b", None)]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="row 1 of the corpus: the text of document 'b' is None"):
        Retriever.build(Counter(), corpus, tmp_path)


def test_a_duplicate_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a' came before"):
        Retriever.build(Counter(), [Document("a", "rain"), Document("a", "river")], tmp_path)


def test_a_failed_build_keeps_the_index_that_was_there(tmp_path: Path) -> None:
    Retriever.build(Counter(), CORPUS, tmp_path)
    with pytest.raises(DataError):
        Retriever.build(Counter(), [CORPUS[0], CORPUS[0]], tmp_path)
    assert Retriever.open(tmp_path, model=Counter()).search(["rain"], k=1).version == "000001"


def test_a_corpus_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="no documents"):
        Retriever.build(Counter(), [], tmp_path)


def test_an_encoder_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    Retriever.build(Counter(), CORPUS, tmp_path)
    with pytest.raises(SourcierError, match="Counter that built this index is not kept"):
        Retriever.open(tmp_path)
    assert Retriever.open(tmp_path, model=Counter()).search(["rain"], k=1).ids.tolist() == [["rain"]]


def test_another_model_is_refused_with_both_names(tmp_path: Path) -> None:
    Retriever.build(Marked("0123456789"), CORPUS, tmp_path)
    with pytest.raises(SourcierError, match=r"Marked \(dense, 0123456789\).*Marked \(dense, 9876543210\)"):
        Retriever.open(tmp_path, model=Marked("9876543210"))
    with pytest.raises(SourcierError, match=r"Counter \(dense, without a fingerprint\)"):
        Retriever.open(tmp_path, model=Counter())
    assert Retriever.open(tmp_path, model=Marked("0123456789")).search(["rain"], k=1).counts.tolist() == [1]


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    encoder = Counter()
    encoder.family = "densse"
    with pytest.raises(SourcierError, match="did you mean 'dense'"):
        Retriever.build(encoder, CORPUS, tmp_path)


def test_a_kind_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match=r"'bm25'.*'dense'"):
        Retriever.build(Counter(), CORPUS, tmp_path, kind="bm25")


def test_without_a_model_the_kind_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(SourcierError, match="kind='bm25'"):
        Retriever.build(None, CORPUS, tmp_path)


def test_progress_tells_the_rate_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Retriever.build(Counter(), [*CORPUS], tmp_path, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4/4" in captured.err


def test_bm25_needs_no_model_and_no_torch(tmp_path: Path) -> None:
    script = """
        import sys
        from sourcier.retrieval.retriever import Retriever
        from sourcier.types import Document
        Retriever.build(None, [Document("a", "water"), Document("b", "rain")], sys.argv[1], kind="bm25").close()
        with Retriever.open(sys.argv[1]) as retriever:
            print(retriever.encoder, retriever.search(["rain"], k=1).ids.tolist(), "torch" in sys.modules)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    output = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.stdout.strip() == "None [['b']] False"


def test_bm25_takes_no_model(tmp_path: Path) -> None:
    Retriever.build(None, CORPUS, tmp_path, kind="bm25")
    with pytest.raises(SourcierError, match="takes no model"):
        Retriever.open(tmp_path, model=Counter())


@pytest.mark.parametrize("family", ["Dense", "Splade", "SparseEmbed", "ColBERT"])
def test_an_index_holds_its_model_and_can_be_moved(family: str, tmp_path: Path) -> None:
    import sourcier

    model = getattr(sourcier, family).from_base(tiny_model("bert", tmp_path / "base"))
    model.save_pretrained(tmp_path / "model")
    corpus = [Document(word, f"{word} in the text") for word in ("water", "ground", "search", "index")]
    built = Retriever.build(str(tmp_path / "model"), corpus, tmp_path / "built")
    queries = ["water", "find the index", ""]
    expected = built.search(queries, k=10)
    shutil.move(tmp_path / "built", tmp_path / "moved")
    shutil.rmtree(tmp_path / "model")
    opened = Retriever.open(tmp_path / "moved")
    hits = opened.search(queries, k=10)
    assert hits.ids.tolist() == expected.ids.tolist()
    assert hits.scores.tolist() == expected.scores.tolist()
    assert hits.counts.tolist() == [4, 4, 0]


def test_a_model_that_is_left_out_must_be_given(tmp_path: Path) -> None:
    import sourcier

    model = sourcier.Dense.from_base(tiny_model("bert", tmp_path / "base"))
    Retriever.build(model, CORPUS, tmp_path / "index", save_model=False)
    assert not (tmp_path / "index" / "models").exists()
    with pytest.raises(SourcierError, match="give it as model="):
        Retriever.open(tmp_path / "index")
    assert len(Retriever.open(tmp_path / "index", model=model).search(["water"])) == 1


def test_the_model_is_loaded_at_the_first_text(tmp_path: Path) -> None:
    import sourcier

    model = sourcier.Dense.from_base(tiny_model("bert", tmp_path / "base"))
    Retriever.build(model, CORPUS, tmp_path / "index")
    opened = Retriever.open(tmp_path / "index")
    vector = model.encode(["water"], "query")
    (folder,) = (tmp_path / "index" / "models").iterdir()
    hidden = folder.rename(folder.with_name("hidden"))
    assert opened.search(vector, k=1).counts.tolist() == [1]
    hidden.rename(folder)
    assert opened.search(["water"], k=1).ids.tolist() == opened.search(vector, k=1).ids.tolist()


def test_a_second_build_with_the_same_model_shares_it(tmp_path: Path) -> None:
    import sourcier

    model = sourcier.Dense.from_base(tiny_model("bert", tmp_path / "base"))
    for _ in range(2):
        Retriever.build(model, CORPUS, tmp_path / "index")
    assert len(list((tmp_path / "index" / "models").iterdir())) == 1
    assert Retriever.open(tmp_path / "index").search(["water"], k=1).version == "000002"


#: Texts without content, among documents that have some. (Hazard E5.)
GAPS = [
    Document("nothing", ""),
    Document("water", "water in the ground"),
    Document("space", " "),
    Document("dots", "..."),
    Document("rain", "rain on the lake"),
    Document("invisible", "\u200b"),
    Document("sort", "sort the array"),
]
EMPTY_IDS = ["nothing", "space", "dots", "invisible"]


@pytest.fixture(scope="module", params=["BM25", "Dense", "ColBERT", "Splade", "SparseEmbed"])
def kind_and_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For each kind of index its model, which decides the kind; BM25 has none."""
    import sourcier

    if request.param == "BM25":
        return "bm25", None
    base = tiny_model("bert", tmp_path_factory.mktemp("base"))
    return None, getattr(sourcier, request.param).from_base(base)


def test_documents_without_content_keep_their_ids_and_come_last(kind_and_model: Any, tmp_path: Path) -> None:
    kind, model = kind_and_model
    documents = {document.id: document for document in GAPS}
    with Retriever.build(model, GAPS, tmp_path, kind=kind, save_model=False) as retriever:
        hits = retriever.search(["water in the ground", "sort the array"], k=10, documents=True)
    for row in hits:
        found = [hit.id for hit in row]
        assert sorted(found[:3]) == ["rain", "sort", "water"]
        assert found[3:] == EMPTY_IDS
        assert [hit.document for hit in row] == [documents[identifier] for identifier in found]
    assert np.isfinite(hits.scores).all()
    assert (hits.scores[:, 3:] == np.float32(EMPTY_SCORE)).all()


def test_queries_without_content_have_no_hits_beside_one_that_has(
    kind_and_model: Any, tmp_path: Path
) -> None:
    kind, model = kind_and_model
    with Retriever.build(model, GAPS, tmp_path, kind=kind, save_model=False) as retriever:
        hits = retriever.search(["", " ", "rain on the lake", "...", "\u200b"], k=2)
        with pytest.raises(TypeError, match="query 1 is None"):
            retriever.search(["rain", None])  # type: ignore[list-item]
    assert hits.counts.tolist() == [0, 0, 2, 0, 0]


def test_a_document_without_text_is_refused_with_its_row(kind_and_model: Any, tmp_path: Path) -> None:
    kind, model = kind_and_model
    corpus = [*GAPS, Document("none", None)]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="row 7 of the corpus: the text of document 'none' is None"):
        Retriever.build(model, corpus, tmp_path, kind=kind, save_model=False)


def test_ten_of_four_are_four(kind_and_model: Any, tmp_path: Path) -> None:
    """Exactly four, each once, and no depth below 1. (Hazard E6.)"""
    kind, model = kind_and_model
    with Retriever.build(model, GAPS[:4], tmp_path, kind=kind, save_model=False) as retriever:
        hits = retriever.search(["water", "sort the array"], k=10)
        assert [sorted(row) for row in hits.ids.tolist()] == [["dots", "nothing", "space", "water"]] * 2
        for k in (0, -1):
            with pytest.raises(ValueError, match="k must be"):
                retriever.search(["water"], k=k)
