"""Server-sent events of streamed replies. A schema of ``text/event-stream`` describes one event: its name and data."""

from __future__ import annotations

from typing import Any, Final

from twofold.api.body import nullable
from twofold.server.openapi import anthropic_replies, openai_replies, responses_replies
from twofold.server.openapi.openai_replies import CHAT_LOGPROBS, COUNT, EXPLAINED, FINISH, IDS, TEXT_LOGPROBS, TIER
from twofold.server.openapi.operation import EVENTS, JSON
from twofold.server.openapi.shapes import (
    NULL,
    Schema,
    either,
    joined,
    listed,
    only,
    ref,
    said,
    text,
    told,
    word,
)

UNNAMED: Final = "message"
"""What an event is called that has no name of its own."""


def _event(names: Schema, data: Schema) -> Schema:
    return {"type": "object", "properties": {"event": names, "data": data}, "required": ["data"]}


def _json(schema: Schema) -> Schema:
    return {"type": "string", "contentMediaType": JSON, "contentSchema": schema}


def _chunk(kind: str, choice: Schema) -> Schema:
    """A chunk; the last one before the end has no choice."""
    return joined(
        told(
            {
                "id": text(),
                "object": only(kind),
                "created": COUNT,
                "model": text(),
                "choices": listed(choice, 0, 1),
            },
            service_tier=TIER,
            usage=nullable(ref("Usage")),
        ),
        EXPLAINED,
    )


_CALL: Final = told(
    {"index": COUNT, "function": told({"arguments": text()}, name=text())}, id=text(), type=word("function")
)
_DELTA: Final = told(role=word("assistant"), content=text(), reasoning_content=text(), tool_calls=listed(_CALL, 1))
CHAT_CHUNK: Final = _chunk(
    "chat.completion.chunk",
    told(
        {
            "index": COUNT,
            "delta": _DELTA,
            "logprobs": nullable(CHAT_LOGPROBS),
            "finish_reason": nullable(FINISH),
        },
        token_ids=IDS,
    ),
)
TEXT_CHUNK: Final = _chunk(
    "text_completion",
    told(
        {
            "index": COUNT,
            "text": text(),
            "logprobs": nullable(TEXT_LOGPROBS),
            "finish_reason": nullable(FINISH),
        },
        token_ids=IDS,
    ),
)


def chunks(name: str) -> Schema:
    """An event of a stream of these chunks, which ``[DONE]`` ends; an error may stand before it."""
    data = either(only("[DONE]"), _json(either(ref(name), ref("OpenAIError"))))
    return _event(only(UNNAMED), data)


def _typed(kind: str, **more: Schema) -> Schema:
    return told({"type": only(kind), **more})


def _begun(whole: Schema, **other: Schema) -> Schema:
    """A reply that has only begun."""
    return {**whole, "properties": whole["properties"] | other}


_BLOCK: Final = either(
    anthropic_replies.TEXT,
    _begun(anthropic_replies.THINKING, signature=only("")),
    anthropic_replies.TOOL_USE,
)
_ADDED: Final = either(
    _typed("text_delta", text=text()),
    _typed("thinking_delta", thinking=text()),
    _typed("signature_delta", signature=text()),
    _typed("input_json_delta", partial_json=text()),
)
_RUNNING: Final = told(
    {name: schema for name, schema in anthropic_replies.USAGE["properties"].items() if name != "output_tokens_details"}
)
_ENDING: Final = {name: anthropic_replies.MESSAGE["properties"][name] for name in ("stop_reason", "stop_sequence")}
MESSAGE_EVENTS: Final = {
    "message_start": _typed(
        "message_start",
        message=_begun(
            anthropic_replies.MESSAGE, content=only([]), stop_reason=NULL, stop_sequence=NULL, usage=_RUNNING
        ),
    ),
    "ping": _typed("ping"),
    "content_block_start": _typed("content_block_start", index=COUNT, content_block=_BLOCK),
    "content_block_delta": _typed("content_block_delta", index=COUNT, delta=_ADDED),
    "content_block_stop": _typed("content_block_stop", index=COUNT),
    "message_delta": joined(_typed("message_delta", delta=told(_ENDING), usage=anthropic_replies.USAGE), EXPLAINED),
    "message_stop": _typed("message_stop"),
    "error": ref("AnthropicError"),
}


def _of_response(*kinds: str, **more: Schema) -> dict[str, Schema]:
    """Events of a response, numbered."""
    return {f"response.{kind}": _typed(f"response.{kind}", sequence_number=COUNT, **more) for kind in kinds}


_PLACE: Final = {"item_id": text(), "output_index": COUNT}
_PART: Final = {**_PLACE, "content_index": COUNT}
_LOGPROBS: Final = listed(openai_replies.TOKEN_LOGPROB)
_ANY_PART: Final = either(responses_replies.OUTPUT_TEXT, responses_replies.REASONING_TEXT)
_STARTED: Final = _begun(responses_replies.RESPONSE, status=only("in_progress"), usage=NULL)
_FAILED: Final = _begun(
    responses_replies.RESPONSE,
    status=only("failed"),
    usage=NULL,
    error=told({"code": text(1), "message": text(1)}, param=text()),
)
RESPONSE_EVENTS: Final = {
    **_of_response("created", "in_progress", response=_STARTED),
    **_of_response("output_item.added", "output_item.done", output_index=COUNT, item=ref("ResponseItem")),
    **_of_response("content_part.added", "content_part.done", **_PART, part=_ANY_PART),
    **_of_response("output_text.delta", **_PART, delta=text(), logprobs=_LOGPROBS),
    **_of_response("output_text.done", **_PART, text=text(), logprobs=_LOGPROBS),
    **_of_response("reasoning_text.delta", **_PART, delta=text()),
    **_of_response("reasoning_text.done", **_PART, text=text()),
    **_of_response("function_call_arguments.delta", **_PLACE, delta=text()),
    **_of_response("function_call_arguments.done", **_PLACE, name=text(), arguments=text()),
    **_of_response("completed", "incomplete", response=ref("Response")),
    **_of_response("failed", response=_FAILED),
}


def named(events: dict[str, Schema]) -> Schema:
    """One of these events, by name."""
    return _event(word(*events), _json(either(*events.values())))


def streamed(name: str, event: Schema) -> dict[str, Any]:
    """A JSON reply, or a stream of such events where ``stream`` is true."""
    return {JSON: ref(name), EVENTS: said(event, "One event.")}


CHAT: Final = chunks("ChatChunk")
TEXT: Final = chunks("CompletionChunk")
MESSAGE: Final = named(MESSAGE_EVENTS)
RESPONSE: Final = named(RESPONSE_EVENTS)
