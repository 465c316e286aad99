"""Values that fit a schema."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

INDEX: Final = re.compile(r"\[\d+\]")

Seen = dict[str, set[str]]
"""Names of fields by the place of their object; [] stands for any index."""


def named(schema: Any, components: dict[str, Any], place: str = "", found: Seen | None = None) -> Seen:
    """Names of a schema's fields by the place of their object, of all alternatives together."""
    found = defaultdict(set) if found is None else found
    if "$ref" in schema:
        named(components[schema["$ref"].rpartition("/")[2]], components, place, found)
    for one in schema.get("anyOf", ()):
        named(one, components, place, found)
    for name, inner in schema.get("properties", {}).items():
        found[place].add(name)
        named(inner, components, f"{place}.{name}".lstrip("."), found)
    if "items" in schema:
        named(schema["items"], components, f"{place}[]", found)
    return found


def full(schema: Any, components: dict[str, Any]) -> Iterator[Any]:
    """Values that fit the schema and together contain every field and every alternative."""
    if "$ref" in schema:
        yield from full(components[schema["$ref"].rpartition("/")[2]], components)
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from full(one, components)
    elif "enum" in schema:
        yield next(value for value in schema["enum"] if value is not None or schema["enum"] == [None])
    else:
        yield from _by_type(schema, components)


def _by_type(schema: Any, components: dict[str, Any]) -> Iterator[Any]:
    kinds = schema.get("type", "null")
    match kinds if isinstance(kinds, str) else kinds[0]:
        case "object":
            yield from _objects(schema, components)
        case "array":
            for value in full(schema["items"], components):
                yield [value]
        case "string":
            yield "{}"
        case "integer" | "number":
            yield max(schema.get("minimum", 0), 1) if schema.get("maximum", 1) >= 1 else 0
        case "boolean":
            yield False
        case "null":
            yield None


def _objects(schema: Any, components: dict[str, Any]) -> Iterator[Any]:
    """One object for each alternative of any of its fields."""
    properties = schema.get("properties", {})
    options = {name: list(full(inner, components)) for name, inner in properties.items()}
    for turn in range(max(map(len, options.values()), default=1)):
        yield {name: values[turn % len(values)] for name, values in options.items()}
