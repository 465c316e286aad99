"""Log-probabilities in OpenAI's replies: token by token for chats, in four lists for completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.engine.outputs import Logprob, Logprobs, RequestOutput
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


def text_logprobs(tokens: Iterable[Position], start: int = 0) -> TextLogprobs:
    """Log-probabilities of a text; offsets count characters from ``start`` on."""
    names: list[str] = []
    chosen: list[float | None] = []
    best: list[dict[str, float] | None] = []
    offsets: list[int] = []
    end = start
    for text, token, position in tokens:
        names.append(text)
        chosen.append(None if position is None else _finite(position[token].logprob))
        best.append(None if position is None else _by_text(position))
        offsets.append(end)
        end += len(text)
    return TextLogprobs(names, chosen, best, offsets)


def sampled_positions(token_ids: Sequence[int], logprobs: Sequence[Logprobs] | None) -> list[Position]:
    pairs = zip(token_ids, logprobs or (), strict=False)
    return [(position[token].decoded_token, token, position) for token, position in pairs]


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that the reply repeats."""

    text: str
    tokens: list[Position]

    @classmethod
    def of(cls, output: RequestOutput, tokenizer: Tokenizer) -> Echo:
        ids = output.prompt_token_ids
        text = tokenizer.decode(ids, skip_special_tokens=False) if output.prompt is None else output.prompt
        tokens: list[Position] = []
        for token, position in zip(ids, output.prompt_logprobs or (), strict=False):
            shown = tokenizer.decode([token], skip_special_tokens=False, continuation=True)
            tokens.append((shown, token, position))
        return cls(text, tokens)


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
