"""Anthropic's message as a reply: its blocks, why it ended, and the tokens used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject
from twofold.api.completion import CacheUsage, reasoning_tokens
from twofold.core.request import TTL_SECONDS
from twofold.engine.outputs import RequestOutput

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
MessageTier: TypeAlias = Literal["standard", "priority", "batch"]
TIERS: Final[dict[str | None, MessageTier]] = {"priority": "priority", "batch": "batch"}
"""Anthropic's names of tiers; all others are "standard"."""


class TextReplyBlock(ReplyObject, kw_only=True):
    """Text of the completion."""

    type: Literal["text"] = "text"
    text: str = ""


class ThinkingReplyBlock(ReplyObject, kw_only=True):
    """A thinking section; it is signed at its end."""

    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    signature: Literal["", "unsigned"] = ""


class ToolUseReplyBlock(ReplyObject, kw_only=True):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


ReplyBlock: TypeAlias = TextReplyBlock | ThinkingReplyBlock | ToolUseReplyBlock


class CacheCreation(ReplyObject):
    """Prompt tokens that were written to the cache, by their time to live."""

    ephemeral_5m_input_tokens: NonNegativeInt
    ephemeral_1h_input_tokens: NonNegativeInt


class ThinkingTokens(ReplyObject):
    """Output tokens of thinking sections."""

    thinking_tokens: NonNegativeInt


class MessageUsage(ReplyObject, kw_only=True):
    """Tokens of the prompt, in three parts that do not overlap, and of the completion."""

    input_tokens: NonNegativeInt
    cache_creation_input_tokens: NonNegativeInt
    cache_read_input_tokens: NonNegativeInt
    cache_creation: CacheCreation
    output_tokens: NonNegativeInt
    service_tier: MessageTier
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class CacheMissReason(ReplyObject, kw_only=True):
    """Why the cache missed, which is not known."""

    type: Literal["unavailable"] = "unavailable"


class ReplyDiagnostics(ReplyObject, kw_only=True):
    """The reply to ``diagnostics`` of a request."""

    cache_miss_reason: CacheMissReason


class MessageReply(ReplyObject, kw_only=True):
    """The reply to a conversation; at the start of a stream it has no content and no stop reason."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: Sequence[ReplyBlock] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    diagnostics: ReplyDiagnostics | UnsetType = UNSET
    twofold: Explanation | UnsetType = UNSET


class OriginalTokens(ReplyObject):
    """Tokens of the prompt before context management, which removes none here."""

    original_input_tokens: NonNegativeInt


class MessageTokens(ReplyObject):
    """Tokens of a prompt."""

    input_tokens: NonNegativeInt
    context_management: OriginalTokens | UnsetType = UNSET


def stop_of(
    output: RequestOutput, model: ModelFacts, *, max_tokens: int, called: bool
) -> tuple[StopReason, str | None]:
    """Why the completion ended, and the stop sequence that ended it.

    ``called`` says whether the completion calls tools. A completion that was cut off for another reason than its
    length, such as a deadline, has the stop reason max_tokens.
    """
    completion = output.outputs[0]
    if completion.finish_reason == "stop":
        if isinstance(completion.stop_reason, str):
            return "stop_sequence", completion.stop_reason
        return ("tool_use" if called else "end_turn"), None
    count = len(completion.token_ids)
    limited = completion.finish_reason == "length" and count < max_tokens
    full = limited and len(output.prompt_token_ids) + count >= model.context
    return ("model_context_window_exceeded" if full else "max_tokens"), None


def message_usage(head: ReplyHead, output: RequestOutput, model: ModelFacts, *, max_tokens: int) -> MessageUsage:
    """Tokens of the whole request. With ``max_tokens`` 0 no output token counts."""
    used = running_usage(head, CacheUsage.of([output]), output.metrics.output_tokens if max_tokens else 0)
    used.output_tokens_details = ThinkingTokens(reasoning_tokens([output], model) if max_tokens else 0)
    return used


def running_usage(head: ReplyHead, cache: CacheUsage, output_tokens: int = 0) -> MessageUsage:
    """Token counts without thinking tokens, which are counted when the completion has ended."""
    written_1h = cache.written_by_seconds.get(TTL_SECONDS["1h"], 0)
    return MessageUsage(
        input_tokens=cache.fresh,
        cache_creation_input_tokens=cache.written,
        cache_read_input_tokens=cache.read,
        cache_creation=CacheCreation(cache.written - written_1h, written_1h),
        output_tokens=output_tokens,
        service_tier=TIERS.get(head.service_tier, "standard"),
    )
