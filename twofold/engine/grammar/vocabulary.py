"""A vocabulary for llguidance and the search for completions: the exact bytes of every token.

A vocabulary is made once for a model and does not change. A grammar matches the bytes of tokens, so a text may be cut
into tokens in any way; control tokens match only their own names in a Lark grammar.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from twofold.engine.grammar.form import WORD_BITS

I32: TypeAlias = NDArray[np.int32]

LONG_WORDS: Final = 64
COMMON_MERGES: Final = 96

_MARK: Final = "\n"
"""Never part of a longer token, so the text after it is encoded as in the middle of a text."""
_BRACKETS: Final = (b"{", b"[", b"(")
_CLOSERS: Final = "}])>\"'"
_OPENERS: Final = "{[(<\\"
_PUNCTUATION: Final = "".join(c for c in string.punctuation if c not in _CLOSERS + _OPENERS)
_QUOTES: Final = "\"'"
_READABLE: Final = " " + string.ascii_letters + '.,"' + string.digits + string.punctuation + "\n"
_SPACES: Final = " \n\t\r"
_LAST: Final = string.ascii_letters + _OPENERS + _SPACES


@dataclass(frozen=True, slots=True)
class Preferences:
    """Tokens that tend to bring a completion to its end, int32, best first.

    structure  inside a structure: closing characters first
    after      inside a structure, by the last token: tokens of its kind (digits, letters …) last, so that numbers and
               names end
    text       inside free text, where a closing brace is just a character: quotes first
    words      inside free text: quotes, then long words, then all other characters
    single     characters only, for a search that tries all of them
    marks      the tokens ``a`` and ``}``; if both are allowed, the text is free; empty if the vocabulary lacks one
    common     for free text near its limit: characters and the first merges
    """

    structure: I32
    after: Mapping[int, I32]
    text: I32
    words: I32
    single: I32
    marks: I32
    common: I32


class TokenSource(Protocol):
    """The part of a tokenizer that a vocabulary needs. A ``Tokenizer`` has it, and so has its copy in a host."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def special_ids(self) -> Collection[int]: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def strips_first_space(self) -> bool: ...
    def token_bytes(self, token: int, /) -> bytes: ...
    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]: ...


