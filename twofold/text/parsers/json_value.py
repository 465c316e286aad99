"""An incremental reader of a JSON value: finds its end, and repairs common mistakes of models.

Repaired are line breaks and other control characters inside strings, escapes that JSON does not have
(``\\d`` is a backslash and a letter, ``\\'`` an apostrophe), and Python's ``True``, ``False`` and ``None``. Anything
else that violates the grammar of JSON (RFC 8259) sets ``broken``. Time is linear in the text.
"""

from __future__ import annotations

import re
from typing import Final

MAX_DEPTH: Final = 128

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ITEMS: Final = re.compile(
    r'(?:(?:"[^"\\\x00-\x1f]*+"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+|true|false|null)[ \t\n\r]*+,[ \t\n\r]*+)++'
)
"""Simple items of an array, each with its comma: read at once, because there can be many."""
_WORDS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_CONTROLS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_ESCAPES: Final = frozenset('"\\/bfnrtu')
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CLOSERS: Final = {"{": "}", "[": "]"}


class JsonValue:
    """Reads one value. Call ``read`` until ``done`` or ``broken``; ``take`` returns the text read so far."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._out: list[str] = []
        self._open: list[str] = []
        self._word: list[str] = []
        self._digits = 0
        self._is_key = False
        self._state = self._value

    def read(self, text: str, at: int) -> int:
        """Continues at ``text[at]``. Returns the position after the value's text, or that of invalid text."""
        while at < len(text) and not (self.done or self.broken):
            at = self._state(text, at)
        return at

    def take(self) -> str:
        """The text since the previous call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def _value(self, text: str, at: int) -> int:
        at = self._items(text, self._space(text, at))
        if at == len(text):
            return at
        if text[at] == '"':
            self._is_key = False
            return self._begin_string(at)
        if text[at] in _CLOSERS:
            return self._open_bracket(text[at], at)
        if _WORD.match(text, at).end() == at:  # type: ignore[union-attr]
            self.broken = True
        self._state = self._in_word
        return at

    def _items(self, text: str, at: int) -> int:
        found = _ITEMS.match(text, at) if self._open[-1:] == ["["] else None
        if found is None:
            return at
        self._out.append(found[0])
        return found.end()

    def _value_or_close(self, text: str, at: int) -> int:
        at = self._space(text, at)
        if at < len(text) and text[at] == "]":
            return self._close_bracket(text[at], at)
        self._state = self._value
        return at

    def _key_or_close(self, text: str, at: int) -> int:
        at = self._space(text, at)
        if at < len(text) and text[at] == "}":
            return self._close_bracket(text[at], at)
        return self._key(text, at)

    def _key(self, text: str, at: int) -> int:
        at = self._space(text, at)
        if at == len(text):
            return at
        if text[at] != '"':
            self.broken = True
            return at
        self._is_key = True
        return self._begin_string(at)

    def _colon(self, text: str, at: int) -> int:
        return self._single(text, at, ":", self._value)

    def _comma_or_close(self, text: str, at: int) -> int:
        at = self._space(text, at)
        if at < len(text) and text[at] == _CLOSERS[self._open[-1]]:
            return self._close_bracket(text[at], at)
        return self._single(text, at, ",", self._key if self._open[-1] == "{" else self._value)

    def _single(self, text: str, at: int, wanted: str, then: object) -> int:
        at = self._space(text, at)
        if at == len(text):
            return at
        if text[at] != wanted:
            self.broken = True
            return at
        self._out.append(wanted)
        self._state = then  # type: ignore[assignment]
        return at + 1

    def _open_bracket(self, bracket: str, at: int) -> int:
        if len(self._open) == MAX_DEPTH:
            self.broken = True
            return at
        self._open.append(bracket)
        self._out.append(bracket)
        self._state = self._key_or_close if bracket == "{" else self._value_or_close
        return at + 1

    def _close_bracket(self, bracket: str, at: int) -> int:
        self._open.pop()
        self._out.append(bracket)
        self._end_value()
        return at + 1

    def _begin_string(self, at: int) -> int:
        self._out.append('"')
        self._state = self._in_string
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        end = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
        self._out.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "\\":
            self._state = self._in_escape
        elif text[end] == '"':
            self._out.append('"')
            self._end_string()
        else:
            self._out.append(_CONTROLS.get(text[end], f"\\u{ord(text[end]):04x}"))
        return end + 1

    def _in_escape(self, text: str, at: int) -> int:
        letter = text[at]
        self._state = self._in_string
        if letter in _ESCAPES:
            self._out.append("\\" + letter)
            if letter == "u":
                self._digits, self._state = 4, self._in_hex
            return at + 1
        if letter == "'":
            self._out.append("'")
            return at + 1
        self._out.append("\\\\")
        return at

    def _in_hex(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            self.broken = True
            return at
        self._out.append(text[at])
        self._digits -= 1
        if not self._digits:
            self._state = self._in_string
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        end = _WORD.match(text, at).end()  # type: ignore[union-attr]
        self._word.append(text[at:end])
        if end < len(text):
            self._end_word()
        return end

    def _end_word(self) -> None:
        word = "".join(self._word)
        self._word.clear()
        if word in _WORDS or _NUMBER.fullmatch(word):
            self._out.append(_WORDS.get(word, word))
            self._end_value()
        else:
            self._out.append(word)
            self.broken = True

    def _end_string(self) -> None:
        if self._is_key:
            self._state = self._colon
        else:
            self._end_value()

    def _end_value(self) -> None:
        self._state = self._comma_or_close
        self.done = not self._open

    def _space(self, text: str, at: int) -> int:
        end = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if self._open:
            self._out.append(text[at:end])
        return end
