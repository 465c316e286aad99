"""Formats of JSON schemas as patterns, and what of a schema is left out."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from twofold.core.json_formats import FORMATS, enforceable, output_schema

GOOD: Final = {
    "date": ["2024-02-29", "1999-12-31"],
    "time": ["12:00:00Z", "23:59:59.123456+01:00"],
    "date-time": ["2024-01-31T00:00:00Z", "2024-01-31T00:00:00.5-03:30"],
    "duration": ["P1D", "PT5M", "P3W", "P1Y2M3DT4H5M6S"],
    "email": ["ada@example.org", "a.b+c@x-y.co.uk"],
    "hostname": ["localhost", "a.example.com"],
    "ipv4": ["1.2.3.4", "255.0.10.99"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "uri": ["https://example.org/a%20b?q=1#x", "http://localhost:8000", "mailto:ada@example.org"],
}
BAD: Final = {
    "date": ["2024-04-31", "2024-13-01", "0000-01-01"],
    "time": ["24:00:00Z", "12:00:00", "12:00:00." + "0" * 7 + "Z", "12:00:60Z"],
    "email": ["ada", "ada@localhost", "a..b@x.org"],
    "ipv4": ["256.1.1.1", "01.2.3.4"],
    "duration": ["P", "PT", "P1DT", "P" + "1" * 10 + "D"],
}


@pytest.mark.parametrize("name", FORMATS)
def test_patterns_of_formats(name: str) -> None:
    assert all(re.fullmatch(FORMATS[name], text) for text in GOOD[name])
    assert not any(re.fullmatch(FORMATS[name], text) for text in BAD.get(name, []))


LOOKS: Final = [r"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$".replace("\\\\", "\\"), r"a(?<=b)c", r"(a)\1", r"\bfoo"]
PLAIN: Final = [r"^\d{3}(?:-\d+)?$", r"[(?=]x", r"\(?=x", r"^[^\]]+(x|y)$", r"(?P<n>a)", r"\p{L}+"]


@pytest.mark.parametrize("pattern", [*LOOKS, *PLAIN])
def test_patterns_with_look_around_are_left_out_where_a_tool_is_not_strict(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert enforceable(schema, strict=True) == (schema, [])
    left = ({"type": "string"}, ["pattern"]) if pattern in LOOKS else (schema, [])
    assert enforceable(schema, strict=False) == left


def test_what_is_left_out_is_named_and_nothing_else_is_touched() -> None:
    data: dict[str, Any] = {"format": "phone", "pattern": "(?=x)", "contains": 1}
    schema = {
        "type": "object",
        "properties": {
            "format": {"type": "string", "format": "phone"},
            "contains": {"type": ["string", "null"], "format": "email"},
            "count": {"type": "integer", "format": "int32"},
            "fixed": {"const": data, "default": data, "enum": [data]},
            "list": {"type": "array", "contains": {"type": "string"}, "items": [{"format": "email", "pattern": "x"}]},
        },
        "required": ["format", "pattern"],
        "propertyNames": {"maxLength": 3},
    }
    found, left = enforceable(schema, strict=False)
    assert left == ["format phone", "contains", "propertyNames"]
    assert enforceable(schema, strict=True)[1] == ["format phone"]
    assert found == {
        **schema,
        "properties": {
            "format": {"type": "string"},
            "contains": {"type": ["string", "null"], "pattern": f"^(?:{FORMATS['email']})$"},
            "count": {"type": "integer"},
            "fixed": {"const": data, "default": data, "enum": [data]},
            "list": {"type": "array", "contains": {"type": "string"}, "items": [{"format": "email", "pattern": "x"}]},
        },
    }


OTHER_SPELLINGS: Final[list[tuple[dict[str, Any], dict[str, Any]]]] = [
    ({"type": "OBJECT", "required": None, "items": None}, {"type": "object"}),
    ({"type": ["STRING", "null"], "format": None, "enum": None}, {"type": ["string", "null"]}),
    ({"type": "any", "title": "x"}, {"title": "x"}),
    ({"const": None, "default": None, "pattern": None}, {"const": None, "default": None}),
    ({"minimum": -(2**63), "maximum": 2**63 - 1}, {"minimum": 1024 - 2**63, "maximum": 2**63 - 1024}),
    ({"exclusiveMinimum": -1.8e308, "maximum": 3.4e38}, {"exclusiveMinimum": 1024 - 2**63, "maximum": 2**63 - 1024}),
    ({"minimum": 1e300, "maximum": -1e300}, {"minimum": 1e300, "maximum": -1e300}),
    ({"minimum": 5, "exclusiveMinimum": True}, {"exclusiveMinimum": 5}),
    ({"maximum": 5, "exclusiveMaximum": False}, {"maximum": 5}),
    ({"minItems": 1.0, "maxItems": 1000.0, "maxLength": 2**63}, {"minItems": 1, "maxItems": 1000}),
    ({"uniqueItems": False, "propertyNames": {"type": "string"}, "dependentRequired": {}, "minContains": 1}, {}),
    ({"uniqueItems": True}, {"uniqueItems": True}),
    ({"if": {"const": 1}}, {}),
    ({"if": {"const": 1}, "then": {"const": 1}}, {"if": {"const": 1}, "then": {"const": 1}}),
    ({"pattern": r"\Aab\Z"}, {"pattern": "^ab$"}),
    ({"pattern": r"ab\\Z"}, {"pattern": r"ab\\Z"}),
    (
        {"properties": {"type": {"type": "INTEGER"}, "minimum": None}},
        {"properties": {"type": {"type": "integer"}, "minimum": None}},
    ),
]
"""Schemas as generators write them (C# with null, Google's types, draft 4, bounds of 64 bits), and equal ones."""


@pytest.mark.parametrize(("schema", "equal"), OTHER_SPELLINGS)
def test_other_spellings_become_those_that_are_enforced(schema: dict[str, Any], equal: dict[str, Any]) -> None:
    assert enforceable(schema, strict=True) == (equal, [])


def test_what_asks_for_nothing_is_not_named() -> None:
    schema = {"type": "array", "uniqueItems": False, "propertyNames": {}, "not": False}
    assert enforceable(schema, strict=False) == ({"type": "array"}, [])


def test_a_null_does_not_open_an_object() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {}}, "additionalProperties": None}
    assert output_schema(schema)["additionalProperties"] is False
