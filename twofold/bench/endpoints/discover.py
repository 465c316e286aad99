"""Inspects a server before a load: its models, its context length, and whether the endpoint responds.

So each fault is one clear error instead of a thousand failed requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from twofold.bench.client.response import REFUSALS, EventReader
from twofold.bench.client.target import Exchange
from twofold.bench.endpoints.endpoint import ApiEndpoint
from twofold.bench.endpoints.values import (
    count_at,
    object_at,
    objects_at,
    read_object,
    redirection,
    sentence,
    short,
    text_at,
)
from twofold.bench.load.base import Ask
from twofold.bench.record import RecordedResponse
from twofold.core.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    ParameterError,
    UsageError,
    closest_match,
    describe_name,
)

MODELS: Final = "/v1/models"
MAX_NAMED: Final = 8
_LENGTHS: Final = ("max_model_len", "context_length", "context_window", "max_context_length")
"""Fields with the context length: of vLLM, Twofold and SGLang; OpenRouter; Groq; LM Studio. llama.cpp has n_ctx."""
_KEY_HINT: Final = "Give the key with --api-key, or set TWOFOLD_API_KEY."
_COUNTING: Final = frozenset({"twofold", "vllm", "sglang"})
"""Values of ``owned_by`` of servers that support ``continuous_usage_stats``."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Properties of a server.

    server   its Server header
    context  maximum of prompt and output tokens together; None if unknown
    counts   whether every event of a stream can have the usage so far
    """

    model: str
    server: str | None
    context: int | None
    counts: bool = False


def find_server(exchange: Exchange, headers: Mapping[str, str], model: str | None) -> ServerFacts:
    """Reads the server's list of models.

    headers  the headers of the endpoint's requests
    model    None is the only model of the server. A server that lists no models is assumed to have ``model``

    Raises NotFoundError for an unknown model, with the closest name; ParameterError if ``model`` is None and there is
    not exactly one; AccessError or ForbiddenError; and NetworkError if the server cannot be reached.
    """
    status, reply_headers, body = exchange("GET", MODELS, None, headers)
    if (denied := _denied(status, body)) is not None:
        raise denied
    entries: list[dict[str, Any]] = []
    with suppress(ValueError):
        entries = objects_at(read_object(body), "data") if status == 200 else []
    server = short(reply_headers["server"]) if reply_headers.get("server") else None
    names = tuple(text_at(entry, "id") for entry in entries if text_at(entry, "id"))
    if model is None:
        if not names and (moved := redirection(status, reply_headers)) is not None:
            raise moved
        if len(names) != 1:
            message = f"The server has {len(names)} models; choose one."
            hint = f"Choose with --model: {_listed(names)}."
            if not names:
                message, hint = "The server does not list its models.", "Name one with --model."
            raise ParameterError(message, param="model", hint=hint)
        (model,) = names
    entry = next((entry for entry in entries if text_at(entry, "id") == model), None)
    if entry is None and names:
        entry = _entry_of(exchange, headers, model, names)
    if entry is None:
        return ServerFacts(model, server, None)
    lengths = [count_at(entry, name) for name in _LENGTHS] + [count_at(object_at(entry, "meta"), "n_ctx")]
    context = next((length for length in lengths if length), None)
    return ServerFacts(model, server, context, text_at(entry, "owned_by") in _COUNTING)


def _denied(status: int, body: bytes) -> AccessError | None:
    if status == 401:
        return AccessError(f"The server requires an API key: {sentence(body)}", hint=_KEY_HINT)
    return ForbiddenError(f"The server denied access: {sentence(body)}", hint=_KEY_HINT) if status == 403 else None


def _entry_of(exchange: Exchange, headers: Mapping[str, str], model: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Looks up a model that is not in the list: lists have pages, and models have aliases."""
    status, _, body = exchange("GET", f"{MODELS}/{quote(model, safe='/')}", None, headers)
    if status == 200:
        with suppress(ValueError):
            return read_object(body)
        return {}
    close = closest_match(model, names)
    hint = f"Did you mean {close}?" if close else f"It has {_listed(names)}."
    raise NotFoundError(f"The server has no model {describe_name(model)}.", hint=hint)


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(short(name) for name in names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def check_lengths(facts: ServerFacts, input_tokens: int, output_tokens: int) -> None:
    """Raises ContextLengthError if the longest prompt and completion exceed the model's context."""
    if facts.context is not None and input_tokens + output_tokens > facts.context:
        raise ContextLengthError(
            f"A prompt of {input_tokens} and a completion of {output_tokens} tokens exceed the {facts.context} "
            f"tokens of context of {short(facts.model)}.",
            hint="Lower --input-tokens or --output-tokens, or start the server with a longer context.",
        )


def first_response(exchange: Exchange, endpoint: ApiEndpoint, ask: Ask) -> RecordedResponse:
    """Sends one request to check the endpoint and warm up the server. Times in the response are meaningless.

    Raises AccessError or ForbiddenError, NotFoundError for a missing endpoint or model, BusyError, UsageError if the
    server rejects the request, and NetworkError if it fails.
    """
    status, headers, body = exchange("POST", endpoint.path, endpoint.body(ask), endpoint.headers)
    if status != 200:
        raise redirection(status, headers) or _refusal(status, body, endpoint)
    response = RecordedResponse()
    reader, events = endpoint.reader(response), EventReader()
    try:
        if "event-stream" in headers.get("content-type", "").lower():
            for name, data in events.feed(body) + events.end():
                reader.event(name, data, 0.0)
            response.pings += events.pings
            if not response.done and response.error is None:
                raise ValueError("the stream ended before the completion was finished")
        else:
            reader.whole(body, 0.0)
    except ValueError as error:
        hint = "Choose the server's API with --endpoint."
        raise NetworkError(f"The response of {endpoint.path} does not match its API: {error}.", hint=hint) from error
    if response.error is not None:
        raise NetworkError(f"The server failed: {response.error}", hint="See the server's log.")
    return response


def _refusal(status: int, body: bytes, endpoint: ApiEndpoint) -> Exception:
    """The error for a response with an error status."""
    message = sentence(body)
    if (denied := _denied(status, body)) is not None:
        return denied
    if status in REFUSALS:
        return BusyError(f"The server refused the first request: {message}", retry_after_s=1.0, hint="Try again later.")
    if status in (404, 405):
        hint = "Choose another one with --endpoint (chat, completions, messages), or check the URL."
        return NotFoundError(f"{endpoint.path} returned {status}: {message}", hint=hint)
    if status < 500:
        return UsageError(f"The server rejected the request ({status}): {message}", hint=_hint(message))
    return NetworkError(f"The server failed with status {status}: {message}", hint="See the server's log.")


def _hint(message: str) -> str:
    """The hint for a message about a field that the server does not support."""
    if "max_completion_tokens" in message:
        return "This server requires max_completion_tokens: use --max-completion-tokens."
    for field in ("ignore_eos", "return_token_ids", "stream_options", "temperature"):
        if field in message:
            return f"This server does not support {field}; remove it."
    return "Change the lengths, the options or the extra fields of the request."
