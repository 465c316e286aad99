"""Ollama's response bodies: answers, vectors, and what was counted and timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import orjson

from twofold.api.answers import CallMade
from twofold.api.base import ReplyHead
from twofold.api.openai.replies import chat_finish
from twofold.engine.outputs import RequestOutput

NANOSECONDS: Final = 1_000_000_000

Shape: TypeAlias = Callable[[str, str, Sequence[Mapping[str, Any]]], dict[str, Any]]
"""Puts content, thinking and tool calls where an endpoint has them."""


def as_message(content: str, thinking: str = "", calls: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """``Shape`` of /api/chat."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def as_response(content: str, thinking: str = "", calls: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """``Shape`` of /api/generate, which has no tools."""
    assert not calls, "there are no tools to call"
    return {"response": content} | ({"thinking": thinking} if thinking else {})


def begun(head: ReplyHead) -> dict[str, Any]:
    """What every object of a reply begins with."""
    created = datetime.fromtimestamp(head.created, UTC).isoformat().replace("+00:00", "Z")
    return {"model": head.model, "created_at": created}


def ended(head: ReplyHead, output: RequestOutput | None, *, unloads: bool = False) -> dict[str, Any]:
    """What the last object says: why the answer ended, and the figures; of no output where nothing was asked but to
    load the model, or to unload it."""
    if output is None:
        return {"done": True, "done_reason": "unload" if unloads else "load"}
    reason = chat_finish(output.outputs[0].finish_reason)
    return {"done": True, "done_reason": reason, **figures(head, [output])}


def figures(head: ReplyHead, outputs: Sequence[RequestOutput]) -> dict[str, int]:
    """Tokens, and nanoseconds: load_duration is the time before the engine had the request, so loading and tokenising;
    total_duration also holds the time in the engine's queue."""
    took = max((output.metrics.finished - output.metrics.arrival for output in outputs), default=0.0)
    return {
        "total_duration": _nanoseconds(head.waited_s + took),
        "load_duration": _nanoseconds(head.waited_s),
        "prompt_eval_count": sum(len(output.prompt_token_ids) for output in outputs),
        "prompt_eval_duration": _nanoseconds(sum(output.metrics.prefill_s for output in outputs)),
        "eval_count": sum(output.metrics.output_tokens for output in outputs),
        "eval_duration": _nanoseconds(sum(output.metrics.decode_s for output in outputs)),
    }


def tool_calls(head: ReplyHead, calls: Sequence[CallMade]) -> list[dict[str, Any]]:
    """The calls of an answer, arguments as objects; one that was cut off in the middle is left out."""
    found = []
    for index, call in enumerate(calls):
        arguments = _object(call.arguments)
        if arguments is not None:
            function = {"index": index, "name": call.name, "arguments": arguments}
            found.append({"id": f"call_{head.id}_{index}", "function": function})
    return found


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _nanoseconds(seconds: float) -> int:
    return round(max(0.0, seconds) * NANOSECONDS)
