"""JSON schemas of structured outputs, made to allow only what they name.

In JSON Schema an object may hold properties that its schema does not name, unless ``additionalProperties`` is false.
Authors of a schema for a completion do not intend this, and small models go on writing keys. So an object whose schema
lists properties and does not mention others is closed, as in OpenAI's strict mode, in llama.cpp and in vLLM with
xgrammar. ``"additionalProperties": true`` keeps it open.

Law: a value that fits the closed schema fits the given schema. Where closing could leave no value that fits, such as
where several schemas describe one object together, the schema stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

OPENING: Final = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"})
"""Keywords that say which other properties an object may hold."""
COMBINING: Final = frozenset(
    {
        *("allOf", "$ref", "$dynamicRef", "if", "then", "else", "not", "dependentSchemas", "dependentRequired"),
        *("contains", "patternProperties", "unevaluatedProperties"),
    }
)
"""Keywords by which other schemas describe the same object, or its contents."""
CHOOSING: Final = frozenset({"anyOf", "oneOf"})
NOTES: Final = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "$comment", "$id"})
NAMED: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Keywords whose value maps names to schemas."""
SHARED: Final = frozenset({"$defs", "definitions"})


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with all objects closed that can be closed."""
    shared_open = any(_combines(one) for one in _schemas(schema))
    return _closed(schema, together=False, shared_open=shared_open)


def _closed(schema: Mapping[str, Any], *, together: bool, shared_open: bool) -> dict[str, Any]:
    """``together``: another schema describes the same value; ``shared_open``: one may describe values of $defs."""
    found: dict[str, Any] = {}
    inside = together or _combines(schema)
    for key, value in schema.items():
        within = inside or (shared_open and key in SHARED)
        if key in NAMED and isinstance(value, Mapping):
            found[key] = {name: _inner(one, within, shared_open) for name, one in value.items()}
        elif isinstance(value, list) and key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            found[key] = [_inner(one, within, shared_open) for one in value]
        elif isinstance(value, Mapping) and key not in ("default", "const", "examples", "enum"):
            found[key] = _inner(value, within, shared_open)
        else:
            found[key] = value
    if not inside and _lists_all(schema):
        found["additionalProperties"] = False
    return found


def _inner(schema: object, together: bool, shared_open: bool) -> Any:
    return _closed(schema, together=together, shared_open=shared_open) if isinstance(schema, Mapping) else schema


def _lists_all(schema: Mapping[str, Any]) -> bool:
    """Whether an object's schema lists properties, says nothing about others, and asks for no other."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties or any(schema.get(key) is not None for key in OPENING):
        return False
    required, least = schema.get("required") or (), schema.get("minProperties") or 0
    enough = isinstance(least, int) and least <= len(properties)
    return enough and isinstance(required, list | tuple) and set(map(str, required)) <= properties.keys()


def _combines(schema: Mapping[str, Any]) -> bool:
    """Whether several schemas describe one object here. A single reference, or a single part of allOf, with only notes
    beside it, does not count."""
    used = schema.keys() - NOTES - SHARED - {"$schema"}
    if used == {"$ref"} or (used == {"allOf"} and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1):
        return False
    if not COMBINING.isdisjoint(used):
        return True
    return not CHOOSING.isdisjoint(used) and bool(used & {"properties", "required"} or len(used & CHOOSING) > 1)


def _schemas(value: object) -> Iterator[Mapping[str, Any]]:
    """Every object in plain data: the schemas, and some objects that are not schemas."""
    if isinstance(value, Mapping):
        yield value
        for one in value.values():
            yield from _schemas(one)
    elif isinstance(value, list):
        for one in value:
            yield from _schemas(one)
