"""Log-probabilities in OpenAI's replies: token by token for chats, in four lists for completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Self, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.core.request import TextOrTokens
from twofold.engine.outputs import Logprob, Logprobs
from twofold.text.detokenize import StreamDetokenizer
from twofold.text.tokenizers.tokenizer import Tokenizer

MIN_LOGPROB: Final = -9999.0
"""JSON has no −∞; OpenAI writes this for it."""

Position = tuple[str, int, Logprobs | None]
"""A token's text and id, with the log-probabilities at its position; None for the first token of a prompt."""
NaturalLogarithm: TypeAlias = Annotated[float, Meta(le=0)]


class LikelyToken(ReplyObject, kw_only=True):
    """A token: its text, its natural log-probability and its bytes; its id if the request asks for its tokens."""

    token: str
    logprob: NaturalLogarithm
    bytes: Sequence[Annotated[int, Meta(ge=0, le=255)]]
    token_id: NonNegativeInt | UnsetType = UNSET


class ChatTokenLogprob(LikelyToken, kw_only=True):
    """A sampled token with the most likely tokens at its position."""

    top_logprobs: Sequence[LikelyToken]


class ChatLogprobs(ReplyObject):
    """Log-probabilities of a chat's completion."""

    content: Sequence[ChatTokenLogprob]
    refusal: None = None


class TextLogprobs(ReplyObject):
    """Log-probabilities of a text; each list has an entry for each token."""

    tokens: Sequence[str]
    token_logprobs: Sequence[NaturalLogarithm | None]
    top_logprobs: Sequence[dict[str, NaturalLogarithm] | None]
    text_offset: Sequence[NonNegativeInt]


def chat_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[Logprobs], tokenizer: Tokenizer, top: int, *, ids: bool = False
) -> list[ChatTokenLogprob]:
    """Log-probabilities of these tokens, with those of the ``top`` most likely ones at each position. ``ids``: with
    the ids of all of them."""
    content = []
    for token, position in zip(token_ids, logprobs, strict=True):
        likely = sorted(position.items(), key=lambda item: item[1].rank)[:top]
        best = [LikelyToken(**_entry(*item, tokenizer, ids=ids)) for item in likely]
        chosen = _entry(token, position[token], tokenizer, ids=ids)
        content.append(ChatTokenLogprob(**chosen, top_logprobs=best))
    return content


def text_logprobs(tokens: Sequence[Position], offsets: Sequence[int]) -> TextLogprobs:
    """Log-probabilities of a text, whose tokens begin at ``offsets``."""
    chosen = [None if position is None else _finite(position[token].logprob) for _, token, position in tokens]
    best = [None if position is None else _by_text(position) for _, _, position in tokens]
    return TextLogprobs([text for text, _, _ in tokens], chosen, best, offsets)


class TokenOffsets:
    """Where tokens begin in a text: in characters, from ``end`` on, or at 0 while that is below it. A token counts with
    the text that it adds, which is none for a special token that is skipped and for all but the last token of a
    character."""

    def __init__(self, tokenizer: Tokenizer, end: int = 0, *, skip_special_tokens: bool = True) -> None:
        self._detokenizer = StreamDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens, continuation=True)
        self._vocab = tokenizer.vocab_size
        self._end = end

    @classmethod
    def of_prompt(cls, token_ids: Sequence[int], text: str, tokenizer: Tokenizer) -> Self:
        """For the tokens of a prompt; what its tokenizer put before the text counts as nothing."""
        whole = tokenizer.decode(token_ids, skip_special_tokens=False, continuation=True)
        return cls(tokenizer, len(text) - len(whole), skip_special_tokens=False)

    def take(self, token_ids: Iterable[int]) -> list[int]:
        """The offsets of these tokens, which follow those before."""
        offsets = []
        for token in token_ids:
            offsets.append(max(0, self._end))
            self._end += len(self._detokenizer.push(token)) if token < self._vocab else 0
        return offsets


def sampled_positions(token_ids: Sequence[int], logprobs: Sequence[Logprobs] | None) -> list[Position]:
    pairs = zip(token_ids, logprobs or (), strict=False)
    return [(position[token].decoded_token, token, position) for token, position in pairs]


def prompt_text(given: TextOrTokens, tokenizer: Tokenizer) -> str:
    """The text of a prompt."""
    return given if isinstance(given, str) else tokenizer.decode(given, skip_special_tokens=False)


def prompt_positions(
    token_ids: Sequence[int], logprobs: Sequence[Logprobs | None], tokenizer: Tokenizer
) -> list[Position]:
    """Tokens of a prompt, as ``text_logprobs`` reads them."""
    return [
        (tokenizer.decode([token], skip_special_tokens=False, continuation=True), token, position)
        for token, position in zip(token_ids, logprobs, strict=True)
    ]


def _entry(token: int, entry: Logprob, tokenizer: Tokenizer, *, ids: bool) -> dict[str, Any]:
    """The fields of ``LikelyToken``."""
    raw = tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
    fields = {"token": entry.decoded_token, "logprob": _finite(entry.logprob), "bytes": list(raw)}
    return {**fields, "token_id": token} if ids else fields


def _by_text(position: Logprobs) -> dict[str, float]:
    """Log-probabilities by the tokens' text; of tokens that look the same, the first counts."""
    found: dict[str, float] = {}
    for entry in position.values():
        found.setdefault(entry.decoded_token, _finite(entry.logprob))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
