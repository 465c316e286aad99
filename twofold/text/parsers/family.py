"""Families of models by their tool calls: how calls are written, described, parsed and enforced."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from twofold.core.json_schema import closed_schema
from twofold.text.parsers.base import SectionParser

Tool: TypeAlias = Mapping[str, Any]
"""A tool as OpenAI writes it: {"type": "function", "function": {"name", "description", "parameters", "strict"}}."""
Term: TypeAlias = Callable[[str], str]
"""A mark or text in a Lark grammar: a control token if it is one, otherwise a string."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


class ToolFamily(Protocol):
    """One way of calling tools."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may be control tokens."""
        ...

    @property
    def stops(self) -> tuple[str, ...]:
        """Control tokens that end a completion, in addition to the model's own."""
        ...

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        """Parses a completion that may call ``tools``; unless ``parallel``, text after the first call is dropped."""
        ...

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        """A Lark grammar of completions that are one call, or several if ``parallel``."""
        ...

    def written(self, calls: Sequence[Call]) -> str:
        """Calls as the model writes them."""
        ...

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Instructions for a model whose chat template does not show tools."""
        ...


def name_of(tool: Tool) -> str:
    """The name of a tool."""
    name: str = tool["function"]["name"]
    return name


def schema_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, with closed objects; without a schema there are no arguments."""
    schema = tool["function"].get("parameters")
    if not schema or not isinstance(schema, Mapping):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return closed_schema({"type": "object", **schema})


def arguments_of(tool: Tool) -> dict[str, Mapping[str, Any]]:
    """The schema of each argument in a tool's schema."""
    properties = schema_of(tool).get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    return {name: schema for name, schema in named.items() if isinstance(schema, Mapping)}


def spaced(tool: Tool, schema: Mapping[str, Any]) -> str:
    """A schema as a term of Lark: JSON of one line, as models write it.

    Keywords that llguidance does not support are ignored, unless the tool is ``strict``.
    """
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if not tool["function"].get("strict"):
        options["lenient"] = True
    return "%json " + json.dumps({**schema, "x-guidance": options})


def one_of(names: Sequence[str]) -> str:
    """Alternatives."""
    return " | ".join(names)


def dumped(value: Any) -> str:
    """JSON of one line, as models read and write it."""
    return json.dumps(value, ensure_ascii=False)
