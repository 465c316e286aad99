"""Prompts with a gap: which vocabularies have tokens for it, and how the prompt is put together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.core.errors import ParameterError
from twofold.text.tokenizers.tokenizer import Tokenizer

QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|file_sep|>")


def made(*controls: str, **more: Any) -> Tokenizer:
    """A tokenizer whose last tokens are these control tokens."""
    metadata = tokenizer_metadata(320)
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    tokens[-len(controls) or len(tokens) :] = controls
    return tokenizer_of({**metadata, **{f"tokenizer.ggml.{name}": value for name, value in more.items()}})


def test_the_gap_lies_behind_both_texts() -> None:
    tokenizer = made(*QWEN)
    ids = tokenizer.encode_infill("def f(", "):\n")
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"
    assert tokenizer.infill is not None
    assert {tokenizer.token_text(token) for token in tokenizer.infill.ends} == set(QWEN)


def test_bos_is_before_it() -> None:
    tokenizer = made(*QWEN, add_bos_token=True)
    assert tokenizer.encode_infill("a", "b")[:2] == [1, tokenizer.token_id("<|fim_prefix|>")]


def test_control_tokens_in_the_texts_are_text() -> None:
    tokenizer = made(*QWEN)
    ids = tokenizer.encode_infill("<|fim_middle|>", "<|im_end|>")
    assert sum(token in tokenizer.special_ids for token in ids) == 3


@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_the_file_may_name_the_tokens(names: tuple[str, ...]) -> None:
    tokenizer = made(**{f"{name}_token_id": 300 + index for index, name in enumerate(names)})
    assert tokenizer.infill is not None
    assert (tokenizer.infill.prefix, tokenizer.infill.suffix, tokenizer.infill.middle) == (300, 301, 302)


def test_a_vocabulary_without_them_refuses() -> None:
    for tokenizer in (made(), made(*QWEN[:2]), made(fim_pre_token_id=9999, fim_suf_token_id=1, fim_mid_token_id=2)):
        assert tokenizer.infill is None
        with pytest.raises(ParameterError, match="cannot fill in the middle"):
            tokenizer.encode_infill("a", "b")
