"""Events as servers write them, to read with an endpoint's reader."""

from __future__ import annotations

from typing import Any, Final

import orjson

from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.record import RecordedResponse

DONE: Final = b"[DONE]"


def no_prompts(ask: Ask) -> tuple[PromptMessage, ...]:
    return ask.messages or (PromptMessage("user", "hello"),)


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An event of a chat with one choice; ``logprobs`` and ``token_ids`` belong to the choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    choice |= {name: more.pop(name) for name in ("logprobs", "token_ids") if name in more}
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [choice], **more}


def piece(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An event of a completion."""
    choice = {"index": 0, "text": text, "finish_reason": finish}
    choice |= {name: more.pop(name) for name in ("logprobs", "token_ids") if name in more}
    return {"id": "c1", "object": "text_completion", "choices": [choice], **more}


def read(name: str, *events: dict[str, Any] | bytes) -> RecordedResponse:
    """The response that the endpoint ``name`` reads from these events, which arrive at 1.0, 2.0, and so on."""
    response = RecordedResponse()
    reader = ApiEndpoint(name, EndpointOptions("m"), no_prompts).reader(response)
    for moment, event in enumerate(events, 1):
        if isinstance(event, bytes):
            reader.event(None, event, float(moment))
        else:
            reader.event(event.get("type"), orjson.dumps(event), float(moment))
    return response


def read_whole(name: str, body: dict[str, Any]) -> RecordedResponse:
    response = RecordedResponse()
    ApiEndpoint(name, EndpointOptions("m"), no_prompts).reader(response).whole(orjson.dumps(body), 5.0)
    return response
