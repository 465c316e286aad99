"""Errors in Anthropic's words: a status, a type and a message."""

from __future__ import annotations

from typing import Any, Final, Literal

from twofold.api.base import EVENT_STREAM
from twofold.core.errors import BusyError, TwofoldError

OVERLOADED: Final = 529
"""Anthropic's own status for a server that has too much to do."""
TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
MAX_MESSAGE_BYTES: Final = 3 << 10


class AnthropicDialect:
    """``Dialect`` of Anthropic's clients."""

    name: Literal["anthropic"] = "anthropic"
    stream_type = EVENT_STREAM
    any_type = False

    def status(self, error: TwofoldError) -> int:
        return OVERLOADED if isinstance(error, BusyError) else error.status

    def error(self, error: TwofoldError, request_id: str) -> dict[str, Any]:
        status = self.status(error)
        kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        message = f"{error} {error.hint}" if error.hint else str(error)
        return {"type": "error", "error": {"type": kind, "message": _short(message)}, "request_id": request_id}


def _short(message: str) -> str:
    raw = message.encode(errors="replace")
    return raw.decode() if len(raw) <= MAX_MESSAGE_BYTES else raw[:MAX_MESSAGE_BYTES].decode(errors="ignore") + "…"
