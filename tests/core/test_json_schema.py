"""Which objects of a schema are closed: those that list what they hold, and no others."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from twofold.core.json_schema import closed_schema

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}}
A_CLOSED = {**A, "additionalProperties": False}
B_CLOSED = {**B, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (A, A_CLOSED),
        ({"type": "array", "items": A}, {"type": "array", "items": A_CLOSED}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [A_CLOSED, {"type": "null"}]}),
        ({"oneOf": [A, B]}, {"oneOf": [A_CLOSED, B_CLOSED]}),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": A}, "title": "x"},
            {"$ref": "#/$defs/A", "$defs": {"A": A_CLOSED}, "title": "x"},
        ),
        ({"allOf": [A], "description": "x"}, {"allOf": [A_CLOSED], "description": "x"}),
        (
            {"properties": {"in": A, "default": B}},
            {"properties": {"in": A_CLOSED, "default": B_CLOSED}, "additionalProperties": False},
        ),
    ],
)
def test_objects_that_list_their_properties_are_closed(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    assert closed_schema(schema) == closed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "patternProperties": {"^x": {}}},
        {**A, "required": ["b"]},
        {**A, "minProperties": 2},
        {"allOf": [A, B]},
        {**A, "allOf": [B]},
        {**A, "anyOf": [{"required": ["a"]}, B]},
        {**A, "if": B, "then": {"required": ["c"]}},
        {**A, "$ref": "#/$defs/B", "$defs": {"B": B}},
        {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}},
        {"const": A},
        {"type": "array", "items": A, "contains": B},
        {"properties": {"x": A}, "patternProperties": {"^x": B}},
    ],
)
def test_others_stay_as_they_are(schema: dict[str, Any]) -> None:
    assert closed_schema(schema) == schema


NAMES = some.sampled_from(["a", "b", "c"])
LEAVES = some.sampled_from([{"type": "integer"}, {"type": "object"}, {"$ref": "#/$defs/D"}])


def _objects(inner: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
    optional = {
        "required": some.lists(NAMES, unique=True, max_size=2),
        "allOf": some.lists(inner, min_size=1, max_size=2),
        "anyOf": some.lists(inner, min_size=1, max_size=2),
        "additionalProperties": some.booleans(),
        "description": some.just("x"),
    }
    one = some.fixed_dictionaries({"properties": some.dictionaries(NAMES, inner, max_size=2)}, optional=optional)
    return some.one_of(one, some.fixed_dictionaries({"anyOf": some.lists(inner, min_size=1, max_size=2)}))


SCHEMAS = some.recursive(LEAVES, _objects, max_leaves=6)
VALUES = some.recursive(
    some.integers(0, 2), lambda inner: some.dictionaries(some.sampled_from("abcd"), inner, max_size=3), max_leaves=6
)


@settings(deadline=None)
@given(SCHEMAS, SCHEMAS, some.lists(VALUES, max_size=8))
def test_values_that_fit_the_closed_schema_fit_the_given_one(schema: Any, shared: Any, values: list[Any]) -> None:
    """And an object of all that a schema needs, and no more, still fits where it did."""
    whole = {**schema, "$defs": {"D": {**shared, "$defs": {}} if shared != {"$ref": "#/$defs/D"} else {}}}
    before, after = (jsonschema_rs.validator_for(one) for one in (whole, closed_schema(whole)))
    for value in values:
        assert before.is_valid(value) or not after.is_valid(value)
