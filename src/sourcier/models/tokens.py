"""Texts to token ids: prompts, markers, truncation, padding; the same for every tokenizer and from every thread.

Shapes: B texts of the batch, L padded tokens.
"""

from __future__ import annotations

import string
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from sourcier.types import Side, SourcierError

Features = dict[str, Tensor]
TokenRow = np.ndarray  # [tokens of one text] int64

# A tokenizer keeps its truncation as state and is not safe to call from two threads. One lock serves all tokenizers:
# unlike one in each object, it lets a model be copied.
_LOCK = threading.Lock()


class Tokens:
    """A tokenizer with what a side adds to a text: its prompt in front, its suffix behind, its marker at position 1,
    its length limit."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompts: Mapping[Side, str],
        lengths: Mapping[Side, int],
        suffixes: Mapping[Side, str] | None = None,
        markers: Mapping[Side, int] | None = None,
    ) -> None:
        """`lengths` counts special tokens and marker; `markers` are token ids, of the sides that have one."""
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.lengths = lengths
        self.suffixes = suffixes or {}
        self.markers = markers or {}
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        if tokenizer.pad_token_id is None:
            raise SourcierError("the tokenizer has no padding, closing or unknown token: set its pad_token")
        framing = tokenizer.num_special_tokens_to_add()
        for side, length in lengths.items():
            added = framing + (side in self.markers)
            if length <= added:
                raise SourcierError(
                    f"{side}_length is {length}, which special tokens alone fill: set {added + 1} or more"
                )

    def rows(self, texts: Sequence[str], side: Side) -> list[TokenRow]:
        """The token ids of each text. Truncation keeps marker and special tokens."""
        if isinstance(texts, str):
            raise SourcierError("texts must be a list of texts, not one text: put it into brackets")
        prompt, suffix = self.prompts[side], self.suffixes.get(side, "")
        prompted = [prompt + _valid(text, number) + suffix for number, text in enumerate(texts)]
        if not prompted:
            return []
        with _LOCK:
            found = self.tokenizer(
                prompted,
                truncation=True,
                max_length=self.lengths[side] - (side in self.markers),
                return_attention_mask=False,
                return_token_type_ids=False,
            )["input_ids"]
        return [self._complete(row, side) for row in found]

    def room(self, side: Side) -> int:
        """How many tokens of a text are read, besides prompt, suffix, marker and special tokens."""
        return self.lengths[side] - len(self.rows([""], side)[0])

    def starts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The characters at which the tokens of each text start, of whatever length it is, without prompt or marker."""
        if not texts:
            return []
        with _LOCK:
            found = self.tokenizer(
                [_valid(text, number) for number, text in enumerate(texts)],
                add_special_tokens=False,
                truncation=False,
                return_offsets_mapping=True,
                verbose=False,
            )["offset_mapping"]
        return [np.array([start for start, _ in row], dtype=np.int64) for row in found]

    def prompt_length(self, side: Side) -> int:
        """How many tokens a prompt and what stands before it take; 0 where the side has no prompt."""
        if not self.prompts[side]:
            return 0
        with _LOCK:
            row = self.tokenizer(self.prompts[side])["input_ids"]
        closed = bool(row) and row[-1] in self.tokenizer.all_special_ids
        return len(row) - closed + (side in self.markers)

    def pad(self, rows: Sequence[TokenRow]) -> Features:
        """`input_ids` and `attention_mask` [B, L], padded on the right to the longest row.

        On the right for decoders too: under causal attention no token then sees any padding.
        """
        length = max(len(row) for row in rows)
        ids = np.full((len(rows), length), self.tokenizer.pad_token_id, dtype=np.int64)
        mask = np.zeros((len(rows), length), dtype=np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}

    def _complete(self, row: Sequence[int], side: Side) -> TokenRow:
        if side in self.markers:
            return np.array([*row[:1], self.markers[side], *row[1:]], dtype=np.int64)
        # A tokenizer without special tokens makes nothing of an empty text; attention needs one token to look at.
        return np.array(row or [self.tokenizer.pad_token_id], dtype=np.int64)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or of a hub id."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise SourcierError(f"{source}: its tokenizer cannot be loaded: {first_line(error)}") from error
    # transformers 5 makes one of special tokens alone where there are no files, to which every word is unknown.
    if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
        raise SourcierError(
            f"{source}: its tokenizer knows no words: put the files of the tokenizer there (tokenizer.json or its like)"
        )
    return tokenizer


def punctuation_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of the tokens that are punctuation and nothing else, however the tokenizer writes them."""
    return sorted(
        number for token, number in tokenizer.get_vocab().items() if _is_punctuation(_without_affix(token))
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for an error of ours that holds one line."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _valid(text: str, number: int) -> str:
    """The text without halves of surrogate pairs, which no tokenizer takes."""
    if not isinstance(text, str):
        raise SourcierError(f"text {number} is {text!r}, which is not a text: give a string, '' for none")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _without_affix(token: str) -> str:
    """A token without what tokenizers put before it: `##` inside a word, `▁` or `Ġ` after a space."""
    return token[2:] if token.startswith("##") and len(token) > 2 else token.lstrip("▁Ġ")


def _is_punctuation(token: str) -> bool:
    return bool(token) and all(character in string.punctuation for character in token)
