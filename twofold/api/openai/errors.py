"""Errors in OpenAI's words: a status, and a body of message, type, param and code."""

from __future__ import annotations

from typing import Any, Final, Literal

from twofold.api.base import EVENT_STREAM
from twofold.api.fields import IMPOSSIBLE, FieldError
from twofold.core.errors import (
    AccessError,
    BusyError,
    ConflictError,
    ContextLengthError,
    ForbiddenError,
    MethodError,
    ModelNotFoundError,
    NotFoundError,
    ParameterError,
    QuotaError,
    SlowClientError,
    TemplateError,
    TimeLimitError,
    TooLargeError,
    TwofoldError,
)

MAX_MESSAGE: Final = 3000
MAX_PARAM: Final = 128
"""Characters; so that the body of an error stays below 4 KiB."""

CODES: Final[tuple[tuple[type[TwofoldError], str], ...]] = (
    (ContextLengthError, "context_length_exceeded"),
    (ModelNotFoundError, "model_not_found"),
    (TemplateError, "invalid_messages"),
    (ParameterError, IMPOSSIBLE),
    (ForbiddenError, "permission_denied"),
    (AccessError, "invalid_api_key"),
    (MethodError, "method_not_allowed"),
    (NotFoundError, "not_found"),
    (ConflictError, "conflict"),
    (TooLargeError, "request_too_large"),
    (SlowClientError, "request_timeout"),
    (QuotaError, "rate_limit_exceeded"),
    (BusyError, "overloaded"),
    (TimeLimitError, "timeout"),
)
TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class OpenAIDialect:
    """``Dialect`` of OpenAI's clients."""

    name: Literal["openai"] = "openai"
    stream_type = EVENT_STREAM
    any_type = False

    def status(self, error: TwofoldError) -> int:
        return error.status

    def error(self, error: TwofoldError, request_id: str) -> dict[str, Any]:  # noqa: ARG002 - it is in a header
        return error_reply(error)


def error_code(error: TwofoldError) -> str:
    """The error in one of OpenAI's words."""
    if isinstance(error, FieldError):
        return error.code
    found = (code for kind, code in CODES if isinstance(error, kind))
    return next(found, "invalid_request" if error.status < 500 else "server_error")


def error_message(error: TwofoldError) -> str:
    """What happened and the way out, in one text."""
    message = f"{error} {error.hint}" if error.hint else str(error)
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"


def error_reply(error: TwofoldError) -> dict[str, Any]:
    """The body of a response whose status is ``error.status``."""
    fallback = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": error_message(error),
            "type": TYPES.get(error.status, fallback),
            "param": error.param[:MAX_PARAM] if isinstance(error, ParameterError) else None,
            "code": error_code(error),
        }
    }
