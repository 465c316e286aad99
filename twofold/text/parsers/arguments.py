"""Lark rules for the arguments of a call, from the schema of its tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twofold.text.parsers.family import Term, Tool, arguments_of, one_of, schema_of


def text_choices(schema: Mapping[str, Any]) -> list[str]:
    """The ``enum`` of a schema where it is a list of texts; else nothing."""
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
