"""Plain text to token ids, in bounded memory."""

from __future__ import annotations

from typing import Final

from tokenizers import Encoding
from tokenizers import Tokenizer as Encoder

WINDOW: Final = 1 << 16
"""Characters that are tokenised at once: the package takes some 500 bytes for each token of a text."""
GROWTH: Final = 4
"""A window without a place to cut grows by this factor."""
MARGIN: Final = 16
"""Words at the end of a window among which it is not cut: the whole text may have other words there (at most two)."""
MAX_SEARCHED: Final = 8192
"""Tokens at the end of a window that are searched for a place to cut."""
FIRST_COMBINING: Final = "\u0300"
"""No character below it is composed with the character before it."""


class PlainEncoder:
    """Tokenises text without looking for control tokens; safe to share among threads.

    A text of more than ``window`` characters is tokenised in windows. A window ends where a word begins: no merge
    crosses that place, and the patterns that cut words look at nothing before it. So the ids are those of the text
    as a whole. A vocabulary without a word pattern (SentencePiece) has one word for each text, which is not cut.
    """

    def __init__(self, encoder: Encoder, window: int = WINDOW) -> None:
        self._encoder = encoder
        self._window = window
        added = encoder.get_added_tokens_decoder().values()
        self._longest_added = max((len(token.content) for token in added), default=0)

    @classmethod
    def from_description(cls, description: str) -> PlainEncoder:
        """The encoder with this ``description``, which another process may have made."""
        return cls(Encoder.from_str(description))

    @property
    def description(self) -> str:
        """The encoder as JSON, about as large as the vocabulary."""
        return self._encoder.to_str()

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``. Raises TypeError for a lone surrogate."""
        ids: list[int] = []
        start, size = 0, self._window
        cuts = self._encoder.pre_tokenizer is not None
        while cuts and len(text) - start > size:
            window = text[start : start + size]
            (encoding,) = self._encoder.encode_batch([window], add_special_tokens=False)
            tokens, characters = self._last_cut(encoding, window)
            ids += encoding.ids[:tokens]
            start += characters
            size = self._window if tokens else size * GROWTH
        (encoding,) = self._encoder.encode_batch_fast([text[start:]], add_special_tokens=False)
        return ids + encoding.ids if ids else encoding.ids

    def _last_cut(self, encoding: Encoding, window: str) -> tuple[int, int]:
        """Tokens and characters of a window before the last place where the whole text can be cut; (0, 0) if there is
        none."""
        words = 0
        for token in range(len(encoding) - 1, max(0, len(encoding) - MAX_SEARCHED), -1):
            if encoding.token_to_word(token) == encoding.token_to_word(token - 1):
                continue
            words += 1
            place = encoding.token_to_chars(token)
            if place is None or words <= MARGIN or len(window) - place[0] <= self._longest_added:
                continue
            if window[place[0]] < FIRST_COMBINING:
                return token, place[0]
        return 0, 0
