"""Tokens to text while they come: a character leaves as soon as it is whole, never in halves."""

from __future__ import annotations

import codecs

from twofold.text.tokenizers.tokenizer import Tokenizer


class StreamDetokenizer:
    """Turns one sequence's ids into text, step by step.

    All pushes and the flush together are ``tokenizer.decode`` of all ids with the same options. At most three bytes
    are held back.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_first_space and not continuation

    def push(self, token: int) -> str:
        """The text that ``token`` completes; often "" within a character of several tokens."""
        if token in self._skipped:
            return ""
        return self._shown(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def flush(self) -> str:
        """What was held back, at the end of the sequence: U+FFFD for a character that never became whole."""
        return self._shown(self._decoder.decode(b"", final=True))

    def _shown(self, text: str) -> str:
        if not self._strip or not text:
            return text
        self._strip = False
        return text.removeprefix(" ")
