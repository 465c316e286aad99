"""Calls in Gemma's own notation: ``call:weather{city:<escape>Paris<escape>,days:3}`` between two control tokens.

Sources: "FunctionGemma formatting and best practices" and "Function calling with Gemma 4" in Google's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twofold.text.parsers.base import SectionParser
from twofold.text.parsers.calls import CallParser, CallSyntax
from twofold.text.parsers.family import Call, Term, Tool, dumped, name_of, one_of
from twofold.text.parsers.literals import NotLiteralError, quoted, read_value
from twofold.text.parsers.pieces import PieceWriter
from twofold.text.parsers.pythonic import MAX_CALL, MAX_NAME, argument_rules, properties_of, text_choices
from twofold.text.parsers.span import MarkedSpan

_HEAD: Final = re.compile(r"[^{<\n]*+")
_CALL: Final = re.compile(r"call:\s*+([^\s:{]++)\s*+")


class GemmaCallReader:
    """A ``CallReader``; texts stand between two ``quote``. The call leaves when it is whole."""

    def __init__(self, out: PieceWriter, quote: str) -> None:
        self._out = out
        self._quote = quote
        self._span: MarkedSpan | None = None
        self._head = ""
        self._read: list[str] = []
        self._length = 0
        self.done = self.broken = self.left = False

    def read(self, text: str, at: int) -> int:
        """``CallReader.read``."""
        if self._span is None:
            at = self._name(text, at)
        if self._span is None or self.broken:
            return at
        end = self._span.read(text, at)
        self._read.append(text[at:end])
        self._length += end - at
        if self._span.done:
            self._tell()
        self.broken = self.broken or self._length > MAX_CALL
        return end

    def end(self) -> None:
        """``CallReader.end``: half a call is none."""

    def _name(self, text: str, at: int) -> int:
        end = _HEAD.match(text, at).end()  # type: ignore[union-attr]
        self._head += text[at:end][: MAX_NAME + 1]
        if len(self._head) > MAX_NAME:
            self.broken = True
        elif end < len(text):
            self.broken = text[end] != "{" or not _CALL.fullmatch(self._head)
            self._span = MarkedSpan(self._quote)
        return end

    def _tell(self) -> None:
        name = _CALL.fullmatch(self._head)
        assert name is not None, "the head was matched before"
        try:
            arguments, _ = read_value(quoted(self._quote), "".join(self._read), 0)
        except NotLiteralError:
            self.broken = True
            return
        self._out.call(name[1])
        self._out.arguments(dumped(arguments))
        self.done = self.left = True


@dataclass(frozen=True, slots=True)
class GemmaFamily:
    """``ToolFamily`` of Gemma models with control tokens: ``opens`` and ``closes`` a call, ``quote`` around texts.

    ``responds`` would begin a result: the model goes on with it where nothing stops it.
    """

    name: str
    opens: str
    closes: str
    quote: str
    responds: str

    @property
    def marks(self) -> tuple[str, ...]:
        """``ToolFamily.marks``."""
        return (self.opens, self.closes, self.quote)

    @property
    def stops(self) -> tuple[str, ...]:
        """``ToolFamily.stops``."""
        return (self.responds,)

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        """``ToolFamily.parser``."""

        def reader(out: PieceWriter, _: frozenset[str] | None) -> GemmaCallReader:
            return GemmaCallReader(out, self.quote)

        syntax = CallSyntax({self.opens: self.closes}, re.compile("c"), "", reader)
        return CallParser(syntax, map(name_of, tools), parallel=parallel)

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        """``ToolFamily.rules``. Schemas hold as far as types, enumerations and required properties go."""
        more = "+" if parallel else ""
        quote = term(self.quote)
        rules = [
            f"start: call{more}",
            f"call: {term(self.opens)} ({one_of([f'call_{i}' for i in range(len(tools))])}) {term(self.closes)}",
            f"text: {quote} /[^<]*/ {quote}",
            'list: "[" (value ("," value)*)? "]"',
            'map: "{" (pair ("," pair)*)? "}"',
            'pair: /[A-Za-z_][A-Za-z0-9_]*/ ":" value',
            f"value: text | number | {_WORDS} | list | map",
            r"number: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/" + "\n" + r"integer: /-?(0|[1-9][0-9]{0,17})/",
        ]
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {term(f'call:{name_of(tool)}{{')} arguments_{index} {term('}')}")
            values = {name: self._value(schema, term) for name, schema in properties_of(tool).items()}
            rules += argument_rules(index, tool, values, term, head="{}:".format, comma=",")
        return "\n".join(rules)

    def _value(self, schema: Mapping[str, Any], term: Term) -> str:
        choices, quote = text_choices(schema), term(self.quote)
        if choices and not any("<" in choice for choice in choices):
            return one_of([f"{quote} {term(choice)} {quote}" for choice in choices])
        if schema.get("type") == "array":
            items = schema.get("items")
            item = f"({self._value(items, term)})" if isinstance(items, Mapping) else "value"
            return f'"[" ({item} ("," {item})*)? "]"'
        return _TYPES.get(str(schema.get("type")), "value")

    def written(self, calls: Sequence[Call]) -> str:
        """``ToolFamily.written``."""
        return "".join(f"{self.opens}call:{call.name}{self._literal(call.arguments)}{self.closes}" for call in calls)

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self._literal(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(self._literal, value))}]"
        return dumped(value)

    def told(self, tools: Sequence[Tool]) -> str:
        """``ToolFamily.told``."""
        lines = "\n".join(dumped(tool["function"]) for tool in tools)
        example = self.written([Call("name", {"argument": "value"})])
        return f"You can call these functions, by writing {example}:\n{lines}"


_WORDS: Final = '"true" | "false" | "null"'
_TYPES: Final = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": '"true" | "false"',
    "null": '"null"',
    "object": "map",
}
FUNCTION_GEMMA: Final = GemmaFamily(
    "functiongemma", "<start_function_call>", "<end_function_call>", "<escape>", "<start_function_response>"
)
GEMMA4: Final = GemmaFamily("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>")
