"""Errors as Anthropic's clients expect them."""

from __future__ import annotations

import pytest

from tests.api.completions import data_of
from twofold.api.anthropic.errors import AnthropicDialect
from twofold.core.errors import (
    AccessError,
    BusyError,
    ConflictError,
    ContextLengthError,
    ForbiddenError,
    MethodError,
    ModelNotFoundError,
    NetworkError,
    ParameterError,
    QuotaError,
    ResourceError,
    SlowClientError,
    TimeLimitError,
    TooLargeError,
    TwofoldError,
    WorkerError,
)

DIALECT = AnthropicDialect()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ParameterError("x", param="p"), 400, "invalid_request_error"),
        (ContextLengthError("x"), 400, "invalid_request_error"),
        (AccessError("x"), 401, "authentication_error"),
        (ForbiddenError("x"), 403, "permission_error"),
        (ModelNotFoundError("x"), 404, "not_found_error"),
        (MethodError("x", allowed=("POST",)), 405, "invalid_request_error"),
        (SlowClientError("x"), 408, "invalid_request_error"),
        (ConflictError("x"), 409, "conflict_error"),
        (TooLargeError("x"), 413, "request_too_large"),
        (QuotaError("x", retry_after_s=1), 429, "rate_limit_error"),
        (TwofoldError("x"), 500, "api_error"),
        (NetworkError("x"), 502, "api_error"),
        (WorkerError("x"), 503, "api_error"),
        (ResourceError("x"), 503, "api_error"),
        (TimeLimitError("x"), 504, "timeout_error"),
        (BusyError("x", retry_after_s=1), 529, "overloaded_error"),
    ],
)
def test_status_and_type(error: TwofoldError, status: int, kind: str) -> None:
    assert DIALECT.status(error) == status
    assert data_of(DIALECT.error(error, "req_1")) == {
        "type": "error",
        "error": {"type": kind, "message": "x"},
        "request_id": "req_1",
    }


def test_the_way_out_is_part_of_the_message() -> None:
    error = ParameterError("max_tokens is missing.", param="max_tokens", hint="Give it.")
    assert DIALECT.error(error, "").error.message == "max_tokens is missing. Give it."


def test_messages_are_cut_between_characters() -> None:
    message = DIALECT.error(TwofoldError("世" * 2000), "").error.message
    assert len(message.encode()) <= 3 * 1024 + 3
    assert set(message) == {"世", "…"}
