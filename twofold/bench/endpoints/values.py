"""Reads fields of JSON that may have any shape, and the error messages of servers as one sentence.

The message is in ``error.message`` (OpenAI, Anthropic), ``message`` (vLLM before 0.10), ``error`` (Hugging Face's TGI,
Ollama) or ``detail`` (FastAPI). Of other bodies the first words are quoted, of HTML the first visible words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from twofold.bench.record import UNKNOWN
from twofold.core.errors import UsageError

MAX_TOKENS: Final = 1 << 30
MAX_CHARS: Final = 300
_MAX_BYTES: Final = 64 << 10
_HIDDEN: Final = re.compile(r"<(script|style|head)\b.*?(?:</\1>|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL)
UNNAMED: Final = "the server reports an error without a message"
_NOTHING: Final = "the body is empty"


def read_object(data: bytes) -> dict[str, Any]:
    """Parses a JSON object. Raises ValueError."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:  # NaN in log-probabilities is accepted, and lone surrogates, which become ``?``
            text = json.dumps(json.loads(data), ensure_ascii=False)
            value = json.loads(text.encode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise ValueError("it is not valid JSON") from error
    if type(value) is not dict:
        raise ValueError("it is not a JSON object")
    return value


def text_at(fields: Mapping[str, Any], name: str) -> str:
    """The text in a field; empty for other values."""
    value = fields.get(name)
    return value if type(value) is str else ""


def object_at(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object in a field; empty for other values."""
    value = fields.get(name)
    return value if type(value) is dict else {}


def parts_at(fields: Mapping[str, Any], name: str) -> tuple[str, bool]:
    """The text in a field, and whether it has output of any kind. The field is a text, or a list of parts such as
    Mistral's: {"type": "text", "text": …}, or {"type": "thinking", "thinking": [parts]}, which is no text."""
    value = fields.get(name)
    parts = value if type(value) is list else [value]
    texts = [part if type(part) is str else text_at(part, "text") if type(part) is dict else "" for part in parts]
    thought = any(type(part) is dict and part.get("thinking") for part in parts)
    return "".join(texts), thought or any(texts)


def objects_at(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in the list in a field; empty for other values."""
    value = fields.get(name)
    return [item for item in value if type(item) is dict] if type(value) is list else []


def count_at(fields: Mapping[str, Any], name: str) -> int | None:
    """The number of tokens in a field; None for other values."""
    value = fields.get(name)
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


def length_at(fields: Mapping[str, Any], name: str) -> int:
    """The length of the list in a field; UNKNOWN for an empty list or other values."""
    value = fields.get(name)
    return len(value) if type(value) is list and value else UNKNOWN


def sentence(body: bytes) -> str:
    """The error message in a body of any bytes: one line of at most ``MAX_CHARS`` characters."""
    try:
        return error_message(read_object(body)) or short(body.decode("utf-8", "replace"))
    except ValueError:
        text = body[:_MAX_BYTES].decode("utf-8", "replace")
        return short(_HIDDEN.sub(" ", text) if text.lstrip()[:1] == "<" else text)


def redirection(status: int | None, headers: Mapping[str, str]) -> UsageError | None:
    """The error for a response that redirects, with its target; None for any other. Redirects are not followed: a load
    would measure both requests."""
    if status is None or not 300 <= status < 400:
        return None
    target = headers.get("location")
    where = f"the request to {short(target)}" if target else "the request, but names no target"
    hint = "Give the URL of the target: redirects are not followed."
    return UsageError(f"The server redirects {where} (status {status}).", hint=hint)


def error_message(fields: Mapping[str, Any]) -> str | None:
    """The error message in an object; None without one."""
    for name in ("error", "message", "detail", "errors"):
        found = _text_of(fields.get(name))
        if found:
            return short(found)
    return short(f"an error of type {fields['type']}") if fields.get("error") and fields.get("type") else None


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
    """One line of printable characters, at most ``MAX_CHARS``."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:_MAX_BYTES]).split())
    if len(line) > MAX_CHARS:
        line = line[: MAX_CHARS - 1].rstrip() + "…"
    return line or _NOTHING
