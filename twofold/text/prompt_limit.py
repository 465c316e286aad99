"""Whether a prompt fits a context, by a lower bound of its tokens that needs no tokenising.

Tokenising 2 MB takes seconds and hundreds of megabytes, and a text that cannot fit needs neither. For each byte
value b, a token has at most m(b) bytes b, so a text with c(b) of them has at least c(b) / m(b) tokens. The same is true
of all bytes and the length of the longest token. Bytes that do not always become part of a token do not count:

- those without a token in the vocabulary, because the encoder drops them or fuses a run of them into one token;
- white space, if control tokens include the white space after them;
- with NFC, what is not ASCII and the character before it, because both may be composed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.errors import ContextLengthError
from twofold.text.tokenizers import bytelevel, sentencepiece
from twofold.text.tokenizers.bytelevel import word_rule
from twofold.text.tokenizers.metadata import TokenType, Vocabulary

SHORT: Final = 1 << 16
"""Texts of up to this many characters are tokenised without the lower bound."""
PIECE: Final = 1 << 16
"""Bytes counted per call, which holds the interpreter lock."""
WHITE: Final = "".join(map(chr, (*range(9, 14), *range(28, 33), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B))))
WHITE_MORE: Final = "\u2028\u2029\u202f\u205f\u3000"


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The context in tokens, of which ``reserved`` (0 or 1) are reserved for the completion. ``text`` is what errors
    call the text, and ``remedy`` what helps beside shortening it."""

    context: int
    reserved: int = 1
    text: str = "prompt"
    remedy: str = "raise --max-model-len if the model allows it"

    @property
    def tokens(self) -> int:
        """Maximum tokens of a prompt."""
        return self.context - self.reserved

    def check(self, tokens: int, *, at_least: bool = False) -> None:
        """Raises ContextLengthError for too many tokens; with ``at_least``, ``tokens`` is a lower bound."""
        if tokens > self.tokens:
            raise ContextLengthError(
                f"The {self.text} has {'at least ' if at_least else ''}{tokens} tokens; "
                f"{'with one output token, ' if self.reserved else ''}it does not fit the context of {self.context}.",
                hint=f"Shorten the {self.text}, or {self.remedy}.",
                text=self.text,
                tokens=tokens,
                at_least=at_least,
                output=self.reserved,
                limit=self.context,
            )


class LowerBound:
    """A lower bound of the tokens of texts. ``eats_space``: some control tokens include following white space."""

    def __init__(self, vocabulary: Vocabulary, *, eats_space: bool) -> None:
        self._composes = vocabulary.model == "gpt2" and word_rule(vocabulary.pre).nfc
        counted = _counted(vocabulary)
        if eats_space:
            counted[list((WHITE + WHITE_MORE).encode())] = False
        self._counted = counted
        self._max_counts, self._longest = _max_bytes(vocabulary)

    def tokens(self, text: str) -> int:
        """The lower bound for ``text``. Raises UnicodeEncodeError for a lone surrogate."""
        counts = np.zeros(256, np.int64)
        raw = text.encode()
        for start in range(0, len(raw), PIECE):
            piece = np.frombuffer(raw, np.uint8, min(PIECE + 1, len(raw) - start), start)
            kept = piece[:-1][(piece[:-1] < 0x80) & (piece[1:] < 0x80)] if self._composes else piece[:PIECE]
            counts += np.bincount(kept, minlength=256)
        counts[~self._counted] = 0
        return int(max(np.ceil(counts / self._max_counts).max(), np.ceil(counts.sum() / self._longest)))


def _counted(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """bool [256]: which bytes of a text always become part of a token."""
    counted = np.zeros(256, np.bool_)
    if vocabulary.model == "gpt2":
        known = vocabulary.ids_of(TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)
        texts = {vocabulary.texts[token] for token in known}
        counted[[byte for character, byte in bytelevel.character_bytes().items() if character in texts]] = True
        return counted
    if len(vocabulary.ids_of(TokenType.BYTE)) == counted.size:
        counted[:] = True
        return counted
    texts = {vocabulary.texts[token] for token in vocabulary.ids_of(TokenType.NORMAL)}
    counted[[byte for byte in range(0x80) if chr(byte).replace(" ", sentencepiece.SPACE) in texts]] = True
    return counted


def _max_bytes(vocabulary: Vocabulary) -> tuple[NDArray[np.int64], int]:
    """int64 [256]: the maximum count of each byte value in one token, at least 1; and the longest token in bytes."""
    spellings: list[bytes] = []
    for text, kind in zip(vocabulary.texts, vocabulary.types.tolist(), strict=True):
        if vocabulary.model == "gpt2" and kind in (TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED):
            spellings.append(bytelevel.token_bytes(text))
        elif kind == TokenType.BYTE:
            spellings.append(b"?")  # any one byte
        else:
            spellings.append(text.encode())
            if sentencepiece.SPACE in text:
                spellings.append(text.replace(sentencepiece.SPACE, " ").encode())
    lengths = np.fromiter(map(len, spellings), np.int64, len(spellings))
    keys = np.repeat(np.arange(len(spellings)) * 256, lengths) + np.frombuffer(b"".join(spellings), np.uint8)
    found, times = np.unique(keys, return_counts=True)
    counts = np.ones(256, np.int64)
    np.maximum.at(counts, found % 256, times)
    return counts, max(1, int(lengths.max(initial=1)))
