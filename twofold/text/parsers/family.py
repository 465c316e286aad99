"""Families of models by their tool calls: how calls are written, described, parsed and enforced."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from twofold.core.json_formats import enforceable
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
        """Marks of calls. Some models have them as control tokens."""
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
    """The JSON schema of a tool's arguments, with closed objects; a tool without a schema has no arguments."""
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

    What cannot be enforced is ignored, unless the tool is ``strict``; see ``left_out``.
    """
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if not is_strict(tool):
        options["lenient"] = True
    return "%json " + json.dumps({**enforceable(schema, strict=is_strict(tool))[0], "x-guidance": options})


def is_strict(tool: Tool) -> bool:
    """Whether a schema that cannot be enforced is an error."""
    return bool(tool["function"].get("strict"))


def left_out(tool: Tool) -> list[str]:
    """What of a tool's schema a call is not held to."""
    return enforceable(schema_of(tool), strict=is_strict(tool))[1]


def one_of(names: Sequence[str]) -> str:
    """Alternatives of a Lark rule."""
    return " | ".join(names)


def dumped(value: Any) -> str:
    """JSON of one line, as models read and write it."""
    return json.dumps(value, ensure_ascii=False)


def text_choices(schema: Mapping[str, Any]) -> list[str]:
    """The ``enum`` of a schema if it is a list of texts; else an empty list."""
    choices = schema.get("enum")
    return (
        list(choices)
        if isinstance(choices, list | tuple) and all(isinstance(choice, str) for choice in choices)
        else []
    )


def properties_of(tool: Tool) -> dict[str, dict[str, Any]]:
    """The schema of each argument, required ones first, each with the definitions that it may refer to."""
    schema, arguments, required = schema_of(tool), arguments_of(tool), required_of(tool)
    shared: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    order = [*required, *(name for name in arguments if name not in required)]
    return {name: {**shared, **arguments[name]} for name in order}


def required_of(tool: Tool) -> list[str]:
    """The names of arguments that a call must have."""
    required, arguments = schema_of(tool).get("required"), arguments_of(tool)
    names = required if isinstance(required, list | tuple) else ()
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name in arguments))


def argument_rules(
    index: int, tool: Tool, values: Mapping[str, str], term: Term, *, head: Callable[[str], str], comma: str
) -> list[str]:
    """Lark rules for the arguments of a call: required ones in order, then any of the others, each at most once.

    ``values`` are rules of the values by name; ``head`` gives the text before a value.
    """
    names, needed = list(values), len(required_of(tool))
    rules = [
        f"argument_{index}_{place}: {term(head(name))} value_{index}_{place}\nvalue_{index}_{place}: {values[name]}"
        for place, name in enumerate(names)
    ]
    rules += [
        f"rest_{index}_{place}: ({term(comma)} argument_{index}_{place})? rest_{index}_{place + 1}"
        for place in range(needed, len(names))
    ]
    rules.append(f'rest_{index}_{len(names)}: ""')
    if needed:
        first = f" {term(comma)} ".join(f"argument_{index}_{place}" for place in range(needed))
        rules.append(f"arguments_{index}: {first} rest_{index}_{needed}")
    else:
        begins = [f"argument_{index}_{place} rest_{index}_{place + 1}" for place in range(len(names))]
        rules.append(f"arguments_{index}: " + one_of([*begins, '""']))
    return rules
