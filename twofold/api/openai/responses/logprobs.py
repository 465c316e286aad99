"""Log-probabilities of the tokens that make a response's text: those of marks, thinking and calls are not told."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from twofold.api.openai.logprobs import chat_logprobs
from twofold.engine.outputs import CompletionOutput, OutputDelta
from twofold.text.tokenizers.tokenizer import Tokenizer

Entries: TypeAlias = Sequence[dict[str, Any]]
"""One for each token: its text, its bytes, its log-probability and the most likely ones in its place."""


def drawn_logprobs(drawn: CompletionOutput | OutputDelta, tokenizer: Tokenizer, top: int) -> Entries:
    """Of the tokens that were drawn, without the one that only ended the answer."""
    ended = drawn.finish_reason == "stop" and not isinstance(drawn.stop_reason, str)
    count = len(drawn.token_ids) - ended
    content: Entries = chat_logprobs(drawn.token_ids[:count], (drawn.logprobs or ())[:count], tokenizer, top)["content"]
    return content


def token_by_token(text: str, entries: Entries) -> Iterator[tuple[str, Entries]]:
    """A text cut where its tokens end, as a stream brings it. Where tokens and text do not agree, all come at once."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(bytes(entry["bytes"])) for entry in entries]
    if "".join(pieces) == text:
        yield from ((piece, [entry]) for piece, entry in zip(pieces, entries, strict=True))
    elif text or entries:
        yield text, entries


def last_of(entries: Entries, text: str) -> Entries:
    """The last entries, as many as it takes to make this text."""
    missing, first = len(text.encode()), len(entries)
    while missing > 0 and first > 0:
        first -= 1
        missing -= len(entries[first]["bytes"])
    return entries[first:]
