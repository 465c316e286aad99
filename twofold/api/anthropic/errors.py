"""Errors of Anthropic's API: a status, a type and a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from twofold.api.base import EVENT_STREAM
from twofold.api.body import ReplyObject
from twofold.api.fields import FieldError
from twofold.core.errors import BusyError, ContextLengthError, TwofoldError

OVERLOADED: Final = 529
"""Anthropic's status for an overloaded server."""
AnthropicErrorType: TypeAlias = Literal[
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
]
TYPES: Final[Mapping[int, AnthropicErrorType]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
THREAD_NOT_FOUND: Final = "thread_not_found"
"""Code of the error after which Anthropic's client sends its whole conversation again."""
MAX_MESSAGE_BYTES: Final = 3 << 10


class AnthropicErrorDetails(ReplyObject):
    """What programs need to know of an error."""

    error_code: str


class AnthropicErrorBody(ReplyObject):
    """What happened, and what to do about it."""

    type: AnthropicErrorType
    message: Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_BYTES + 1)]
    details: AnthropicErrorDetails | UnsetType = UNSET


class AnthropicError(ReplyObject, kw_only=True):
    """The reply to a request that failed, or the last event of a stream that did."""

    type: Literal["error"] = "error"
    error: AnthropicErrorBody
    request_id: Annotated[str, Meta(min_length=1)]


class AnthropicDialect:
    """``Dialect`` of Anthropic's clients."""

    name: Literal["anthropic"] = "anthropic"
    stream_type = EVENT_STREAM
    any_type = False

    def status(self, error: TwofoldError) -> int:
        return OVERLOADED if isinstance(error, BusyError) else error.status

    def error(self, error: TwofoldError, request_id: str) -> AnthropicError:
        status = self.status(error)
        kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        said = too_long(error) if isinstance(error, ContextLengthError) and error.tokens else str(error)
        message = f"{said} {error.hint}" if error.hint else said
        body = AnthropicErrorBody(kind, _short(message))
        if isinstance(error, FieldError) and error.code == THREAD_NOT_FOUND:
            body.details = AnthropicErrorDetails(error.code)
        return AnthropicError(error=body, request_id=request_id)


def too_long(error: ContextLengthError) -> str:
    """That a prompt does not fit, in Anthropic's words: Claude Code and LangChain look for them."""
    if error.tokens > error.limit or error.output <= 1:
        maximum = error.limit if error.tokens > error.limit else error.limit - error.output
        return f"{error.text} is too long: {error.tokens} tokens > {maximum} maximum."
    counts = f"{error.tokens} + {error.output} > {error.limit}"
    return f"input length and `max_tokens` exceed context limit: {counts}, decrease input length or `max_tokens`."


def _short(message: str) -> str:
    raw = message.encode(errors="replace")
    return raw.decode() if len(raw) <= MAX_MESSAGE_BYTES else raw[:MAX_MESSAGE_BYTES].decode(errors="ignore") + "…"
