"""GBNF, the grammar notation of llama.cpp, written as llguidance's Lark.

The notations differ in little: ``name ::=`` is ``name:``, ``[a-z]`` is ``/[a-z]/`` and ``root`` is ``start``. Rules
that refer to no recursive rule become terminals (upper case), so that they are matched by the lexer, which llguidance
needs for speed and for telling apart what begins alike.
Notation: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from twofold.core.errors import ParameterError

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t]+|\#[^\n\r]*)
      | (?P<newline>\r?\n|\r)
      | (?P<rule>[A-Za-z0-9_-]+)[ \t]*::=
      | (?P<name>[A-Za-z0-9_-]+)
      | (?P<literal>"(?:[^"\\\n]|\\.)*")
      | (?P<set>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<count>\{[ ]*\d{1,6}[ ]*(?:,[ ]*(?:\d{1,6})?[ ]*)?\})
      | (?P<sign>[()|*+?.])""",
    re.VERBOSE,
)
_HEX: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))|\\(.)", re.DOTALL)
_MEANT_IN_SETS: Final = "[/&~"
"""What a set of Rust's regexes reads as a sign, and GBNF does not."""
_EMPTY: Final = ' ""'
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(slots=True)
class _Rule:
    """``parts`` are pieces of Lark, or the names of rules, which are still in GBNF's spelling."""

    name: str
    parts: list[tuple[bool, str]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {text for is_name, text in self.parts if is_name}


def is_gbnf(text: str) -> bool:
    """Whether a grammar is GBNF: Lark has no ``::=``."""
    return re.search(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", text, re.MULTILINE) is not None


def gbnf_to_lark(text: str) -> str:
    """Lark for a GBNF grammar. Raises ParameterError, naming the line, for one that is malformed. Linear time."""
    rules = _read(text)
    terminals = _terminals(rules)
    lark_names = {name: _lark_name(index, name, name in terminals) for index, name in enumerate(rules)}
    lines = []
    for rule in rules.values():
        pieces = (f" {lark_names[part]}" if is_name else part for is_name, part in rule.parts)
        lines.append(f"{lark_names[rule.name]}:{''.join(pieces) or _EMPTY}")
    return "\n".join(lines) + "\n"


def _lark_name(index: int, name: str, terminal: bool) -> str:
    if name == "root":
        return "start"
    return f"T{index}" if terminal else f"r{index}"


def _read(text: str) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    current: _Rule | None = None
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _malformed(text, position, "cannot be read")
        kind, value = match.lastgroup, match[0]
        if kind == "rule":
            current = rules.setdefault(match["rule"], _Rule(match["rule"]))
            if current.parts:
                raise _malformed(text, position, "defines a rule again")
        elif kind not in {"space", "newline"}:
            if current is None:
                raise _malformed(text, position, "stands before the first rule")
            current.parts.append((kind == "name", _part(str(kind), value)))
        position = match.end()
    unknown = {name for rule in rules.values() for name in rule.names} - rules.keys()
    if unknown or "root" not in rules:
        missing = "root" if "root" not in rules else min(unknown)
        raise _error(f"has no rule {missing!r}")
    return rules


def _part(kind: str, value: str) -> str:
    if kind == "literal":
        return " " + _literal(_HEX.sub(_character, value[1:-1]))
    if kind == "set":
        body = _HEX.sub(_set_character, value[1:-1])
        return " /[" + "".join(_escape(c) if c in _MEANT_IN_SETS else c for c in body) + "]/"
    if kind == "count":
        return value.replace(" ", "")
    return r" /[^\n]/" if value == "." else value


def _literal(text: str) -> str:
    return '"' + "".join(f"\\{c}" if c in '"\\' else c if c.isprintable() else _escape_text(c) for c in text) + '"'


def _escape_text(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else character


def _character(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return _CONTROL.get(match[4], match[4])
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise _error(f"holds {match[0]!r}, which is no character")
    return chr(code)


def _set_character(match: re.Match[str]) -> str:
    return _escape(_character(match))


def _escape(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"


def _terminals(rules: dict[str, _Rule]) -> set[str]:
    """Rules all of whose names are terminals, from those without names upwards (Kahn 1962)."""
    users: dict[str, list[str]] = defaultdict(list)
    missing = {}
    for rule in rules.values():
        missing[rule.name] = len(rule.names)
        for name in rule.names:
            users[name].append(rule.name)
    ready = [name for name, count in missing.items() if count == 0]
    found = set()
    while ready:
        name = ready.pop()
        if name == "root":
            continue
        found.add(name)
        for user in users[name]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    return found


def _malformed(text: str, position: int, what: str) -> ParameterError:
    line = text.count("\n", 0, position) + 1
    return _error(f"{what}: {text[position : position + 20]!r} in line {line}")


def _error(what: str) -> ParameterError:
    return ParameterError(
        f"The structured output's GBNF grammar {what}.",
        param="structured_outputs.grammar",
        hint="Write rules as in: root ::= [a-z]+ | number.",
    )
