"""Errors as replies: their bodies in both dialects, their statuses and headers."""

from __future__ import annotations

from typing import Any, Final

from twofold.api.anthropic.errors import MAX_MESSAGE_BYTES, OVERLOADED
from twofold.api.base import Dialect
from twofold.api.body import nullable
from twofold.api.openai.errors import MAX_MESSAGE, MAX_PARAM
from twofold.server.edge.refusals import MAX_RETRY_AFTER_S
from twofold.server.openapi.operation import JSON, ApiOperation
from twofold.server.openapi.shapes import Schema, only, ref, text, told, whole, word

OPENAI_ERROR: Final = told(
    {
        "error": told(
            {
                "message": text(1, MAX_MESSAGE + 1),
                "type": word(
                    "invalid_request_error",
                    "authentication_error",
                    "permission_error",
                    "not_found_error",
                    "rate_limit_error",
                    "server_error",
                ),
                "param": nullable(text(0, MAX_PARAM)),
                "code": text(1),
            }
        )
    }
)
ANTHROPIC_ERROR: Final = told(
    {
        "type": only("error"),
        "error": told(
            {
                "type": word(
                    "invalid_request_error",
                    "authentication_error",
                    "permission_error",
                    "not_found_error",
                    "conflict_error",
                    "request_too_large",
                    "rate_limit_error",
                    "timeout_error",
                    "overloaded_error",
                    "api_error",
                ),
                "message": text(1, MAX_MESSAGE_BYTES + 1),
            }
        ),
        "request_id": text(1),
    }
)

ALWAYS: Final = (400, 401, 403, 431, 500, 503)
OF_BODIES: Final = (408, 413)
GENERATING: Final = (404, 422, 429, 502, 504)
"""Of endpoints that a model answers."""

SAYS: Final = {
    400: "The request is impossible; the error says which field, and the way out.",
    401: "No key was given, or one that is not known.",
    403: "The key may not do this, or the Host or Origin of the request is not allowed.",
    404: "Nothing is there under that name, or it is another tenant's.",
    408: "The body did not come in time.",
    409: "What is there does not allow it now.",
    413: "The body is larger than the server takes.",
    422: "The model's file cannot be used.",
    429: "The key's share is used up for now.",
    431: "The head of the request is larger than the server takes.",
    500: "The server failed; it was logged under the request's id.",
    502: "A download failed.",
    503: "The server is full or ends, or its model's process ended; Retry-After may say when to ask again.",
    504: "The request took longer than it may.",
    OVERLOADED: "The server is full or ends.",
}
REQUEST_IDS: Final = {
    name: {"description": "The id under which the request is logged.", "required": True, "schema": text(1, 128)}
    for name in ("x-request-id", "request-id")
}
_RETRY: Final = {
    "retry-after": {"description": "Seconds after which to ask again.", "schema": whole(1, MAX_RETRY_AFTER_S)},
    "retry-after-ms": {"description": "The same in milliseconds.", "schema": whole(1, MAX_RETRY_AFTER_S * 1000)},
}
_KEY_WANTED: Final = {"www-authenticate": {"description": "How to show a key.", "schema": text()}}


ERRORS: Final = {"openai": "OpenAIError", "anthropic": "AnthropicError", "ollama": "OllamaError"}


def failures(operation: ApiOperation, dialect: Dialect) -> dict[str, Any]:
    """The replies that tell errors, by status."""
    statuses = {*ALWAYS, *operation.failures}
    if operation.body is not None:
        statuses |= {*OF_BODIES}
    if operation.is_open:
        statuses.discard(401)
    if dialect.name == "anthropic":
        statuses.add(OVERLOADED)
    return {str(status): _failure(status, dialect) for status in sorted(statuses)}


def _failure(status: int, dialect: Dialect) -> dict[str, Any]:
    headers: dict[str, Any] = dict(REQUEST_IDS)
    if status in (429, 503, OVERLOADED):
        headers |= _RETRY
    if status == 401:
        headers |= _KEY_WANTED
    schema: Schema = ref(ERRORS[dialect.name])
    return {"description": SAYS[status], "headers": headers, "content": {JSON: {"schema": schema}}}
