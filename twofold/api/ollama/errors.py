"""Errors as Ollama's clients read them: a status, and one sentence under ``error``."""

from __future__ import annotations

from typing import Any, Literal

from twofold.api.openai.errors import error_message
from twofold.core.errors import TwofoldError


class OllamaDialect:
    """``Dialect`` of Ollama's clients. Its documents send JSON with curl's default type, that of a form."""

    name: Literal["ollama"] = "ollama"
    stream_type = "application/x-ndjson"
    any_type = True

    def status(self, error: TwofoldError) -> int:
        return error.status

    def error(self, error: TwofoldError, request_id: str) -> dict[str, Any]:  # noqa: ARG002 - it is in a header
        return {"error": error_message(error)}
