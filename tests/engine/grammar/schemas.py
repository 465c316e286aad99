"""Schemas of the kinds that users send, for one string ``a`` or for a whole object."""

from __future__ import annotations

from typing import Any, Final

from tests.engine.grammar.walks import PERSON
from twofold.core.json_formats import FORMATS

Schema = dict[str, Any]

PATTERNS: Final = (
    r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
    r"^[\w.%+-]+@[\w-]+\.[a-zA-Z]{2,}$",
    r"^\S+@\S+$",
    r"^\w+\s\w+$",
    r"^[A-Z][a-z]+(?: [A-Z][a-z]+)+$",
    r"^(\w+\s){2,5}\w+$",
    r"^[^.]+\.py$",
    r".*@.*",
    r"^\d{3}-\d{4}$",
    r"^#\w+( #\w+)*$",
    r"^(?:[a-m]+x|[n-z]+yyyy|\d{2,4})$",
    r"^.{3,40}!$",
    r"^\"[^\"]+\"\\$",
    r"^(?:[^,]+,\s*){3}[^,]+$",
    r"^(?:[^;]+;\s*){2}[^;]+$",
)


def one(schema: Schema) -> Schema:
    """An object with one property, ``a``."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


def strings(*names: str) -> Schema:
    """An object with some strings."""
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": [*names]}


FORMATTED: Final[Schema] = {
    "type": "object",
    "properties": {name: {"type": "string", "format": name} for name in (*FORMATS, "phone")},
    "required": [*FORMATS, "phone"],
}
SCHEMAS: Final[dict[str, Schema]] = {
    "string": one({"type": "string"}),
    "four strings": strings("name", "email", "city", "note"),
    "person": PERSON,
    "enum": one({"enum": ["ok", "a much longer name of a thing, with a comma", 7, None]}),
    "lengths": one({"type": "array", "items": {"type": "string", "minLength": 4, "maxLength": 9}, "minItems": 2}),
    "long": one({"type": "string", "minLength": 40}),
    "bounded": one({"type": "string", "minLength": 3, "maxLength": 30}),
    "either": one({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}),
    "integer": one({"type": "integer"}),
    "optional": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]},
    **{f"format {name}": one({"type": "string", "format": name}) for name in FORMATS},
    **{f"pattern {pattern}": one({"type": "string", "pattern": pattern}) for pattern in PATTERNS},
}
