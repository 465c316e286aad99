"""Ollama's replies: completions, vectors, and what was counted and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import orjson
from msgspec import UNSET, Meta, UnsetType, structs

from twofold.api.answers import CallMade
from twofold.api.base import ReplyHead
from twofold.api.body import DateTime, Explanation, NonNegativeInt, ReplyObject
from twofold.api.openai.logprobs import ChatTokenLogprob
from twofold.api.openai.replies import chat_finish
from twofold.engine.outputs import RequestOutput

NANOSECONDS: Final = 1_000_000_000


class OllamaPart(ReplyObject, kw_only=True):
    """What all objects of a reply have; times are in nanoseconds, and with the counts only in the last object."""

    model: str
    created_at: DateTime
    done: bool = False
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: NonNegativeInt | UnsetType = UNSET
    load_duration: NonNegativeInt | UnsetType = UNSET
    prompt_eval_count: NonNegativeInt | UnsetType = UNSET
    prompt_eval_duration: NonNegativeInt | UnsetType = UNSET
    eval_count: NonNegativeInt | UnsetType = UNSET
    eval_duration: NonNegativeInt | UnsetType = UNSET
    logprobs: list[ChatTokenLogprob] | UnsetType = UNSET
    twofold: Explanation | UnsetType = UNSET


class OllamaFunctionReply(ReplyObject):
    """A function with its arguments; ``index`` counts the calls of a reply."""

    index: NonNegativeInt
    name: str
    arguments: dict[str, Any]


class OllamaCallReply(ReplyObject):
    """A call of a tool."""

    id: str
    function: OllamaFunctionReply


class OllamaReplyMessage(ReplyObject, kw_only=True):
    """The assistant's message, or a part of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: Annotated[Sequence[OllamaCallReply], Meta(min_length=1)] | UnsetType = UNSET


class OllamaChatReply(OllamaPart, kw_only=True):
    """The reply to /api/chat, or a line of it."""

    message: OllamaReplyMessage


class OllamaGenerateReply(OllamaPart, kw_only=True):
    """The reply to /api/generate, or a line of it."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbedReply(ReplyObject, kw_only=True):
    """The vectors of all texts."""

    model: str
    embeddings: list[Sequence[float]]
    total_duration: NonNegativeInt
    load_duration: NonNegativeInt
    prompt_eval_count: NonNegativeInt
    twofold: Explanation | UnsetType = UNSET


class OllamaEmbeddingReply(ReplyObject):
    """The vector of one text."""

    embedding: Sequence[float]
    twofold: Explanation | UnsetType = UNSET


MakePart: TypeAlias = Callable[[str, str, str, str, Sequence[OllamaCallReply]], OllamaPart]
"""Makes a part of a reply from model, creation time, content, thinking and tool calls."""


def chat_part(
    model: str, created_at: str, content: str, thinking: str, calls: Sequence[OllamaCallReply]
) -> OllamaChatReply:
    """``MakePart`` of /api/chat."""
    message = OllamaReplyMessage(content=content, thinking=thinking or UNSET, tool_calls=calls or UNSET)
    return OllamaChatReply(model=model, created_at=created_at, message=message)


def generate_part(
    model: str, created_at: str, content: str, thinking: str, calls: Sequence[OllamaCallReply]
) -> OllamaGenerateReply:
    """``MakePart`` of /api/generate, which has no tools."""
    assert not calls, "there are no tools to call"
    return OllamaGenerateReply(model=model, created_at=created_at, response=content, thinking=thinking or UNSET)


def date_time(moment: datetime) -> str:
    """A moment in UTC as Ollama writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def begun(head: ReplyHead) -> tuple[str, str]:
    """The model's name and the creation time of a reply."""
    return head.model, date_time(datetime.fromtimestamp(head.created, UTC))


def ended(part: OllamaPart, head: ReplyHead, output: RequestOutput | None, *, unloads: bool = False) -> OllamaPart:
    """The last part: why the completion ended, and counts and times; without an output the request only loaded the
    model, or unloaded it."""
    if output is None:
        return structs.replace(part, done=True, done_reason="unload" if unloads else "load")
    reason = chat_finish(output.outputs[0].finish_reason)
    return structs.replace(part, done=True, done_reason=reason, **figures(head, [output]))


def figures(head: ReplyHead, outputs: Sequence[RequestOutput]) -> dict[str, int]:
    """Counts of tokens, and nanoseconds: load_duration is the time before the engine had the request, so loading and
    tokenising; total_duration includes the time in the engine's queue."""
    took = max((output.metrics.finished - output.metrics.arrival for output in outputs), default=0.0)
    return {
        "total_duration": _nanoseconds(head.waited_s + took),
        "load_duration": _nanoseconds(head.waited_s),
        "prompt_eval_count": sum(len(output.prompt_token_ids) for output in outputs),
        "prompt_eval_duration": _nanoseconds(sum(output.metrics.prefill_s for output in outputs)),
        "eval_count": sum(output.metrics.output_tokens for output in outputs),
        "eval_duration": _nanoseconds(sum(output.metrics.decode_s for output in outputs)),
    }


def tool_calls(head: ReplyHead, calls: Sequence[CallMade]) -> list[OllamaCallReply]:
    """The calls of a completion, with arguments as objects; a call whose arguments are incomplete is omitted."""
    found = []
    for index, call in enumerate(calls):
        arguments = _object(call.arguments)
        if arguments is not None:
            found.append(OllamaCallReply(f"call_{head.id}_{index}", OllamaFunctionReply(index, call.name, arguments)))
    return found


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _nanoseconds(seconds: float) -> int:
    return round(max(0.0, seconds) * NANOSECONDS)
