"""Numbers in descriptions of models."""

from __future__ import annotations

import math

import pytest

from twofold.core.errors import FormatError
from twofold.core.typed_fields import TypedFields


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 10**400, -(10**400), True, "1"])
def test_impossible_numbers_are_refused_by_name(value: object) -> None:
    with pytest.raises(FormatError, match="the field 'theta' is "):
        TypedFields({"theta": value}, "config.json").number("theta")


def test_numbers_are_read_as_floats() -> None:
    assert TypedFields({"theta": 10**300}, "config.json").number("theta") == 1e300
