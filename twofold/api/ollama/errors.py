"""Errors of Ollama's API: a status, and one sentence under ``error``."""

from __future__ import annotations

from typing import Literal

from twofold.api.body import ReplyObject
from twofold.api.openai.errors import ErrorMessage, error_message
from twofold.core.errors import TwofoldError


class OllamaError(ReplyObject):
    """The reply to a request that failed, or the last line of a stream that did."""

    error: ErrorMessage


class OllamaDialect:
    """``Dialect`` of Ollama's clients. Its documents send JSON with curl's default type, that of a form."""

    name: Literal["ollama"] = "ollama"
    stream_type = "application/x-ndjson"
    any_type = True

    def status(self, error: TwofoldError) -> int:
        return error.status

    def error(self, error: TwofoldError, request_id: str) -> OllamaError:  # noqa: ARG002 - it is in a header
        return OllamaError(error_message(error))
