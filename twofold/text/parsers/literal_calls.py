"""Calls whose arguments are literals. They are read without executing them, and emitted as a whole.

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

from twofold.text.parsers.base import MarkFinder, PieceWriter, skip
from twofold.text.parsers.calls import CallReader
from twofold.text.parsers.family import dumped

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 400
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
_WORD: Final = re.compile(r"[A-Za-z]++")
_BARE_KEY: Final = re.compile(r"[^:{}\[\],]++")
_WORDS: Final = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_STRING: Final = re.compile(
    r'[ru]?(?:"""(?P<a>(?:[^"\\]++|\\.|"(?!""))*)"""'
    r"|'''(?P<b>(?:[^'\\]++|\\.|'(?!''))*)'''"
    r'|"(?P<c>(?:[^"\\]++|\\.)*)"'
    r"|'(?P<d>(?:[^'\\]++|\\.)*)')",
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


def gemma_notation(mark: str) -> Notation:
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


MAX_NAME: Final = 128
MAX_CALL: Final = 1 << 20
_PLAIN: Final = re.compile(r"[^\"'\\()\[\]{}]*+")
_TEXT: Final = re.compile(r"[^\"'\\]++|.", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


class PythonSpan:
    """Finds the bracket that closes the first one; strings are Python's, in single or triple quotes."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._mark = ""
        self._quote = ""
        self._run = 0
        self._escaped = False

    def read(self, text: str, at: int) -> int:
        """Continues at ``text[at]``. Returns the position after the text that belongs to the span."""
        while at < len(text) and not self.done:
            if not self._quote and not self._run:
                at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
            if at < len(text):
                at = self._one(text, at)
        return at

    def _one(self, text: str, at: int) -> int:
        character = text[at]
        if self._quote:
            return self._within(text, at)
        if self._run:
            return self._opening(character, at)
        if character in "\"'":
            self._mark, self._run = character, 1
        elif character in _OPEN:
            self._depth += 1
        elif character in _CLOSE:
            self._depth -= 1
            self.done = self._depth <= 0
        return at + 1

    def _opening(self, character: str, at: int) -> int:
        """After one or two quotes: they are an empty string, or begin a string of one or three quotes."""
        if character == self._mark:
            self._run += 1
            if self._run == 3:
                self._quote, self._run = self._mark * 3, 0
            return at + 1
        if self._run == 1:
            self._quote = self._mark
        self._run = 0
        return at

    def _within(self, text: str, at: int) -> int:
        character = text[at]
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped, self._run = True, 0
        elif character == self._mark:
            self._run += 1
            if self._run == len(self._quote):
                self._quote, self._run = "", 0
        else:
            self._run = 0
            return _TEXT.match(text, at).end()  # type: ignore[union-attr]
        return at + 1


class MarkedSpan:
    """Finds the brace that closes the first one; strings are enclosed in ``mark``."""

    def __init__(self, mark: str) -> None:
        self.done = False
        self._finder = MarkFinder(("{", "}", mark))
        self._mark = mark
        self._depth = 0
        self._inside = False

    def read(self, text: str, at: int) -> int:
        """As ``PythonSpan.read``; a possible start of a mark at the end of the text is not consumed."""
        while not self.done:
            at, found = self._finder.find(text, at)
            if not found:
                break
            at += len(found)
            if found == self._mark:
                self._inside = not self._inside
            elif not self._inside:
                self._depth += 1 if found == "{" else -1
                self.done = self._depth <= 0
        return at


@dataclass(frozen=True, slots=True)
class LiteralSyntax:
    """How a call is written.

    head       matches the characters before the arguments
    bracket    the first character of the arguments
    name       returns the tool's name in a head; None if no call has such a head
    span       makes a finder of the end of the arguments
    arguments  reads the whole arguments; raises NotLiteralError
    """

    head: re.Pattern[str]
    bracket: str
    name: Callable[[str], str | None]
    span: Callable[[], PythonSpan | MarkedSpan]
    arguments: Callable[[str], Any]


class LiteralCallReader(CallReader):
    """Reads a call, and emits it whole. ``known`` are the names that it may have; None allows all."""

    def __init__(self, syntax: LiteralSyntax, out: PieceWriter, known: frozenset[str] | None) -> None:
        super().__init__(out, self._in_head)
        self._syntax = syntax
        self._known = known
        self._head = self._name = ""
        self._span = syntax.span()
        self._read: list[str] = []
        self._length = 0

    def _in_head(self, text: str, at: int) -> int:
        end = self._syntax.head.match(text, at).end()  # type: ignore[union-attr]
        self._head += text[at:end][: MAX_NAME + 1]
        if len(self._head) > MAX_NAME:
            self.broken = True
        elif end < len(text):
            name = self._syntax.name(self._head)
            known = self._known is None or name in self._known
            self.broken = text[end] != self._syntax.bracket or name is None or not known
            self._name, self._state = name or "", self._in_arguments
        return end

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._span.read(text, at)
        self._read.append(text[at:end])
        self._length += end - at
        if self._span.done:
            try:
                arguments = self._syntax.arguments("".join(self._read))
            except NotLiteralError:
                self.broken = True
                return end
            self._out.call(self._name)
            self._out.arguments(dumped(arguments))
            self.done = self.emitted = True
        self.broken = self._length > MAX_CALL
        return end
