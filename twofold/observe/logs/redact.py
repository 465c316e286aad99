"""Removes content and secrets from log lines, by the names of fields and by the format of secrets.

It is the second line of defence: callers log names and numbers only. Nothing here raises, whatever is logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final

HIDDEN: Final = "[redacted]"
MAX_CHARS: Final = 1_000
MAX_ITEMS: Final = 32
MAX_DEPTH: Final = 4
MAX_NUMBER: Final = 1 << 63
"""Other JSON readers may not read larger numbers, infinity and NaN."""
MAX_FRAMES: Final = 12
SECRET_NAMES: Final = frozenset(
    {"api_key", "apikey", "authorization", "cookie", "password", "proxy_authorization", "secret", "set_cookie", "token"}
    | {"x_api_key"}
)
CONTENT_NAMES: Final = frozenset(
    {"answer", "arguments", "body", "completion", "content", "delta", "input", "instructions", "messages", "output"}
    | {"prompt", "reasoning", "suffix", "system", "text", "tools"}
)
SECRETS: Final = re.compile(r"(?i:\bbearer\s+)\S+|\b(?:sk|tf|hf)[-_][A-Za-z0-9_-]{8,}")

Event = MutableMapping[str, Any]


def redact(_logger: object, _method: str, event: Event) -> Event:
    """A structlog processor: hides content and secrets, and bounds the size of the rest."""
    return {name: _hidden(name) or _clean(value, MAX_DEPTH) for name, value in event.items()}


def fault(error: BaseException) -> dict[str, Any]:
    """An error's type and traceback, without its message, which may quote a request."""
    return {"error": type(error).__qualname__, "at": _frames(error.__traceback__)}


def _hidden(name: str) -> str | None:
    plain = name.lower().replace("-", "_")
    return HIDDEN if plain in SECRET_NAMES or plain in CONTENT_NAMES else None


def _clean(value: object, depth: int) -> object:
    """Texts, numbers, and lists and mappings of them; of any other value only its type."""
    if isinstance(value, str):
        return _short(SECRETS.sub(HIDDEN, value[: 2 * MAX_CHARS]))
    if value is None or (isinstance(value, int | float) and -MAX_NUMBER < value < MAX_NUMBER):
        return value
    if isinstance(value, BaseException):
        return fault(value)
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {_name(name): _hidden(_name(name)) or _clean(item, depth - 1) for name, item in items}
    if depth and isinstance(value, list | tuple):
        return [_clean(item, depth - 1) for item in value[:MAX_ITEMS]]
    return f"<{type(value).__name__}>"


def _name(name: object) -> str:
    return _short(name) if isinstance(name, str) else f"<{type(name).__name__}>"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"


def _frames(trace: TracebackType | None) -> list[str]:
    """Modules, functions and lines, the innermost last; no paths, which describe the machine."""
    frames: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "?")
        frames.append(f"{module}.{code.co_qualname}:{trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-MAX_FRAMES:]
