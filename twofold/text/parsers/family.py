"""What a family of models has of its own where tools are called: how calls are written, told, read and enforced."""

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
"""How a mark or a text stands in a Lark grammar: as a control token where it is one, else as a string."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made: the tool's name and its arguments."""

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
        """Control tokens that end an answer beside the model's own."""
        ...

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        """Divides an answer that may call ``tools``; not ``parallel``: all after the first call is left out."""
        ...

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        """A Lark grammar of answers that are one call, or ``parallel`` ones."""
        ...

    def written(self, calls: Sequence[Call]) -> str:
        """Calls as the model writes them."""
        ...

    def told(self, tools: Sequence[Tool]) -> str:
        """What to tell a model whose chat template does not show tools."""
        ...


def name_of(tool: Tool) -> str:
    """The name of a tool."""
    name: str = tool["function"]["name"]
    return name


def schema_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, its objects closed; without one there are none."""
    schema = tool["function"].get("parameters")
    if not schema or not isinstance(schema, Mapping):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return closed_schema({"type": "object", **schema})


def arguments_of(tool: Tool) -> dict[str, Mapping[str, Any]]:
    """The schema of each argument that a tool's schema names."""
    properties = schema_of(tool).get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    return {name: schema for name, schema in named.items() if isinstance(schema, Mapping)}


def spaced(tool: Tool, schema: Mapping[str, Any]) -> str:
    """A schema as a term of Lark: JSON of one line, as models write it.

    What llguidance cannot hold in a schema is passed over, unless the tool is ``strict``.
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
