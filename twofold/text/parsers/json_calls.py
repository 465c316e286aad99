"""A tool call written as a JSON object with a name and arguments, in any order; other keys are ignored.

The call is emitted when its name is known and its arguments begin; its arguments follow incrementally. An object in two
pairs of braces, ``{{"name": …}}``, is a call too: Qwen2.5's template shows calls so, and small models copy it.
"""

from __future__ import annotations

import json
import re
from typing import Final

from twofold.text.parsers.json_value import JsonValue
from twofold.text.parsers.pieces import PieceWriter, State

ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})
_SPACE: Final = re.compile(r"\s*")


class JsonCallReader:
    """A ``CallReader``. ``known`` are the names that a call may have; None allows all."""

    def __init__(self, out: PieceWriter, known: frozenset[str] | None) -> None:
        self._out = out
        self._known = known
        self._key = ""
        self._name: str | None = None
        self._early: str | None = None
        self._value = JsonValue()
        self._read: list[str] = []
        self._state: State = self._brace
        self._doubled = False
        self.done = self.broken = self.left = False

    def read(self, text: str, at: int) -> int:
        """``CallReader.read``."""
        while at < len(text) and not (self.done or self.broken):
            at = self._state(text, at)
        if self.left:
            self.end()
        return at

    def end(self) -> None:
        """``CallReader.end``."""
        if self.left and self._state == self._arguments:
            self._out.arguments(self._value.take())

    def _brace(self, _: str, at: int) -> int:
        self._state = self._first_key
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        if text[at] == "{" and not self._doubled:
            self._doubled = True
            return at + 1
        return self._key_at(text, _space(text, at), may_end=True)

    def _next_key(self, text: str, at: int) -> int:
        return self._key_at(text, _space(text, at), may_end=False)

    def _key_at(self, text: str, at: int, *, may_end: bool) -> int:
        if at == len(text):
            return at
        if text[at] == "}" and may_end:
            return self._close(at)
        if text[at] != '"':
            self.broken = True
            return at
        self._begin(self._in_key)
        return at

    def _begin(self, state: State) -> None:
        self._value, self._read = JsonValue(), []
        self._state = state

    def _in_key(self, text: str, at: int) -> int:
        at = self._read_value(text, at)
        if self._value.done:
            self._key = self._text() or ""
            self._state = self._colon
        return at

    def _colon(self, text: str, at: int) -> int:
        at = _space(text, at)
        if at < len(text):
            self.broken = text[at] != ":"
            self._state = self._value_begin
            at += not self.broken
        return at

    def _value_begin(self, text: str, at: int) -> int:
        at = _space(text, at)
        if at == len(text):
            return at
        state = self._passed
        if self._key == "name" and self._name is None:
            state = self._in_name
        elif self._key in ARGUMENT_KEYS and not self.left and self._early is None:
            state = self._arguments if text[at] == "{" and self._name is not None else self._in_early
        self._begin(state)
        if state == self._arguments:
            self._leave()
        return at

    def _in_name(self, text: str, at: int) -> int:
        at = self._read_value(text, at)
        if self._value.done:
            self._name = self._text()
            unknown = self._known is not None and self._name not in self._known
            self.broken = not self._name or unknown
            self._state = self._after_value
            if self._early is not None and not self.broken:
                self._leave()
                self._out.arguments(self._early)
        return at

    def _arguments(self, text: str, at: int) -> int:
        at = self._value.read(text, at)
        self.broken = self._value.broken
        if self._value.done or self.broken:
            self.end()
            self._state = self._after_value
        return at

    def _in_early(self, text: str, at: int) -> int:
        """Arguments before the name, or as a string that contains JSON."""
        at = self._read_value(text, at)
        if self._value.done:
            self._early = _object("".join(self._read))
            self.broken = self._early is None
            self._state = self._after_value
            if self._name is not None and self._early is not None:
                self._leave()
                self._out.arguments(self._early)
        return at

    def _passed(self, text: str, at: int) -> int:
        at = self._read_value(text, at)
        if self._value.done:
            self._state = self._after_value
        return at

    def _after_value(self, text: str, at: int) -> int:
        at = _space(text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            return self._close(at)
        self.broken = text[at] != ","
        self._state = self._next_key
        return at + (not self.broken)

    def _close(self, at: int) -> int:
        if self._name is None:
            self.broken = True
            return at
        if not self.left:
            self._leave()
            self._out.arguments("{}")
        self.done = not self._doubled
        self._state = self._second_brace
        return at + 1

    def _second_brace(self, text: str, at: int) -> int:
        """After a call in two pairs of braces: the last brace, which may be missing."""
        self.done = True
        return at + (text[at] == "}")

    def _leave(self) -> None:
        assert self._name is not None
        self._out.call(self._name)
        self.left = True

    def _read_value(self, text: str, at: int) -> int:
        at = self._value.read(text, at)
        self._read.append(self._value.take())
        self.broken = self._value.broken
        return at

    def _text(self) -> str | None:
        """The string that was read; None for other values and lone surrogates."""
        try:
            value = json.loads("".join(self._read))
            if isinstance(value, str):
                value.encode()
                return value
        except (ValueError, RecursionError):
            pass
        return None


def _object(text: str) -> str | None:
    """JSON text of an object, or of a string that contains one; None for anything else."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if isinstance(value, str):
            text, value = value, json.loads(value, parse_constant=_no_constant)
            text.encode()
    except (ValueError, RecursionError):
        return None
    return text.strip() if isinstance(value, dict) else None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]
