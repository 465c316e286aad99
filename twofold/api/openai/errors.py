"""Errors of OpenAI's API: a status, and a body of message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.base import EVENT_STREAM
from twofold.api.body import ReplyObject
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

LONG_CODE: Final = "context_length_exceeded"
"""Also part of the message: LangChain looks for it in the text of the client's error, which shows the message alone."""
CODES: Final[tuple[tuple[type[TwofoldError], str], ...]] = (
    (ContextLengthError, LONG_CODE),
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
ErrorType: TypeAlias = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
]
TYPES: Final[Mapping[int, ErrorType]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
ErrorMessage: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE + 1)]


class OpenAIErrorBody(ReplyObject):
    """What happened and what to do about it, the field that caused it, and a type and a code for programs."""

    message: ErrorMessage
    type: ErrorType
    param: Annotated[str, Meta(max_length=MAX_PARAM)] | None
    code: Annotated[str, Meta(min_length=1)]


class OpenAIError(ReplyObject):
    """The reply to a request that failed."""

    error: OpenAIErrorBody


@dataclass(frozen=True, slots=True)
class OpenAIDialect:
    """``Dialect`` of OpenAI's clients. ``prompt`` is what the endpoint calls the prompt."""

    prompt: Literal["messages", "prompt", "input"] = "messages"

    name: ClassVar[Literal["openai"]] = "openai"
    stream_type: ClassVar[str] = EVENT_STREAM
    any_type: ClassVar[bool] = False

    def status(self, error: TwofoldError) -> int:
        return error.status

    def error(self, error: TwofoldError, request_id: str) -> OpenAIError:  # noqa: ARG002 - it is in a header
        return error_reply(error, self.prompt)


def error_code(error: TwofoldError) -> str:
    """OpenAI's code of the error."""
    if isinstance(error, FieldError):
        return error.code
    found = (code for kind, code in CODES if isinstance(error, kind))
    return next(found, "invalid_request" if error.status < 500 else "server_error")


def error_message(error: TwofoldError, prompt: str = "messages") -> str:
    """The message and the hint, in one text; ``prompt`` is what the endpoint calls the prompt."""
    said = too_long(error, prompt) if isinstance(error, ContextLengthError) and error.tokens else str(error)
    message = f"{said} {error.hint}" if error.hint else said
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"


def too_long(error: ContextLengthError, prompt: str) -> str:
    """That a prompt does not fit, in OpenAI's words, which LiteLLM, pydantic-ai, opencode and others look for; those of
    its Responses API, which LangChain looks for, in front of them."""
    tokens, output, limit = error.tokens, error.output, error.limit
    own = prompt if error.text == "prompt" else error.text
    asked = f"your {own} resulted in {'at least ' if error.at_least else ''}{tokens} tokens"
    if tokens <= limit:
        asked = f"you requested {tokens + output} tokens ({tokens} in the {own}, {output} in the completion)"
    first = "Your input exceeds the context window of this model. " if prompt == "input" else ""
    said = f"This model's maximum context length is {limit} tokens. However, {asked}."
    return f"{first}{said} Please reduce the length of the {own} ({LONG_CODE})."


def error_reply(error: TwofoldError, prompt: str = "messages") -> OpenAIError:
    """The body of a response whose status is ``error.status``."""
    fallback: ErrorType = "invalid_request_error" if error.status < 500 else "server_error"
    param = error.param[:MAX_PARAM] if isinstance(error, ParameterError) else None
    kind = TYPES.get(error.status, fallback)
    return OpenAIError(OpenAIErrorBody(error_message(error, prompt), kind, param, error_code(error)))
