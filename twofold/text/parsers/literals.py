"""Reads values written as Python literals or in similar notations, without executing them.

    value   text | number | True False None true false null | [value, …] | (value, …) | {key: value, …}

Notations differ in strings and keys: Python quotes both, Gemma encloses strings in a mark and does not quote keys.
Time is linear; depth and the digits of a number are bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 400
SPACE: Final = re.compile(r"\s*+")
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
_WORD: Final = re.compile(r"[A-Za-z]++")
_BARE_KEY: Final = re.compile(r"[^:{}\[\],]++")
_WORDS: Final = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_STRING: Final = re.compile(
    r'[ru]?(?:"""(?P<a>(?:[^"\\]|\\.|"(?!""))*+)"""'
    r"|'''(?P<b>(?:[^'\\]|\\.|'(?!''))*+)'''"
    r'|"(?P<c>(?:[^"\\]|\\.)*+)"'
    r"|'(?P<d>(?:[^'\\]|\\.)*+)')",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}


class NotLiteralError(ValueError):
    """The text is not a value of the notation."""


@dataclass(frozen=True, slots=True)
class Notation:
    """Readers of strings and keys at a position. They return the value and the position after it.

    Both raise NotLiteralError. ``text`` returns None if no string begins there.
    """

    text: Callable[[str, int], tuple[str, int] | None]
    key: Callable[[str, int], tuple[str, int]]


def read_value(notation: Notation, text: str, at: int, depth: int = 0) -> tuple[Any, int]:
    """The value at a position after space, and the position after it. Raises NotLiteralError."""
    at = skip(text, at)
    if depth > MAX_DEPTH or at == len(text):
        raise NotLiteralError
    if text[at] == "{":
        return _mapping(notation, text, at + 1, depth + 1)
    if text[at] in "[(":
        return _list(notation, text, at + 1, "]" if text[at] == "[" else ")", depth + 1)
    found = notation.text(text, at)
    return found if found is not None else _scalar(text, at)


def skip(text: str, at: int) -> int:
    """The position after space."""
    return SPACE.match(text, at).end()  # type: ignore[union-attr]


def _scalar(text: str, at: int) -> tuple[Any, int]:
    number = _NUMBER.match(text, at)
    if number is not None:
        return _number(number[0]), number.end()
    word = _WORD.match(text, at)
    if word is None or word[0] not in _WORDS:
        raise NotLiteralError
    return _WORDS[word[0]], word.end()


def _number(text: str) -> int | float:
    if len(text) > MAX_DIGITS:
        raise NotLiteralError
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise NotLiteralError
    return value


def _list(notation: Notation, text: str, at: int, close: str, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while not text.startswith(close, at := skip(text, at)):
        item, at = read_value(notation, text, at, depth)
        items.append(item)
        at = _comma(text, at, close)
    return items, at + 1


def _mapping(notation: Notation, text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    while not text.startswith("}", at := skip(text, at)):
        key, at = notation.key(text, at)
        if not text.startswith(":", at := skip(text, at)):
            raise NotLiteralError
        items[key], at = read_value(notation, text, at + 1, depth)
        at = _comma(text, at, "}")
    return items, at + 1


def _comma(text: str, at: int, close: str) -> int:
    """The position after the comma that follows an item, or at the closing bracket."""
    at = skip(text, at)
    if text.startswith(",", at):
        return at + 1
    if not text.startswith(close, at):
        raise NotLiteralError
    return at


def python_text(text: str, at: int) -> tuple[str, int] | None:
    """A Python string. Unknown escapes are kept, as in Python."""
    found = _STRING.match(text, at)
    if found is None:
        return None
    body = next(part for part in found.groups() if part is not None)
    value = body if found[0][0] == "r" else _ESCAPE.sub(_unescaped, body)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise NotLiteralError
    return value, found.end()


def _unescaped(found: re.Match[str]) -> str:
    escape = found[0][1:]
    if len(escape) > 1:
        code = int(escape[1:], 16)
        if code > 0x10FFFF:
            raise NotLiteralError
        return chr(code)
    if escape in "\\'\"":
        return escape
    return _ESCAPED.get(escape, found[0])


def _python_key(text: str, at: int) -> tuple[str, int]:
    found = python_text(text, at)
    if found is None:
        raise NotLiteralError
    return found


PYTHON: Final = Notation(python_text, _python_key)


def quoted(mark: str) -> Notation:
    """Gemma's notation: strings are enclosed in ``mark``; keys are not quoted and end at their colon."""

    def read_text(text: str, at: int) -> tuple[str, int] | None:
        if not text.startswith(mark, at):
            return None
        end = text.find(mark, at + len(mark))
        if end < 0:
            raise NotLiteralError
        return text[at + len(mark) : end], end + len(mark)

    def read_key(text: str, at: int) -> tuple[str, int]:
        found = read_text(text, at)
        if found is not None:
            return found
        key = _BARE_KEY.match(text, at)
        if key is None:
            raise NotLiteralError
        return key[0].rstrip(), key.end()

    return Notation(read_text, read_key)
