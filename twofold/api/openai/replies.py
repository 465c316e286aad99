"""OpenAI's replies to chats and completions, and the token counts of all replies: ``CompletionUsage`` of chats and
completions, ``ResponseUsage`` of responses and batches, ``PromptUsage`` of texts that are only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from twofold.api.base import ModelFacts, ReplyHead, TierName
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject
from twofold.api.completion import CacheUsage, ParsedCall, reasoning_tokens
from twofold.api.compression import CompressionReply
from twofold.api.openai.logprobs import ChatLogprobs, TextLogprobs
from twofold.core.step import FinishReason
from twofold.engine.outputs import RequestOutput


class PromptDetails(ReplyObject, kw_only=True):
    """Prompt tokens that were read from the cache, those of them that were loaded from the KV store (if any), and those
    that were pinned."""

    cached_tokens: NonNegativeInt
    cache_write_tokens: NonNegativeInt | UnsetType = UNSET
    cache_load_tokens: NonNegativeInt | UnsetType = UNSET

    @classmethod
    def of(cls, cache: CacheUsage) -> PromptDetails:
        return cls(cached_tokens=cache.read, cache_write_tokens=cache.written, cache_load_tokens=cache.loaded or UNSET)


class OutputDetails(ReplyObject):
    """Output tokens of thinking sections."""

    reasoning_tokens: NonNegativeInt


class CompletionDetails(OutputDetails):
    """Output tokens of thinking sections, and tokens of the prediction that were drafted: accepted ones are part of a
    completion, rejected ones are not, and are no output tokens."""

    accepted_prediction_tokens: NonNegativeInt
    rejected_prediction_tokens: NonNegativeInt


class PromptUsage(ReplyObject):
    """Tokens of texts that are only read."""

    prompt_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class CompletionUsage(ReplyObject, kw_only=True):
    """Tokens of a chat or of completions; running counts of a stream have no details."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    total_tokens: NonNegativeInt
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET
    compression: CompressionReply | UnsetType = UNSET


class ResponseUsage(ReplyObject, kw_only=True):
    """Tokens of a response or of a batch."""

    input_tokens: NonNegativeInt
    input_tokens_details: PromptDetails
    output_tokens: NonNegativeInt
    output_tokens_details: OutputDetails
    total_tokens: NonNegativeInt


def usage(
    outputs: Sequence[RequestOutput],
    model: ModelFacts,
    *,
    completions: bool = True,
    compression: CompressionReply | UnsetType = UNSET,
) -> CompletionUsage:
    """Tokens of all prompts, cached ones included, and of all completions, also of those that best_of dropped."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(output.metrics.output_tokens for output in outputs) if completions else 0
    cache = CacheUsage.of(outputs)
    records = [output.metrics.record for output in outputs]
    accepted = sum(record.predicted_accepted for record in records)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails.of(cache),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=reasoning_tokens(outputs, model),
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=sum(record.predicted for record in records) - accepted,
        ),
        compression=compression,
    )


def prompt_usage(outputs: Sequence[RequestOutput]) -> PromptUsage:
    """Tokens of texts that were only read."""
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return PromptUsage(tokens, tokens)


FinishWord: TypeAlias = Literal["stop", "length", "tool_calls"]
ReplyTokenIds: TypeAlias = Sequence[NonNegativeInt]


class CalledFunctionReply(ReplyObject):
    """A function with the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCallReply(ReplyObject, kw_only=True):
    """A call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionReply


class ChatReplyMessage(ReplyObject, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: Annotated[list[ToolCallReply], Meta(min_length=1)] | UnsetType = UNSET


class ChatChoice(ReplyObject, kw_only=True):
    """A completion of a chat."""

    index: NonNegativeInt
    message: ChatReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord | None
    token_ids: ReplyTokenIds | UnsetType = UNSET


class SampledReply(ReplyObject, kw_only=True):
    """The reply to a chat or to prompts."""

    id: str
    object: str
    created: NonNegativeInt
    model: str
    choices: list[Any]
    usage: CompletionUsage
    system_fingerprint: str | UnsetType = UNSET
    service_tier: TierName | UnsetType = UNSET
    prompt_token_ids: ReplyTokenIds | UnsetType = UNSET
    twofold: Explanation | UnsetType = UNSET


class ChatReply(SampledReply, kw_only=True):
    """The reply to a chat."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: Annotated[list[ChatChoice], Meta(min_length=1)]


class TextChoice(ReplyObject, kw_only=True):
    """A completion of a text, or in a stream a part of one, which has a finish reason at its end."""

    index: NonNegativeInt
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishWord | None = None
    prompt_token_ids: ReplyTokenIds | UnsetType = UNSET
    token_ids: ReplyTokenIds | UnsetType = UNSET


class CompletionReply(SampledReply, kw_only=True):
    """The reply to prompts: completions of the first one, of the second one, and so on."""

    object: Literal["text_completion"] = "text_completion"
    choices: Annotated[list[TextChoice], Meta(min_length=1)]


def chat_finish(finish: FinishReason | None, calls: Sequence[ParsedCall] = ()) -> FinishWord | None:
    """Why a completion ended, in OpenAI's words, which include no deadline and no repetition. A completion with
    ``calls`` ended with "tool_calls", unless it reached a limit."""
    match finish:
        case "deadline" | "repetition":
            return "length"
        case "abort":
            return "stop"
        case "stop" if calls:
            return "tool_calls"
    return finish


def call_id(head: ReplyHead, completion: int, call: int) -> str:
    """The id of a call: the same whether the reply is streamed or not."""
    return f"call_{head.id}_{completion}_{call}"
