"""Bodies of lines that no request over HTTP could have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twofold.api.batch.lines import check_body
from twofold.api.fields import FieldError
from twofold.text.templates.messages import MAX_DEPTH


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"stop": ["\ud800"]}, "lone surrogate"),
        ({"cache_salt": "\ud800"}, "lone surrogate"),
        ({"structured_outputs": {"regex": "\udfff"}}, "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ({"stop": json.loads("[" * 900 + "]" * 900)}, f"nested deeper than {MAX_DEPTH} levels"),
        (nested(MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_bodies_that_cannot_be_are_refused(body: Any, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        check_body(body)


@pytest.mark.parametrize("body", [{}, nested(MAX_DEPTH), {"prompt": "é \x00 \U0001f600"}, {"max_tokens": 10**400}, 1])
def test_others_are_not(body: Any) -> None:
    check_body(body)
