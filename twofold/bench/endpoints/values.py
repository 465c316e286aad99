"""JSON of strangers: what a server sends may be of any shape, and no answer may bring the client down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from twofold.bench.record import UNKNOWN

MAX_TOKENS: Final = 1 << 30


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object that these bytes are. Raises ValueError."""
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        said = _lenient(data)
    if type(said) is not dict:
        raise ValueError("it is not a JSON object")
    return said


def _lenient(data: bytes) -> object:
    """What Python's json takes besides: NaN in log-probabilities, and halves of a character, which become ``?``."""
    try:
        told = json.dumps(json.loads(data), ensure_ascii=False)
        return json.loads(told.encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not valid JSON") from error


def text_at(said: Mapping[str, Any], name: str) -> str:
    """The text of a field; empty where there is none."""
    value = said.get(name)
    return value if type(value) is str else ""


def object_at(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object of a field; empty where there is none."""
    value = said.get(name)
    return value if type(value) is dict else {}


def objects_at(said: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in the list of a field; empty where there is none."""
    value = said.get(name)
    return [item for item in value if type(item) is dict] if type(value) is list else []


def count_at(said: Mapping[str, Any], name: str) -> int | None:
    """The number of tokens that a field says; None where it says nothing that can be one."""
    value = said.get(name)
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


def length_at(said: Mapping[str, Any], name: str) -> int:
    """How many things the list of a field holds, or UNKNOWN."""
    value = said.get(name)
    return len(value) if type(value) is list and value else UNKNOWN
