"""Calls written as JSON objects, as Hermes and Qwen 2.5, Llama 3 and Mistral write them.

A call has a name and arguments, in any order; other keys are ignored. It is emitted when its name is known and its
arguments begin; its arguments follow incrementally. An object in two pairs of braces, ``{{"name": …}}``, is a call too:
Qwen2.5's template shows calls so, and small models copy it.

Sources: the chat templates of Hermes 2 Pro and Qwen 2.5, of Llama 3.1, and of Mistral 7B v0.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from twofold.text.parsers.base import PieceWriter, SectionParser, State, no_constant, skip
from twofold.text.parsers.calls import CallParser, CallReader, CallSyntax
from twofold.text.parsers.family import Call, Term, Tool, dumped, name_of, one_of, schema_of, spaced

MAX_DEPTH: Final = 128

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ITEMS: Final = re.compile(
    r'(?:(?:"[^"\\\x00-\x1f]*+"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?|true|false|null)[ \t\n\r]*+,[ \t\n\r]*+)+'
)
"""Simple items of an array, each with its comma: matched together, because there can be many."""
_WORDS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_CONTROLS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_ESCAPES: Final = frozenset('"\\/bfnrtu')
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CLOSERS: Final = {"{": "}", "[": "]"}


class JsonValue:
    """Finds the end of a JSON value, and repairs common mistakes of models.

    Repaired are line breaks and other control characters inside strings, escapes that JSON does not have
    (``\\d`` is a backslash and a letter, ``\\'`` an apostrophe), and Python's ``True``, ``False`` and ``None``. Any
    other violation of the grammar of JSON (RFC 8259) sets ``broken``. Time is linear in the text.

    Call ``read`` until ``done`` or ``broken``; ``take`` returns the text read so far.
    """

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._out: list[str] = []
        self._open: list[str] = []
        self._word: list[str] = []
        self._digits = 0
        self._is_key = False
        self._state: State = self._value

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

    def _single(self, text: str, at: int, wanted: str, then: State) -> int:
        at = self._space(text, at)
        if at == len(text):
            return at
        if text[at] != wanted:
            self.broken = True
            return at
        self._out.append(wanted)
        self._state = then
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


ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})


class JsonCallReader(CallReader):
    """Reads a call that is a JSON object. ``known`` are the names that it may have; None allows all."""

    def __init__(self, out: PieceWriter, known: frozenset[str] | None) -> None:
        super().__init__(out, self._brace)
        self._known = known
        self._key = ""
        self._name: str | None = None
        self._early: str | None = None
        self._value = JsonValue()
        self._read: list[str] = []
        self._doubled = False

    def read(self, text: str, at: int) -> int:
        at = super().read(text, at)
        if self.emitted:
            self.end()
        return at

    def end(self) -> None:
        if self.emitted and self._state == self._arguments:
            self._out.arguments(self._value.take())

    def _brace(self, _: str, at: int) -> int:
        self._state = self._first_key
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        if text[at] == "{" and not self._doubled:
            self._doubled = True
            return at + 1
        return self._key_at(text, skip(text, at), may_end=True)

    def _next_key(self, text: str, at: int) -> int:
        return self._key_at(text, skip(text, at), may_end=False)

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
        at = skip(text, at)
        if at < len(text):
            self.broken = text[at] != ":"
            self._state = self._value_begin
            at += not self.broken
        return at

    def _value_begin(self, text: str, at: int) -> int:
        at = skip(text, at)
        if at == len(text):
            return at
        state = self._skipped
        if self._key == "name" and self._name is None:
            state = self._in_name
        elif self._key in ARGUMENT_KEYS and not self.emitted and self._early is None:
            state = self._arguments if text[at] == "{" and self._name is not None else self._in_early
        self._begin(state)
        if state == self._arguments:
            self._emit()
        return at

    def _in_name(self, text: str, at: int) -> int:
        at = self._read_value(text, at)
        if self._value.done:
            self._name = self._text()
            unknown = self._known is not None and self._name not in self._known
            self.broken = not self._name or unknown
            self._state = self._after_value
            if self._early is not None and not self.broken:
                self._emit()
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
                self._emit()
                self._out.arguments(self._early)
        return at

    def _skipped(self, text: str, at: int) -> int:
        at = self._read_value(text, at)
        if self._value.done:
            self._state = self._after_value
        return at

    def _after_value(self, text: str, at: int) -> int:
        at = skip(text, at)
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
        if not self.emitted:
            self._emit()
            self._out.arguments("{}")
        self.done = not self._doubled
        self._state = self._second_brace
        return at + 1

    def _second_brace(self, text: str, at: int) -> int:
        """After a call in two pairs of braces: the last brace, which may be missing."""
        self.done = True
        return at + (text[at] == "}")

    def _emit(self) -> None:
        assert self._name is not None
        self._out.call(self._name)
        self.emitted = True

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
        value = json.loads(text, parse_constant=no_constant)
        if isinstance(value, str):
            text, value = value, json.loads(value, parse_constant=no_constant)
            text.encode()
    except (ValueError, RecursionError):
        return None
    return text.strip() if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class JsonFamily:
    """``ToolFamily`` of models whose calls are objects of a name and, under ``key``, arguments.

    pairs    opening and closing marks by which calls are found
    first    texts and marks before all calls; ``last``: after all calls; ``between``: between two calls
    before   texts and marks before each call; ``after``: after each call
    """

    name: str
    key: str
    pairs: tuple[tuple[str, str], ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    stops: ClassVar[tuple[str, ...]] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(mark for pair in self.pairs for mark in pair if mark)

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        syntax = CallSyntax(dict(self.pairs), re.compile("{"), "{[", JsonCallReader)
        return CallParser(syntax, map(name_of, tools), parallel=parallel)

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:

        def terms(*texts: str) -> str:
            return " ".join(map(term, texts))

        more = f" ({terms(*self.between)} call)*" if parallel else ""
        calls = one_of([f"call_{index}" for index in range(len(tools))])
        rules = [
            f"start: {terms(*self.first)} call{more} {terms(*self.last)}",
            f"""call: {terms(*self.before, '{"name": "')} ({calls}) {terms("}", *self.after)}""",
        ]
        for index, tool in enumerate(tools):
            head = terms(f'{dumped(name_of(tool))[1:]}, "{self.key}": ')
            rules.append(f"call_{index}: {head} arguments_{index}\narguments_{index}: {spaced(tool, schema_of(tool))}")
        return "\n".join(rules)

    def written(self, calls: Sequence[Call]) -> str:
        texts = (
            "".join((*self.before, dumped({"name": call.name, self.key: call.arguments}), *self.after))
            for call in calls
        )
        return "".join(self.first) + "".join(self.between).join(texts) + "".join(self.last)

    def instructions(self, tools: Sequence[Tool]) -> str:
        example = self.written([Call("function_name", {"argument": "value"})])
        lines = "\n".join(dumped(tool["function"]) for tool in tools)
        return (
            f"# Tools\n\nYou can call functions. These are the functions, one in each line:\n{lines}\n\n"
            f"To call a function, write its name and its arguments in exactly this form:\n{example}\n"
            "You receive its result between <tool_response> and </tool_response>. "
            "Where no function is needed, answer in plain words."
        )


HERMES: Final = JsonFamily(
    "hermes",
    "arguments",
    (("<tool_call>", "</tool_call>"),),
    before=("<tool_call>", "\n"),
    after=("\n", "</tool_call>"),
    between=("\n",),
)
LLAMA3: Final = JsonFamily("llama3", "parameters", (("<|python_tag|>", ""),), between=("; ",))
MISTRAL: Final = JsonFamily(
    "mistral", "arguments", (("[TOOL_CALLS]", ""),), first=("[TOOL_CALLS]", "["), last=("]",), between=(", ",)
)
