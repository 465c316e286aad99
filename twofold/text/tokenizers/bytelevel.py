"""Byte-level BPE (``tokenizer.ggml.model = gpt2``): every byte is a printable character, words merge by rank.

Method: Radford et al. 2019 (GPT-2), on Sennrich et al. 2016 (BPE).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Encoder

from twofold.core.errors import FormatError
from twofold.text.tokenizers.metadata import PREFIX, TokenType, Vocabulary
from twofold.text.tokenizers.pretokenizers import normalizer, pre_tokenizer, word_rule

CACHED_WORDS: Final = 4096
"""Words that an encoder remembers with their tokens: 33 MB at most, for it remembers none of more than 256 bytes."""


@cache
def character_bytes() -> Mapping[str, int]:
    """The byte of each character of a byte-level token.

    Printable bytes of Latin-1 are their own characters; the other 68 have the code points from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    pairs = {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
    return MappingProxyType(pairs)


def token_bytes(text: str) -> bytes:
    """The bytes of a byte-level token; a text with other characters is taken literally, as its UTF-8."""
    table = character_bytes()
    try:
        return bytes([table[character] for character in text])
    except KeyError:
        return text.encode()


def build_encoder(vocabulary: Vocabulary) -> Encoder:
    """An encoder for plain text. Control tokens are excluded, so plain text cannot become one.

    Raises FormatError for merges that do not fit the vocabulary, UnsupportedModelError for an unknown pre-tokenizer.
    """
    rule = word_rule(vocabulary.pre)
    known = vocabulary.ids_of(TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)
    ids = {vocabulary.texts[token]: token for token in known}
    encoder = Encoder(_bpe(ids, vocabulary, rule.whole_words))
    if (step := normalizer(rule)) is not None:
        encoder.normalizer = step
    encoder.pre_tokenizer = pre_tokenizer(rule)
    added = [vocabulary.texts[token] for token in vocabulary.ids_of(TokenType.USER_DEFINED)]
    encoder.add_tokens([AddedToken(text, normalized=False) for text in added])
    return encoder


def _bpe(ids: dict[str, int], vocabulary: Vocabulary, whole_words: bool) -> models.BPE:
    pairs = [merge.split(" ") for merge in vocabulary.merges]
    fit = (
        all(len(pair) == 2 for pair in pairs)
        and ids.keys() >= set(chain.from_iterable(pairs))
        and ids.keys() >= set(map("".join, pairs))
    )
    merges = [(left, right) for left, right in pairs] if fit else _usable(ids, vocabulary)
    return models.BPE(ids, merges, cache_capacity=CACHED_WORDS, ignore_merges=whole_words)


def _usable(ids: dict[str, int], vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges between tokens that plain text may become. Raises FormatError for one that names no token at all."""
    others = set(vocabulary.texts).difference(ids)
    usable = []
    for index, merge in enumerate(vocabulary.merges):
        left, _, right = merge.partition(" ")
        pieces = {left, right, left + right}
        if not left or not right or not pieces <= ids.keys() | others:
            raise FormatError(
                f"The tokenizer metadata {PREFIX + 'merges'!r} holds {merge!r} at {index}, which joins no two tokens.",
                hint="The file is corrupt, or was made by a faulty converter.",
            )
        if pieces.isdisjoint(others):
            usable.append((left, right))
    return usable
