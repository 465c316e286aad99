"""The free texts of a grammar: strings of its schemas, a regex, texts up to a mark.

llguidance says which tokens may follow, but not in which state a text is. So each free text has an automaton here,
which is chosen by what llguidance allows, and whose ends are checked by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from twofold.engine.grammar.automaton import DEAD, Automaton, ByteExpression, Expressions
from twofold.engine.grammar.regex import UnsupportedRegexError, compiled_regex, json_string
from twofold.engine.grammar.source import GrammarSource

MAX_LEXEMES: Final = 32
MAX_PATTERN: Final = 2_000
MAX_DIGITS: Final = 20
"""Digits of an integer, a fraction or an exponent, unless the schema needs more: small models repeat digits without
end. Identifiers of 64 bits have 20 digits."""
MAX_TEXTS: Final = 1_000
"""Texts of an enumeration."""
_EXPONENT: Final = re.compile(rb"[0-9][eE][+-]?[0-9]{2,}\Z")
"""A power of ten with more digits than two may be more than programs read."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCHEMA: Final = re.compile(r"%json\s*(?=\{)")
_SUFFIX: Final = re.compile(r'\[suffix=("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A free text. ``quoted``: it begins after the last open quotation mark; else with the output.

    ``mark``: the text is whatever precedes this mark. ``named``: it is the name of a property, which decides what
    follows.
    """

    automaton: Automaton
    quoted: bool = False
    mark: bytes = b""
    named: bool = False

    def state(self, spelled: bytes, opened: int, before: tuple[int, int] | None = None) -> int:
        """The state of the text at the end of an output; ``opened`` is the start of its last open string, or -1.
        ``before``: the length of an output that ended in the same text, and the state there."""
        if self.quoted and opened < 0:
            return DEAD
        if self.mark:
            last = spelled.rfind(self.mark)
            begin = last + len(self.mark) if last >= 0 else 0
            before = max(begin, len(spelled) - len(self.mark)), self.automaton.start
        done, state = before or (opened if self.quoted else 0, self.automaton.start)
        return self.automaton.after(spelled[done:], state)


class Lexemes:
    """All free texts of a grammar, the most special ones first. Not thread-safe."""

    def __init__(self, source: GrammarSource, runs: bytes = b"") -> None:
        self._make = Expressions()
        self._runs = runs
        self._all: list[Lexeme] = []
        self._required = [*dict.fromkeys(name for schema in schemas_of(source) for name in _required(schema))][
            :MAX_TEXTS
        ]
        self._schemas = source.form in ("json", "json_object") or bool(schemas_of(source))
        if source.form == "regex":
            with suppress(UnsupportedRegexError):
                self._all.append(Lexeme(self._automaton(compiled_regex(self._make, source.text))))
        elif source.form != "choice":
            self._all += self._strings(source)
            self._all += self._marked(source)
        self._last = b"", -1, [lexeme.state(b"", -1) for lexeme in self._all]

    def in_number(self, spelled: bytearray) -> bool:
        """Whether an output ends with MAX_DIGITS digits, or two of an exponent, outside of a string, in JSON."""
        end = spelled[-MAX_DIGITS:]
        long = (end.isdigit() and len(end) == MAX_DIGITS) or _EXPONENT.search(end) is not None
        return self._schemas and long and _opened(spelled) < 0

    def states(self, spelled: bytes, *, named: bool) -> list[tuple[Automaton, int]]:
        """The automata that the end of an output may be in, with their states; with ``named`` also those of names."""
        _, states = self._states(spelled)
        pairs = [(lexeme, state) for lexeme, state in zip(self._all, states, strict=True) if state != DEAD]
        return [(lexeme.automaton, state) for lexeme, state in pairs if named or not lexeme.named]

    def ends(self, spelled: bytes) -> list[bytes]:
        """Texts that may end the free text at the end of an output: names of required properties, since objects with
        optional ones have longer ends, then the others, shortest first."""
        ends = {automaton.end(state) for automaton, state in self.states(spelled, named=True)}
        names = self._required if self._states(spelled)[0] == len(spelled) else ()
        return [*names, *sorted((end for end in ends if end), key=lambda end: (len(end), end))]

    def _states(self, spelled: bytes) -> tuple[int, list[int]]:
        """Where the open string of an output begins, and the state of each text. Those of the last output are kept:
        searches ask for each output that continues another one."""
        last, opened, states = self._last
        before: Iterable[tuple[int, int] | None] = [(len(last), state) for state in states]
        if not spelled.startswith(last) or b'"' in spelled[len(last) :]:
            opened, before = _opened(spelled), repeat(None)
        states = [lexeme.state(spelled, opened, done) for lexeme, done in zip(self._all, before, strict=False)]
        self._last = spelled, opened, states
        return opened, states

    def _automaton(self, root: ByteExpression) -> Automaton:
        return Automaton(self._make, root, self._runs)

    def _strings(self, source: GrammarSource) -> Iterator[Lexeme]:
        schemas = schemas_of(source)
        for key, texts in dict.fromkeys(found for schema in schemas for found in _enumerations(schema)):
            node = self._make.alt([self._make.literal(json.dumps(text).encode()[1:]) for text in texts])
            yield Lexeme(self._automaton(node), quoted=True, named=key == "properties")
        kinds = dict.fromkeys(kind for schema in schemas for kind in _kinds(schema))
        plain = [((), 0, None, escapes) for escapes in (False, True)]
        for patterns, least, most, escapes in [*[*kinds][:MAX_LEXEMES], *plain]:
            with suppress(UnsupportedRegexError):
                node = json_string(self._make, patterns, least, most, escapes=escapes)
                yield Lexeme(self._automaton(node), quoted=True)

    def _marked(self, source: GrammarSource) -> Iterator[Lexeme]:
        """Texts of Lark that end with a mark, as in ``text[suffix="</x>"]: /(?s:.*)/``."""
        for mark in dict.fromkeys(_SUFFIX.findall(source.text) if source.form == "grammar" else ()):
            text = json.loads(mark).encode()
            yield Lexeme(self._automaton(_up_to(self._make, text)), mark=text)


def _opened(spelled: bytes | bytearray) -> int:
    """Where the string begins that is open at the end of an output; -1 if none is. (No pattern with possessive groups:
    Python before 3.11.5 matches some of them wrongly.)"""
    begin = spelled.find(b'"')
    while begin >= 0 and (string := _STRING.match(spelled, begin)) is not None:
        begin = spelled.find(b'"', string.end())
    return begin + 1 if begin >= 0 else -1


def _up_to(make: Expressions, mark: bytes) -> ByteExpression:
    """Texts that end with the first ``mark``."""
    return make.cat(make.repeat(compiled_regex(make, "(?s).")), make.literal(mark))


def schemas_of(source: GrammarSource) -> list[Any]:
    """The schemas of a grammar."""
    if source.form == "json":
        return [json.loads(source.text)]
    found = []
    for begin in _SCHEMA.finditer(source.text if source.form == "grammar" else ""):
        with suppress(ValueError, RecursionError):
            found.append(json.JSONDecoder().raw_decode(source.text, begin.end())[0])
    return found


def parts_of(schema: Any) -> Iterator[tuple[dict[str, Any], int]]:
    """Every object in a schema, since each may be a schema, with the bytes of the key before it."""
    waiting = [(schema, 0)]
    while waiting:
        part, before = waiting.pop()
        if isinstance(part, dict):
            yield part, before
            waiting += [(inner, len(name) + 4) for name, inner in part.items()]
        elif isinstance(part, list):
            waiting += [(inner, 0) for inner in part]


def _enumerations(schema: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The strings of each enumeration, and the names of properties; each with its keyword."""
    for part, _ in parts_of(schema):
        for key in ("enum", "properties"):
            values = part.get(key)
            texts = [value for value in values if isinstance(value, str)] if isinstance(values, list | dict) else []
            if 1 < len(texts) <= MAX_TEXTS:
                yield key, tuple(texts)


def _required(schema: Any) -> Iterator[bytes]:
    """The rest of each required name after its quotation mark, with the colon, of objects that have optional ones."""
    for part, _ in parts_of(schema):
        names, required = part.get("properties"), part.get("required")
        if isinstance(names, dict) and isinstance(required, list) and not set(names) <= {*map(str, required)}:
            yield from (json.dumps(name).encode()[1:] + b":" for name in required if isinstance(name, str))


def _kinds(schema: Any) -> Iterator[tuple[tuple[str, ...], int, int | None, bool]]:
    """The patterns and lengths of a schema's strings, and whether characters may be escaped by number."""
    for part, _ in parts_of(schema):
        together = part.get("allOf")
        patterns = tuple(
            one["pattern"]
            for one in (part, *(together if isinstance(together, list) else ()))
            if isinstance(one, dict) and isinstance(one.get("pattern"), str) and len(one["pattern"]) <= MAX_PATTERN
        )
        least, most = (part.get(name) for name in ("minLength", "maxLength"))
        least = least if isinstance(least, int) and least > 0 else 0
        most = most if isinstance(most, int) and most >= 0 else None
        if patterns or least or most is not None:
            yield patterns, least, most, False
            if not patterns:
                yield patterns, least, most, True
        names = part.get("patternProperties")
        for pattern in names if isinstance(names, dict) else ():
            yield (pattern,), 0, None, False
