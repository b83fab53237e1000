"""What texts become before the backbone: prompts, markers, limits, odd texts, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tiny import DECODERS, ENCODERS, tiny_model

from sourcier.models.tokens import load_tokenizer, punctuation_ids
from sourcier.types import SourcierError

FAMILY_NAMES = ("dense", "splade", "sparse_embed", "colbert")


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("markers", [{}, {"query_marker": ". ", "document_marker": "[Document text]"}])
@pytest.mark.parametrize("kind", [*ENCODERS, "llama"])
def test_the_marker_is_one_token_at_position_1(build, kind, markers, side):
    expansion = {"query_expansion": 0} if kind == "llama" else {}
    model = build("colbert", kind, **expansion, **markers)
    tokenizer = model.tokenizer
    marker = getattr(model.config, f"{side}_marker")
    first, second = model.tokenize(["a", "b"], side)["input_ids"].tolist()
    assert tokenizer.encode(marker, add_special_tokens=False) == [first[1]]
    assert first[1] != tokenizer.unk_token_id
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert first[3:] == second[3:]


def test_the_sides_have_markers_of_their_own(build):
    model = build("colbert")
    query, document = (model.tokenize(["a"], side)["input_ids"][0, 1] for side in ("query", "document"))
    assert query != document


@pytest.mark.parametrize("kind", ENCODERS)
def test_truncation_keeps_marker_and_closing_token(build, kind):
    model = build("colbert", kind, document_length=10)
    short, long = model.tokens.rows(["a", "water " * 50], "document")
    assert len(long) == 10
    assert long[[0, 1, -1]].tolist() == short[[0, 1, -1]].tolist()


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_prompt_stands_before_the_text_of_its_side(build, family):
    plain, prompted = build(family), build(family, query_prompt="find ", document_prompt="page ")
    for side, prompt in (("query", "find "), ("document", "page ")):
        expected = plain.tokenize([prompt + "water"], side)["input_ids"]
        assert prompted.tokenize(["water"], side)["input_ids"].tolist() == expected.tolist()


def test_a_tokenizer_without_padding_token_pads_with_the_closing_one(build):
    model = build("dense", "llama")
    assert model.tokenizer.pad_token == model.tokenizer.eos_token


def test_a_text_without_any_token_gets_one(build):
    features = build("dense", "qwen2").tokenize(["", "a"], "query")
    assert features["attention_mask"].tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["a", None], "text 1 is None"), ([3], "text 0 is 3"), ("one text", "texts must be a list")],
)
def test_what_is_no_text_is_refused(build, texts, message):
    with pytest.raises(SourcierError, match=message):
        build("dense").tokenize(texts, "document")


def test_half_a_surrogate_pair_is_replaced(build):
    model = build("dense")
    halved, replaced = model.tokens.rows(["a \ud800 b", "a ? b"], "document")
    assert halved.tolist() == replaced.tolist()


@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_a_model_whose_tokenizer_is_not_there_is_refused(tmp_path, kind):
    """transformers 5 makes up a tokenizer that knows its special tokens alone."""
    folder = tiny_model(kind, tmp_path / kind)
    for file in (*folder.glob("*token*"), *folder.glob("vocab*"), *folder.glob("merges*")):
        file.unlink()
    with pytest.raises(SourcierError, match=r"its tokenizer (knows no words|cannot be loaded)") as refused:
        load_tokenizer(str(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm_roberta"])
def test_punctuation_is_found_however_the_tokenizer_writes_it(build, kind):
    tokenizer = build("dense", kind).tokenizer
    found = set(punctuation_ids(tokenizer))
    marks = set(tokenizer("., ! a.", add_special_tokens=False)["input_ids"])
    words = set(tokenizer("a water 1", add_special_tokens=False)["input_ids"])
    assert marks - words <= found
    assert not found & words


def test_lengths_that_special_tokens_fill_are_refused(build):
    with pytest.raises(SourcierError, match="query_length is 3"):
        build("colbert", query_length=3)


@pytest.mark.parametrize("kind", ["bert", *DECODERS])
def test_sixteen_threads_read_what_one_reads(build, kind):
    model = build("dense", kind, query_length=16, document_length=64)
    texts = ["water " * (number % 90) + "find" for number in range(200)]
    jobs = [(texts[start::16], side) for start in range(16) for side in ("query", "document")]
    alone = [model.tokens.rows(*job) for job in jobs]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda job: model.tokens.rows(*job), jobs))
    for rows, expected in zip(together, alone, strict=True):
        assert all(np.array_equal(row, other) for row, other in zip(rows, expected, strict=True))