class TokenVocabulary:
    """A model's tokens in the form that llguidance reads. ``end_ids`` may end a completion once its form is complete.

    ``size`` is the number of logits of a row; ids that the tokenizer does not know are never allowed. ``words`` is the
    length of a mask, ``deepest`` the maximum number of brackets in one token.
    """

    def __init__(self, tokenizer: TokenSource, end_ids: Iterable[int], size: int) -> None:
        self.size = size
        self.words = -(-size // WORD_BITS)
        self.end_ids = tuple(sorted(end_ids))
        assert self.end_ids
        assert all(0 <= token < size for token in self.end_ids)
        self._tokenizer = tokenizer
        known = min(size, tokenizer.vocab_size)
        self.tokens = tuple(tokenizer.token_bytes(token) if token < known else b"" for token in range(size))
        self.matchable = LLTokenizer(TokenizerWrapper(_Source(self)), n_vocab=size, eos_token=list(self.end_ids))
        self.deepest = max((sum(map(data.count, _BRACKETS)) for _, data in self._plain()), default=1)
        self.preferences = _preferences(self._plain())
        self._single = {data[0]: token for token, data in self._plain() if len(data) == 1}
        self.order, self.columns = _columns(self._plain())
        """Plain tokens, longest first, and for each position the bytes there of those that are longer: what an
        ``Automaton`` walks over."""
        self.digit_bits = self.bits([token for token, data in self._plain() if data[:1].isdigit()])
        runs = sorted((-len(data), data[0]) for _, data in self._plain() if data.isascii() and len({*data}) == 1)
        self.runs = bytes(dict.fromkeys(byte for length, byte in runs if length < -1))
        """Bytes that long tokens repeat, best first."""
        self.place = np.zeros(size, dtype=np.int32)
        self.place[self.order] = np.arange(len(self.order))
        self.is_plain = np.zeros(size, dtype=np.bool_)
        self.is_plain[self.order] = True
        self.end_bits = np.zeros(self.words, dtype=np.uint32)
        set_bits(self.end_bits, np.asarray(self.end_ids, dtype=np.int32))

    @property
    def special_ids(self) -> list[int]:
        return sorted({token for token in self._tokenizer.special_ids if token < self.size} | set(self.end_ids))

    @property
    def start_id(self) -> int | None:
        return self._tokenizer.bos_id

    def encode(self, data: bytes) -> list[int]:
        """The tokenizer's tokens for ``data``, without the space that SentencePiece may add at the start."""
        text = data.decode(errors="replace")
        if not self._tokenizer.strips_first_space:
            return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        mark = self._tokenizer.encode(_MARK, add_special_tokens=False, parse_special=False)
        ids = self._tokenizer.encode(_MARK + text, add_special_tokens=False, parse_special=False)
        return ids[len(mark) :]

    def spell(self, data: bytes) -> list[int]:
        """Few tokens that spell the whole characters at the start of ``data``."""
        return self.matchable.greedy_tokenize(data.decode(errors="ignore"))

    def bits(self, ids: NDArray[np.int32] | list[int]) -> NDArray[np.uint32]:
        """The mask that allows some tokens."""
        flags = np.zeros(self.words * WORD_BITS, dtype=np.bool_)
        flags[ids] = True
        return np.packbits(flags, bitorder="little").view(np.uint32)

    def cut(self, data: bytes) -> list[int]:
        """Few tokens that spell ``data``, which may begin inside a character; empty if there are none."""
        begin = next((place for place, byte in enumerate(data) if byte & 0xC0 != 0x80), len(data))
        if any(byte not in self._single for byte in data[:begin]):
            return []
        return [*(self._single[byte] for byte in data[:begin]), *self.spell(data[begin:])]

    def _plain(self) -> Iterator[tuple[int, bytes]]:
        """Tokens that are ordinary text, with their bytes."""
        special = set(self.special_ids)
        return ((token, data) for token, data in enumerate(self.tokens) if data and token not in special)


class _Source:
    """A tokenizer with the attributes that llguidance's TokenizerWrapper reads."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = vocabulary.start_id
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self._encode = vocabulary.encode

    def __call__(self, data: bytes) -> list[int]:
        return self._encode(data)


def _columns(plain: Iterable[tuple[int, bytes]]) -> tuple[I32, list[NDArray[np.uint8]]]:
    known = sorted(plain, key=lambda token: -len(token[1]))
    lengths = np.array([len(data) for _, data in known])
    joined = np.frombuffer(b"".join(data for _, data in known), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    longest = int(lengths[0]) if known else 0
    columns = [joined[starts[: int((lengths > place).sum())] + place] for place in range(longest)]
    return np.array([token for token, _ in known], dtype=np.int32), columns


def set_bits(words: NDArray[np.uint32], ids: I32) -> None:
    """Sets the bits of tokens ``ids`` in a mask, in place."""
    np.bitwise_or.at(words, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))


def has_bits(words: NDArray[np.uint32], ids: I32) -> NDArray[np.uint32]:
    """1 for each of ``ids`` that a mask allows, 0 for the others."""
    bits: NDArray[np.uint32] = words[ids >> 5] >> (ids & 31).astype(np.uint32) & np.uint32(1)
    return bits


def allowed_ids(words: NDArray[np.uint32]) -> NDArray[np.intp]:
    """The tokens of a mask, ascending."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def _preferences(plain: Iterable[tuple[int, bytes]]) -> Preferences:
    single: dict[str, int] = {}
    words: list[tuple[int, int]] = []
    merged: list[int] = []
    for token, data in plain:
        if len(data) == 1 and data.isascii():
            single.setdefault(chr(data[0]), token)
        elif data.isascii():
            merged.append(token)
            if data.isalpha():
                words.append((-len(data), token))
    long = [token for _, token in sorted(words)[:LONG_WORDS]]

    def tokens_of(characters: str) -> list[int]:
        return [single[character] for character in characters if character in single]

    def order(*groups: str) -> I32:
        return np.array([*tokens_of("".join(groups)), *long, *tokens_of(_LAST)], dtype=np.int32)

    kinds = (string.digits, _PUNCTUATION, string.ascii_letters)
    after: dict[int, I32] = {}
    for kind in kinds:
        others = "".join(other for other in (*kinds, _SPACES, _OPENERS) if other != kind)
        last = np.array(tokens_of(_CLOSERS + others + kind), dtype=np.int32)
        after |= dict.fromkeys(tokens_of(kind), last)
    marks = tokens_of("a}")
    return Preferences(
        structure=order(_CLOSERS, string.digits, _PUNCTUATION),
        after=after,
        text=order(_QUOTES, _PUNCTUATION, string.digits, "}])>"),
        words=np.array([*tokens_of(_QUOTES), *long, *order(_PUNCTUATION, string.digits)], dtype=np.int32),
        single=np.array(tokens_of(_CLOSERS + string.digits + _PUNCTUATION + _LAST), dtype=np.int32),
        marks=np.array(marks if len(marks) == 2 else [], dtype=np.int32),
        common=np.array(list(dict.fromkeys([*tokens_of(_READABLE), *merged[:COMMON_MERGES]])), dtype=np.int32),
    )
