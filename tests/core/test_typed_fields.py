"""Numbers in descriptions of models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from twofold.core.errors import FormatError
from twofold.core.typed_fields import TypedFields


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 10**400, -(10**400), True, "1"])
def test_impossible_numbers_are_refused_by_name(value: object) -> None:
    with pytest.raises(FormatError, match="the field 'theta' is "):
        TypedFields({"theta": value}, "config.json").number("theta")


def test_numbers_are_read_as_floats() -> None:
    assert TypedFields({"theta": 10**300}, "config.json").number("theta") == 1e300


def test_a_list_is_converted_and_compared_once_for_all_layers() -> None:
    """Files choose how long their lists are, and each layer reads them."""
    seen: list[str] = []

    class Entry(int):
        def __ne__(self, other: object) -> bool:
            seen.append("compared")
            return f"{self}" != f"{other}"

        __hash__ = int.__hash__

    class Array:
        def tolist(self) -> list[int]:
            seen.append("converted")
            return [Entry(8)] * 100

    fields = TypedFields({"heads": Array()}, "a file", per_layer=True)
    for layer in range(100):
        assert fields.integer("heads", layer=layer) == fields.integer("heads") == 8
    assert (seen.count("converted"), seen.count("compared")) == (1, 100)


def test_a_copy_with_other_values_reads_these() -> None:
    """What was read is remembered, but only of the same values."""
    first = TypedFields({"a": 1, "b": 2}, "the first")
    assert first.integer("a") == 1
    second = replace(first, values={"a": 3})
    assert (second.integer("a"), set(second.read), set(first.read)) == (3, {"a"}, {"a"})
