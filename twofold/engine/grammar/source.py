"""From ``StructuredOutputsParams`` to the grammar that llguidance compiles; nothing is compiled here.

GBNF, the grammar notation of llama.cpp, is translated to llguidance's Lark. There are few differences: ``name ::=`` is
``name:``, ``[a-z]`` is ``/[a-z]/`` and ``root`` is ``start``. Rules that refer to no recursive rule become terminals
(upper case), which the lexer matches: llguidance needs this for speed, and to distinguish alternatives that begin
alike. Notation: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from llguidance import LLMatcher

from twofold.core.errors import ParameterError
from twofold.core.json_formats import WHITE_SPACE, output_schema
from twofold.core.params import StructuredOutputsParams
from twofold.engine.grammar.form import impossible, json_errors, portable

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
"""Characters that are operators in sets of Rust's regexes, but plain characters in those of GBNF."""
_EMPTY: Final = ' ""'
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar to compile, in llguidance's JSON.

    form    the caller's name for its kind: json, json_object, regex, choice or grammar
    text    the schema, the regex or the Lark grammar; empty for the others
    texts   all possible outputs, if the caller listed them; else empty
    """

    form: str
    grammar: str
    text: str = ""
    texts: tuple[bytes, ...] = ()


def grammar_source(params: StructuredOutputsParams) -> GrammarSource:
    """The grammar of ``params``. Raises ParameterError for one that is too long or cannot be read."""
    params = portable(params)
    if isinstance(params.json, str):
        return _json_source(params.json)
    if params.json_object:
        return GrammarSource("json_object", _json_grammar('{"type": "object"}'))
    if params.regex is not None:
        return GrammarSource("regex", LLMatcher.grammar_from_regex(_unanchored(params.regex)), params.regex)
    if params.choice is not None:
        lark = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
        texts = tuple(dict.fromkeys(text.encode() for text in params.choice))
        return GrammarSource("choice", LLMatcher.grammar_from_lark(lark), texts=texts)
    assert params.grammar is not None
    lark = gbnf_to_lark(params.grammar) if is_gbnf(params.grammar) else params.grammar
    return GrammarSource("grammar", LLMatcher.grammar_from_lark(lark), lark)


def _json_grammar(schema: str) -> str:
    """A schema's grammar. Strings may escape any character, as ASCII-only JSON does, but no half surrogate pair."""
    return LLMatcher.grammar_from_json_schema(
        schema, {"json_allow_general_unicode_escapes": True, "whitespace_pattern": WHITE_SPACE}
    )


def _json_source(text: str) -> GrammarSource:
    with json_errors():
        value = json.loads(text)
        if not isinstance(value, dict | bool):
            raise impossible("json", "is not a JSON schema, which is an object", 'Write {"type": …}.')
        if value is False:
            raise impossible("json", "is false, which no output satisfies", "Write a schema, or true for any value.")
        if isinstance(value, dict) and (enforced := output_schema(value)) != value:
            text = json.dumps(enforced)
        return GrammarSource("json", _json_grammar("{}" if value is True else text), text)


def _unanchored(regex: str) -> str:
    """The regex without the anchors around it: the whole output has to match anyway."""
    body = regex.removeprefix("^")
    escapes = len(body) - 1 - len(body[:-1].rstrip("\\"))
    return body[:-1] if body.endswith("$") and escapes % 2 == 0 else body


@dataclass(slots=True)
class _GbnfRule:
    """``parts`` are (True, the name of a rule as in GBNF) or (False, a piece of Lark)."""

    name: str
    parts: list[tuple[bool, str]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {text for is_name, text in self.parts if is_name}


def is_gbnf(text: str) -> bool:
    """Whether a grammar is GBNF: Lark has no ``::=``."""
    return re.search(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", text, re.MULTILINE) is not None


def gbnf_to_lark(text: str) -> str:
    """Lark for a GBNF grammar, in linear time. Raises ParameterError, naming the line, for a malformed grammar."""
    rules = _gbnf_rules(text)
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


def _gbnf_rules(text: str) -> dict[str, _GbnfRule]:
    rules: dict[str, _GbnfRule] = {}
    current: _GbnfRule | None = None
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _malformed(text, position, "cannot be read")
        kind, value = match.lastgroup, match[0]
        if kind == "rule":
            current = rules.setdefault(match["rule"], _GbnfRule(match["rule"]))
            if current.parts:
                raise _malformed(text, position, "defines a rule again")
        elif kind not in {"space", "newline"}:
            if current is None:
                raise _malformed(text, position, "precedes the first rule")
            current.parts.append((kind == "name", _part(str(kind), value)))
        position = match.end()
    unknown = {name for rule in rules.values() for name in rule.names} - rules.keys()
    if unknown or "root" not in rules:
        missing = "root" if "root" not in rules else min(unknown)
        raise _gbnf_error(f"has no rule {missing!r}")
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
        raise _gbnf_error(f"holds {match[0]!r}, which is no character")
    return chr(code)


def _set_character(match: re.Match[str]) -> str:
    return _escape(_character(match))


def _escape(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"


def _terminals(rules: dict[str, _GbnfRule]) -> set[str]:
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
    return _gbnf_error(f"{what}: {text[position : position + 20]!r} in line {line}")


def _gbnf_error(what: str) -> ParameterError:
    return ParameterError(
        f"The structured output's GBNF grammar {what}.",
        param="structured_outputs.grammar",
        hint="Write rules as in: root ::= [a-z]+ | number.",
    )
