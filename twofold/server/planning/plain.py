"""Descriptions of models and machines as plain data, and back: numbers and texts for the helper process.

A record becomes an object with its class under ``is``; lists become tuples again, as records have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from twofold.core import kv_layout, model, values
from twofold.planner.count import setting
from twofold.planner.machines import machine
from twofold.planner.machines.machine import Cited

KIND: Final = "is"
CLASSES: Final[dict[str, Any]] = {
    name: each
    for module in (values, kv_layout, model, setting, machine)
    for name, each in vars(module).items()
    if is_dataclass(each) or each is Cited
}


def to_plain(value: Any) -> Any:
    """A record as plain data. Its class is one of CLASSES."""
    if isinstance(value, Mapping):
        return {name: to_plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    kind = type(value).__name__
    if isinstance(value, Cited):
        return {KIND: kind, **value.document()}
    if not is_dataclass(value):
        return value
    assert kind in CLASSES, f"{kind} is not described as plain data"
    return {KIND: kind} | {each.name: to_plain(getattr(value, each.name)) for each in fields(value) if each.init}


def from_plain(value: Any) -> Any:
    """The record that ``to_plain`` described."""
    if isinstance(value, list):
        return tuple(map(from_plain, value))
    if not isinstance(value, dict):
        return value
    found = {name: from_plain(each) for name, each in value.items() if name != KIND}
    return CLASSES[value[KIND]](**found) if KIND in value else found
