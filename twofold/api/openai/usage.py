"""Token counts of OpenAI's replies: ``CompletionUsage`` of chats and completions, ``ResponseUsage`` of responses and
batches, ``PromptUsage`` of texts that are only read."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from twofold.api.answers import CacheUsage, reasoning_tokens
from twofold.api.base import ModelFacts
from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.engine.outputs import RequestOutput


class PromptDetails(ReplyObject, kw_only=True):
    """Prompt tokens that were read from the cache, and those that were written to it for longer."""

    cached_tokens: NonNegativeInt
    cache_write_tokens: NonNegativeInt | UnsetType = UNSET


class OutputDetails(ReplyObject):
    """Output tokens of thinking sections."""

    reasoning_tokens: NonNegativeInt


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
    completion_tokens_details: OutputDetails | UnsetType = UNSET


class ResponseUsage(ReplyObject, kw_only=True):
    """Tokens of a response or of a batch."""

    input_tokens: NonNegativeInt
    input_tokens_details: PromptDetails
    output_tokens: NonNegativeInt
    output_tokens_details: OutputDetails
    total_tokens: NonNegativeInt


def usage(outputs: Sequence[RequestOutput], model: ModelFacts, *, answers: bool = True) -> CompletionUsage:
    """Tokens of all prompts, cached ones included, and of all completions, those included that best_of dropped."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(output.metrics.output_tokens for output in outputs) if answers else 0
    cache = CacheUsage.of(outputs)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=cache.read, cache_write_tokens=cache.written),
        completion_tokens_details=OutputDetails(reasoning_tokens(outputs, model)),
    )


def prompt_usage(outputs: Sequence[RequestOutput]) -> PromptUsage:
    """Tokens of texts that were only read."""
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return PromptUsage(tokens, tokens)
