"""Descriptions of models and machines as plain data, and back: numbers and texts for the helper process.

A record becomes an object with its class under ``is``; lists become tuples again, as records have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from twofold.core.kv_layout import MixedFormat
from twofold.core.model import (
    ExpertFFN,
    FactorScaling,
    Formats,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    LinearScaling,
    ModelSpec,
    PlainFFN,
    RecurrentAttention,
    RopeSpec,
    YarnScaling,
)
from twofold.core.values import ValueFormat
from twofold.planner.count.setting import Setting
from twofold.planner.machines.machine import Cited, Machine

KIND: Final = "is"
MAPPING: Final = "mapping"
CITED: Final = "cited"
CLASSES: Final[dict[str, Any]] = {
    each.__name__: each
    for each in (
        *(ModelSpec, LayerSpec, GroupedAttention, LatentAttention, RecurrentAttention, GatedFFN, PlainFFN, ExpertFFN),
        *(Formats, ValueFormat, MixedFormat, RopeSpec, LinearScaling, YarnScaling, FactorScaling, Machine, Setting),
    )
}


def to_plain(value: Any) -> Any:
    """A record as plain data. Its class is one of CLASSES."""
    if isinstance(value, Cited):
        return {KIND: CITED, **value.document()}
    if is_dataclass(value):
        assert type(value).__name__ in CLASSES, f"{type(value).__name__} is not described as plain data"
        found = {each.name: to_plain(getattr(value, each.name)) for each in fields(value) if each.init}
        return {KIND: type(value).__name__, **found}
    if isinstance(value, Mapping):
        return {KIND: MAPPING, "of": {name: to_plain(each) for name, each in value.items()}}
    return [to_plain(each) for each in value] if isinstance(value, tuple | list) else value


def from_plain(value: Any) -> Any:
    """The record that ``to_plain`` described."""
    if isinstance(value, list):
        return tuple(map(from_plain, value))
    if not isinstance(value, dict):
        return value
    kind = value[KIND]
    if kind == CITED:
        return Cited(value["value"], value["source"])
    if kind == MAPPING:
        return {name: from_plain(each) for name, each in value["of"].items()}
    return CLASSES[kind](**{name: from_plain(each) for name, each in value.items() if name != KIND})
