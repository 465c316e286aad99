"""Calls written with a tag for each argument, whose values are plain text: ``<parameter=city>\\nParis\\n</parameter>``.

Source: the chat template of Qwen3-Coder. Only the tool's schema determines whether ``5`` is a number or a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from twofold.text.parsers.base import MarkFinder, PieceWriter, SectionParser, no_constant, skip
from twofold.text.parsers.calls import CallParser, CallReader, CallSyntax
from twofold.text.parsers.family import (
    Call,
    Term,
    Tool,
    argument_rules,
    arguments_of,
    dumped,
    name_of,
    one_of,
    properties_of,
    spaced,
    text_choices,
)

MAX_TAG: Final = 256
END: Final = "</parameter>"
LINE: Final = "\n"
_FUNCTION: Final = re.compile(r"<function=([^<>\s]++)>")
_PARAMETER: Final = re.compile(r"<parameter=([^<>]++)>")
_WORDS: Final = {"True": True, "False": False, "None": None}


class TaggedCallReader(CallReader):
    """Reads a call with a tag for each argument. ``schemas`` are those of the arguments, by tool and name.

    The call is emitted when its name is read, each argument when it is complete; an incomplete argument is dropped.
    """

    def __init__(self, out: PieceWriter, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(out, self._function)
        self._schemas = schemas
        self._schema: Mapping[str, Any] = {}
        self._finder = MarkFinder((END,))
        self._tag = self._key = ""
        self._value: list[str] = []
        self._count = 0

    def _function(self, text: str, at: int) -> int:
        at, tag = self._read_tag(text, at)
        found = _FUNCTION.fullmatch(tag) if tag else None
        if found is not None:
            self._out.call(found[1])
            self._out.arguments("{")
            self._schema = self._schemas.get(found[1], {})
            self.emitted = True
            self._state = self._parameter
        self.broken = self.broken or bool(tag and not found)
        return at

    def _parameter(self, text: str, at: int) -> int:
        """The next argument, or the end of the call."""
        at, tag = self._read_tag(text, at if self._tag else skip(text, at))
        found = _PARAMETER.fullmatch(tag) if tag else None
        if found is not None:
            self._key, self._state = found[1].strip(), self._text
        elif tag == "</function>":
            self._out.arguments("}")
            self.done = True
        elif tag or self.broken:
            self._out.arguments(tag or self._tag)
            self.broken = True
        return at

    def _read_tag(self, text: str, at: int) -> tuple[int, str]:
        """A tag, or empty text until it is complete."""
        if at == len(text):
            return at, ""
        if not self._tag and text[at] != "<":
            self.broken = True
            return at, ""
        end = text.find(">", at, at + MAX_TAG)
        stop = end + 1 if end >= 0 else min(len(text), at + MAX_TAG)
        self._tag += text[at:stop]
        self.broken = len(self._tag) > MAX_TAG
        tag = self._tag if end >= 0 else ""
        self._tag = "" if tag else self._tag
        return stop, tag

    def _text(self, text: str, at: int) -> int:
        place, mark = self._finder.find(text, at)
        self._value.append(text[at:place])
        if mark:
            value = _read("".join(self._value).removeprefix("\n").removesuffix("\n"), self._schema.get(self._key))
            self._out.arguments(f"{', ' if self._count else ''}{dumped(self._key)}: {dumped(value)}")
            self._value, self._state = [], self._parameter
            self._count += 1
        return place + len(mark)


def _read(text: str, schema: Any) -> Any:
    """The value of a text according to its schema; text that does not fit stays a string."""
    kinds = _kinds(schema)
    if "string" in kinds and not ("null" in kinds and text == "null"):
        return text
    if text in _WORDS:
        return _WORDS[text]
    try:
        value = json.loads(text, parse_constant=no_constant)
        dumped(value).encode()  # raises ValueError for lone surrogates
    except (ValueError, RecursionError):
        return text
    return value


def _kinds(schema: Any) -> list[Any]:
    """The types of a value; string if the schema has none."""
    if not isinstance(schema, Mapping) or not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref"}:
        return ["string"]
    kinds = schema.get("type")
    return kinds if isinstance(kinds, list) else [kinds]


class TaggedFamily:
    """``ToolFamily`` of models that tag each argument."""

    name = "tagged"
    marks = ("<tool_call>", "</tool_call>")
    stops = ()

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        schemas = {name_of(tool): arguments_of(tool) for tool in tools}

        def reader(out: PieceWriter, _: frozenset[str] | None) -> CallReader:
            return TaggedCallReader(out, schemas)

        syntax = CallSyntax({"<tool_call>": "</tool_call>"}, re.compile("<"), "", reader)
        return CallParser(syntax, schemas, parallel=parallel)

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        """Of a string's schema, only ``enum`` is enforced."""
        opens, closes = map(term, self.marks)
        calls = one_of([f"call_{index}" for index in range(len(tools))])
        more = f" ({term(LINE)} call)*" if parallel else ""
        rules = [
            f"start: call{more}",
            f"call: {opens} {term(LINE)} ({calls}) {term('</function>' + LINE)} {closes}",
            f"text[suffix={term(LINE + END + LINE)}]: /(?s:.*)/",
        ]
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {term(f'<function={name_of(tool)}>{LINE}')} arguments_{index}")
            values = {name: _value(tool, schema, term) for name, schema in properties_of(tool).items()}
            rules += argument_rules(index, tool, values, term, head=_head, comma="")
        return "\n".join(rules)

    def written(self, calls: Sequence[Call]) -> str:
        return "\n".join(map(_written, calls))

    def instructions(self, tools: Sequence[Tool]) -> str:
        lines = "\n".join(dumped(tool["function"]) for tool in tools)
        example = self.written([Call("function_name", {"argument": "value"})])
        return f"You can call these functions, one in each line:\n{lines}\n\nCall them in exactly this form:\n{example}"


def _head(name: str) -> str:
    return f"<parameter={name}>{LINE}"


def _value(tool: Tool, schema: Mapping[str, Any], term: Term) -> str:
    """The rest of an argument in Lark, up to and with the end of its tag."""
    if choices := text_choices(schema):
        return f"({one_of([term(choice) for choice in choices])}) {term(LINE + END + LINE)}"
    if "string" in _kinds(schema):
        return "text"
    return f"{spaced(tool, schema)} {term(LINE + END + LINE)}"


def _written(call: Call) -> str:
    arguments = "".join(f"{_head(name)}{_plain(value)}{LINE}{END}{LINE}" for name, value in call.arguments.items())
    return f"<tool_call>{LINE}<function={call.name}>{LINE}{arguments}</function>{LINE}</tool_call>"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else dumped(value)


TAGGED: Final = TaggedFamily()
