"""A small byte-level BPE vocabulary with control tokens and a chat template, as GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tests.support.gguf_writer import MetadataItem
from twofold.core.tensors import ModelSource
from twofold.text.tokenizers.metadata import read_vocabulary
from twofold.text.tokenizers.tokenizer import Tokenizer

CONTROLS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NORMAL, CONTROL = 1, 3

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_WORDS: Final = (
    *("Ġt", "he", "Ġa", "in", "re", "on", "Ġthe", "er", "at", "or", "en", "Ġs", "es", "is", "it", "Ġw", "nd", "ou"),
    *("Ġc", "ing", "Ġo", "al", "ar", "Ġf", "ed", "Ġb", "Ġp", "an", "Ġin", "Ġand", "ion", "le", "Ġto", "ro", "st"),
    *("as", "ic", "Ġm", "ent", "om", "Ġd", "el", "il", "ve", "ct", "us", "ch", "Ġof", "am", "ly"),
)


def byte_letters() -> list[str]:
    """The printable letter that GPT-2's byte-level BPE writes for each byte, 0 … 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_token(letter: str) -> int:
    """The token of an ASCII letter in ``tokenizer_metadata``."""
    return len(CONTROLS) + byte_letters().index(letter)


def tokenizer_of(metadata: Mapping[str, object], **options: Any) -> Tokenizer:
    """The tokenizer that GGUF metadata describe; ``options`` are those of ``Tokenizer.of``."""
    return Tokenizer.of(read_vocabulary(ModelSource("gguf", metadata)), **options)


def tokenizer_metadata(vocab: int) -> dict[str, MetadataItem]:
    """A gpt2 tokenizer of exactly ``vocab`` tokens (259 or more): controls, bytes, merges, unused ones."""
    tokens = [*CONTROLS, *byte_letters()]
    merges = []
    for word in _WORDS:
        pair = _split(word, tokens)
        if pair and len(tokens) < vocab:
            merges.append(" ".join(pair))
            tokens.append(word)
    unused = vocab - len(tokens)
    tokens += [f"<|unused_{index}|>" for index in range(unused)]
    types = np.full(vocab, NORMAL, np.int32)
    types[: len(CONTROLS)] = CONTROL
    types[vocab - unused :] = CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _split(word: str, tokens: list[str]) -> tuple[str, str] | None:
    """Two known tokens that make the word."""
    known = set(tokens)
    for at in range(len(word) - 1, 0, -1):
        if word[:at] in known and word[at:] in known:
            return word[:at], word[at:]
    return None
