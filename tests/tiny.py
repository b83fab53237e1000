"""Tiny random models with tokenizers that know every ASCII word, saved as Hugging Face folders."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

#: Words that the tokenizers hold whole; any other word becomes letters.
_TEXT = """the a of and to in is for with on water ground spring well river lake rain search find read write train index
query document model vector term token score rank learn data file list array sort open close number text word page"""
WORDS = _TEXT.split()

#: Kinds with a masked-language head, which every family takes; the decoder kinds serve the dense family alone.
ENCODERS = ("bert", "distilbert", "roberta", "xlm_roberta", "mpnet", "electra", "modernbert")
DECODERS = ("llama", "qwen2")

#: Tokens that each kind has positions for.
POSITIONS = 256

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.1,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tiny_model(kind: str, folder: Path, *, head: bool = True, seed: int = 0, **settings: Any) -> Path:
    """Saves a random model of a kind with its tokenizer in `folder`, and gives the folder back.

    `head`: with the masked-language head, where the kind has one. `settings` override those of its configuration.
    """
    config_name, sizes, make_tokenizer = _KINDS[kind]
    tokenizer = make_tokenizer()
    config = getattr(transformers, f"{config_name}Config")(
        vocab_size=len(tokenizer),
        **{name: getattr(tokenizer, name) for name in _TOKEN_IDS if getattr(tokenizer, name) is not None},
        **(_SIZES | sizes | settings),
    )
    kind_of_model = transformers.AutoModelForMaskedLM if head and kind in ENCODERS else transformers.AutoModel
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind_of_model.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def word_piece() -> PreTrainedTokenizerFast:
    """Like BERT's: lower case, `[CLS] … [SEP]`, `[unused0]` in the vocabulary."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    unused = [f"[unused{number}]" for number in range(4)]
    letters = list(string.ascii_lowercase + string.digits)
    vocabulary = [*special, *unused, *letters, *("##" + letter for letter in letters), *string.punctuation]
    vocabulary += [word for word in WORDS if word not in vocabulary]
    tokenizer = Tokenizer(models.WordPiece(_numbered(vocabulary), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    _frame(tokenizer, "[CLS]", "[SEP]")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def bytes_framed() -> PreTrainedTokenizerFast:
    """Like RoBERTa's: bytes, `<s> … </s>`, the padding token at 1, no unused tokens."""
    tokenizer = _bytes(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], unknown="<unk>")
    _frame(tokenizer, "<s>", "</s>")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def pieces() -> PreTrainedTokenizerFast:
    """Like XLM-R's: a unigram model with `▁` for spaces, `<s> … </s>`, the padding token at 1."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    characters = ["▁", *string.ascii_letters, *string.digits, *string.punctuation]
    scored = [(token, 0.0) for token in special] + [(character, -8.0) for character in characters]
    scored += [("▁" + word, -4.0) for word in dict.fromkeys([*WORDS, *string.ascii_letters])]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _frame(tokenizer, "<s>", "</s>")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def bytes_opened() -> PreTrainedTokenizerFast:
    """Like Llama's: `<s> …`, no token for padding or masks."""
    tokenizer = _bytes(["<unk>", "<s>", "</s>"], unknown="<unk>")
    _frame(tokenizer, "<s>", "")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def bytes_bare() -> PreTrainedTokenizerFast:
    """Like Qwen's: no special tokens around a text, padded on the left."""
    tokenizer = _bytes(["<|endoftext|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )


def _numbered(vocabulary: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(vocabulary)}


def _bytes(special: list[str], unknown: str | None = None) -> Tokenizer:
    vocabulary = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(_numbered(vocabulary), [], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _frame(tokenizer: Tokenizer, opening: str, closing: str) -> None:
    """Has the tokenizer put special tokens around each text."""
    named = [(token, tokenizer.token_to_id(token)) for token in (opening, closing) if token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{opening} $A {closing}".strip(), special_tokens=named
    )


_OFFSET = {"max_position_embeddings": POSITIONS + 2}

_KINDS: dict[str, tuple[str, dict[str, Any], Callable[[], PreTrainedTokenizerFast]]] = {
    "bert": ("Bert", _NO_DROPOUT, word_piece),
    "distilbert": ("DistilBert", {"dropout": 0.0, "attention_dropout": 0.0}, word_piece),
    "roberta": ("Roberta", _NO_DROPOUT | _OFFSET, bytes_framed),
    "xlm_roberta": ("XLMRoberta", _NO_DROPOUT | _OFFSET, pieces),
    "mpnet": ("MPNet", _NO_DROPOUT | _OFFSET, bytes_framed),
    "electra": ("Electra", _NO_DROPOUT | {"embedding_size": 16}, word_piece),
    "modernbert": ("ModernBert", {"local_attention": 16}, bytes_framed),
    "llama": ("Llama", {"num_key_value_heads": 2}, bytes_opened),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2}, bytes_bare),
}
