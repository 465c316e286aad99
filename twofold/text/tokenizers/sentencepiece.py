"""SentencePiece BPE (``tokenizer.ggml.model = llama``): pieces merge by score, ``▁`` is a space, bytes are fallback.

Method: Kudo & Richardson 2018. The encoder needs merge rules, but the file has scores; ``merges.py`` derives the rules.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Encoder

from twofold.core.errors import FormatError
from twofold.text.tokenizers.bytelevel import CACHED_WORDS
from twofold.text.tokenizers.merges import Pairs, cached_merges, derive_merges
from twofold.text.tokenizers.metadata import PREFIX, TokenType, Vocabulary

SPACE = "▁"


def token_bytes(text: str, kind: TokenType) -> bytes:
    """The bytes of a piece: ``<0x0A>`` of type BYTE is one byte, ``▁`` is a space except in control tokens."""
    if kind is TokenType.BYTE:
        return bytes([_byte_value(text)])
    return text.encode() if kind in {TokenType.CONTROL, TokenType.UNKNOWN} else text.replace(SPACE, " ").encode()


def build_encoder(vocabulary: Vocabulary, cache_dir: Path | None) -> Encoder:
    """An encoder for plain text. Control tokens are excluded, so plain text cannot become one.

    ``cache_dir`` caches the merge rules, which take most of the time for large vocabularies.
    """
    texts = vocabulary.texts
    for token in vocabulary.ids_of(TokenType.BYTE):
        _byte_value(texts[token])  # raises FormatError
    ids = {texts[token]: token for token in vocabulary.ids_of(TokenType.NORMAL, TokenType.BYTE)}
    unknown = _unknown_text(vocabulary, ids)
    added = {texts[token].replace(SPACE, " "): token for token in vocabulary.ids_of(TokenType.USER_DEFINED)}
    merges = _merges(vocabulary, cache_dir)
    bpe = models.BPE(
        ids | added, merges, cache_capacity=CACHED_WORDS, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    encoder = Encoder(bpe)
    prefix = vocabulary.add_space_prefix is not False
    steps = [normalizers.Prepend(SPACE)] if prefix else []
    encoder.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    encoder.add_tokens([AddedToken(text, normalized=False) for text in added])
    return encoder


def _merges(vocabulary: Vocabulary, cache_dir: Path | None) -> list[tuple[str, str]]:
    assert vocabulary.scores is not None
    normal = np.array(vocabulary.ids_of(TokenType.NORMAL), np.int64)
    best_first = normal[np.argsort(-vocabulary.scores[normal], kind="stable")]
    pieces = list(dict.fromkeys(vocabulary.texts[token] for token in best_first.tolist()))
    pairs: Pairs = derive_merges(pieces) if cache_dir is None else cached_merges(pieces, cache_dir)
    return [(pieces[left], pieces[right]) for left, right in pairs.tolist()]


def _unknown_text(vocabulary: Vocabulary, ids: dict[str, int]) -> str | None:
    """Text of the unknown token, entered into ``ids``: the encoder falls back to it for bytes without a token."""
    if vocabulary.unknown_id is None:
        return None
    text = vocabulary.texts[vocabulary.unknown_id]
    ids[text] = vocabulary.unknown_id
    return text


def _byte_value(text: str) -> int:
    """The byte that a token such as ``<0x0A>`` names. Raises FormatError for other texts."""
    digits = text[3:5]
    try:
        value = int(digits, 16)
    except ValueError:
        value = -1
    if text != f"<0x{value:02X}>":
        raise FormatError(
            f"The tokenizer metadata {PREFIX + 'tokens'!r} holds {text!r}, which is of type BYTE and names no byte.",
            hint="The file is corrupt, or was made by a faulty converter.",
        )
    return value
