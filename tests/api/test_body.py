"""Declared objects: what they read, how they refuse it, and the schemas made of them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, field

from twofold.api.body import OFFERED, OMITTING, RequestObject, only, schemas
from twofold.api.fields import FieldError, ignoring


class SquareShape(RequestObject):
    type: Annotated[Literal["square"], OFFERED]
    side: Annotated[float, Meta(ge=0, le=10)]


class RoundShape(RequestObject):
    type: Annotated[Literal["circle", "ellipse"], OFFERED]
    radius: Annotated[int, Meta(ge=1, le=9)] = 1


class Drawing(RequestObject):
    name: Annotated[str, Meta(min_length=1, max_length=5)]
    shapes: Annotated[list[SquareShape | RoundShape], OMITTING] | None = None
    shape: SquareShape | RoundShape | None = None
    ids: str | list[int] | list[str] | None = None
    mode: Literal["fast", "slow"] = "fast"
    store: Literal[False] = False
    audio: None = None
    extras: Annotated[Any, only([], hint="Draw without them.")] = None
    labels: Annotated[dict[Annotated[str, Meta(pattern="^[a-z]$")], int], Meta(max_length=2)] | None = None
    is_async: bool = field(default=False, name="async")


def read(**fields: Any) -> Drawing:
    return Drawing.read({"name": "a", **fields})


def test_null_counts_as_absent_and_a_whole_number_may_have_a_fraction_of_zero() -> None:
    drawing = read(mode=None, audio=None, shape={"type": "circle", "radius": 2.0})
    assert drawing == read(shape={"type": "circle", "radius": 2})
    assert drawing.mode == "fast"
    assert read(audio=[]) == read(audio="") == read()
    assert read(ids=[1, 2.0]).ids == [1, 2]
    assert read(**{"async": True}).is_async


def test_objects_and_lists_of_a_union_are_told_apart() -> None:
    assert isinstance(read(shape={"type": "square", "side": 1}).shape, SquareShape)
    assert isinstance(read(shape={"type": "ellipse"}).shape, RoundShape)
    assert (read(ids="a").ids, read(ids=["a"]).ids, read(ids=[]).ids) == ("a", ["a"], [])


@pytest.mark.parametrize(
    ("fields", "param", "code", "said"),
    [
        ({"name": None}, "name", "missing_required_parameter", "required"),
        ({"name": "abcdef"}, "name", "invalid_value", "text of 1 to 5 characters, not a text of 6"),
        ({"nam": 1}, "nam", "unknown_parameter", "Did you mean 'name'?"),
        ({"shape": {"type": "square", "side": math.inf}}, "shape.side", "invalid_value", "from 0 to 10"),
        ({"shape": {"type": "square", "side": math.nan}}, "shape.side", "invalid_value", "from 0 to 10"),
        ({"shape": {"type": "square", "side": True}}, "shape.side", "invalid_value", "not True"),
        ({"shape": {"type": "circle", "radius": 10**30}}, "shape.radius", "invalid_value", "from 1 to 9"),
        ({"shape": {"type": "circel"}}, "shape.type", "unsupported_value", "Did you mean 'circle'?"),
        ({"shape": {"side": 1}}, "shape.type", "missing_required_parameter", ""),
        ({"shapes": [{"type": "square", "side": 1, "x": 1}]}, "shapes[0].x", "unknown_parameter", "Known: side, type"),
        ({"ids": [1, "a"]}, "ids[1]", "invalid_value", "a whole number, not a text"),
        ({"mode": "slwo"}, "mode", "invalid_value", "fast or slow"),
        ({"store": True}, "store", "unsupported_value", "Possible: False"),
        ({"store": 0}, "store", "unsupported_value", "0"),
        ({"audio": {}}, "audio", "unsupported_parameter", "Remove it"),
        ({"extras": [1]}, "extras", "unsupported_value", "Draw without them."),
        ({"labels": {"a": 1, "b": 2, "c": 3}}, "labels", "invalid_value", "at most 2 entries"),
        ({"labels": {"a\n": 1}}, "labels.a\n", "invalid_value", "not with the name"),
        ({"labels": {"a": "x"}}, "labels.a", "invalid_value", "whole number"),
    ],
    ids=str,
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str, code: str, said: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert said in f"{caught.value} {caught.value.hint}"


def test_objects_of_unknown_types_are_omitted_with_a_warning() -> None:
    shapes = [{"type": "star"}, {"type": "circle"}]
    with ignoring(unknown=False) as left_out:
        assert read(shapes=shapes).shapes == [RoundShape(type="circle")]
    assert left_out.shown == ["shapes[0] of type star"]
    with pytest.raises(FieldError, match="not supported"):
        read(shapes=shapes)
    _, unknown = schemas([Drawing])["Drawing"]["properties"]["shapes"]["items"]["anyOf"]
    assert unknown["properties"]["type"] == {"type": "string", "not": {"enum": ["square", "circle", "ellipse"]}}


def test_schemas_hold_all_objects_and_allow_null_for_what_is_optional() -> None:
    found = schemas([Drawing])
    assert set(found) == {"Drawing", "SquareShape", "RoundShape"}
    drawing = found["Drawing"]
    assert drawing["required"] == ["name"]
    assert drawing["additionalProperties"] == {"type": "null"}
    assert drawing["properties"]["name"] == {"type": "string", "minLength": 1, "maxLength": 5}
    assert drawing["properties"]["mode"] == {"type": ["string", "null"], "enum": ["fast", "slow", None]}
    assert drawing["properties"]["audio"] == {"enum": [None, "", []]}
    assert drawing["properties"]["async"] == {"type": ["boolean", "null"]}
    assert {"$ref": "#/components/schemas/RoundShape"} in drawing["properties"]["shape"]["anyOf"]
