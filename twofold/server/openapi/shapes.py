"""Words for JSON Schema (draft 2020-12, the one of OpenAPI 3.1), so that a schema reads like the object it describes.

Objects are closed: they have no other fields than those listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

FLAG: Final[Schema] = {"type": "boolean"}
NULL: Final[Schema] = {"type": "null"}
ANYTHING: Final[Schema] = {}
OBJECT: Final[Schema] = {"type": "object"}
"""Any object, such as a JSON schema of the caller's."""


def ref(name: str) -> Schema:
    """The schema that the document has under that name."""
    return {"$ref": f"#/components/schemas/{name}"}


def text(low: int = 0, high: int | None = None, *, pattern: str | None = None) -> Schema:
    """Text of ``low`` to ``high`` characters."""
    found: Schema = {"type": "string"}
    if low:
        found["minLength"] = low
    if high is not None:
        found["maxLength"] = high
    if pattern is not None:
        found["pattern"] = pattern
    return found


def whole(low: int = 0, high: int | None = None) -> Schema:
    """A whole number."""
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


def number(low: float | None = None, high: float | None = None, *, above: float | None = None) -> Schema:
    """A number in [low, high], or greater than ``above``."""
    bounds = {"minimum": low, "maximum": high, "exclusiveMinimum": above}
    return {"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None}


def word(*known: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(known)}


def only(*possible: object) -> Schema:
    """A field that is refused but for these values."""
    return {"enum": list(possible)} if possible else dict(NULL)


def listed(items: Schema, low: int = 0, high: int | None = None) -> Schema:
    """A list of ``low`` to ``high`` of these."""
    found: Schema = {"type": "array", "items": items}
    if low:
        found["minItems"] = low
    if high is not None:
        found["maxItems"] = high
    return found


def mapped(values: Schema, most: int | None = None, *, names: Schema | None = None) -> Schema:
    """An object of at most ``most`` such values under names of the caller's."""
    found: Schema = {"type": "object", "additionalProperties": values}
    if most is not None:
        found["maxProperties"] = most
    if names is not None:
        found["propertyNames"] = names
    return found


def either(*schemas: Schema) -> Schema:
    """What fits one of these."""
    return {"anyOf": list(schemas)}


def said(schema: Schema, description: str) -> Schema:
    """The schema with what it means."""
    return {**schema, "description": description}


def told(always: Mapping[str, Schema] | None = None, /, **sometimes: Schema) -> Schema:
    """An object of a reply: fields that are always there, and others that may be missing."""
    return _object({**(always or {}), **sometimes}, always or ())


def joined(*objects: Schema) -> Schema:
    """One closed object with the fields of several."""
    properties: Schema = {}
    required: list[str] = []
    for one in objects:
        properties |= one["properties"]
        required += one.get("required", ())
    return _object(properties, required)


def _object(properties: Schema, required: Iterable[str]) -> Schema:
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    needed = list(required)
    return found | ({"required": needed} if needed else {})
