"""Calls in Gemma's own notation: ``call:weather{city:<escape>Paris<escape>,days:3}`` between two control tokens.

Sources: "FunctionGemma formatting and best practices" and "Function calling with Gemma 4" in Google's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from twofold.text.parsers.base import PieceWriter, SectionParser
from twofold.text.parsers.calls import CallParser, CallSyntax
from twofold.text.parsers.family import (
    Call,
    Term,
    Tool,
    argument_rules,
    dumped,
    name_of,
    one_of,
    properties_of,
    text_choices,
)
from twofold.text.parsers.literal_calls import LiteralCallReader, LiteralSyntax, MarkedSpan, gemma_notation, read_value

_HEAD: Final = re.compile(r"[^{<\n]*+")
_CALL: Final = re.compile(r"call:\s*+([^\s:{]++)\s*+")


def _name(head: str) -> str | None:
    found = _CALL.fullmatch(head)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class GemmaFamily:
    """``ToolFamily`` of Gemma models with control tokens: ``opens`` and ``closes`` a call, ``quote`` around strings.

    ``responds`` begins a tool result, which the model would generate itself if it were not a stop token.
    """

    name: str
    opens: str
    closes: str
    quote: str
    responds: str

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opens, self.closes, self.quote)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.responds,)

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        notation = gemma_notation(self.quote)
        literal = LiteralSyntax(
            _HEAD, "{", _name, partial(MarkedSpan, self.quote), lambda text: read_value(notation, text, 0)[0]
        )

        def reader(out: PieceWriter, _: frozenset[str] | None) -> LiteralCallReader:
            return LiteralCallReader(literal, out, None)

        syntax = CallSyntax({self.opens: self.closes}, re.compile("c"), "", reader)
        return CallParser(syntax, map(name_of, tools), parallel=parallel)

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        """Of schemas, types, enumerations and required properties are enforced."""
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
        return "".join(f"{self.opens}call:{call.name}{self._literal(call.arguments)}{self.closes}" for call in calls)

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self._literal(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(self._literal, value))}]"
        return dumped(value)

    def instructions(self, tools: Sequence[Tool]) -> str:
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
