"""What the body of an error says, in one sentence, whoever wrote it.

Known are the forms of OpenAI and Anthropic (``error.message``), of vLLM before 0.10 (``message``), of Hugging Face's
TGI and Ollama (``error`` is the text), and of FastAPI (``detail``). Of other bodies the first words are told: of some
proxy's HTML page, those that a reader would see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from twofold.bench.endpoints.values import read_object

MAX_CHARS: Final = 300
_MAX_BYTES: Final = 64 << 10
_HIDDEN: Final = re.compile(r"<(script|style|head)\b.*?(?:</\1>|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL)
UNNAMED: Final = "the server tells of an error without saying which"
_NOTHING: Final = "the body is empty"


def sentence(body: bytes) -> str:
    """What an error's body says; of any bytes. One line of at most 300 characters."""
    try:
        return said_error(read_object(body)) or short(body.decode("utf-8", "replace"))
    except ValueError:
        text = body[:_MAX_BYTES].decode("utf-8", "replace")
        return short(_HIDDEN.sub(" ", text) if text.lstrip()[:1] == "<" else text)


def said_error(said: Mapping[str, Any]) -> str | None:
    """The error that an object tells; None where it tells of none."""
    for name in ("error", "message", "detail", "errors"):
        found = _text_of(said.get(name))
        if found:
            return short(found)
    return short(f"an error of type {said['type']}") if said.get("error") and said.get("type") else None


def _text_of(value: object) -> str | None:
    match value:
        case str():
            return value
        case dict():
            kind = value.get("type")
            return _text_of(value.get("message") or value.get("msg")) or (kind if isinstance(kind, str) else None)
        case [first, *_]:
            return _text_of(first)
    return None


def short(text: str) -> str:
    """One line, without what a terminal would obey."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:_MAX_BYTES]).split())
    if len(line) > MAX_CHARS:
        line = line[: MAX_CHARS - 1].rstrip() + "…"
    return line or _NOTHING
