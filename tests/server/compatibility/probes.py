"""Values to try for a field, made from the type that a client declares for it.

A Literal gives each of its words, a union the values of its parts, a tagged union one object of each kind, and an
object one value for each field: so new fields, words and kinds are tried without a change of the tests.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from typing_extensions import is_typeddict

DEPTH: Final = 3
LISTS: Final = (list, Iterable, Sequence)
SAMPLES: Final[Mapping[object, Any]] = {str: "x", int: 1, float: 0.5, bool: True, object: "x"}


@dataclass(frozen=True, slots=True)
class Probe:
    """A value, and its label in the table."""

    label: str
    value: Any


def probes_of(hint: Any, depth: int = DEPTH) -> list[Probe]:
    """Values of a type; empty if no value can be made."""
    found = {probe.label: probe for probe in reversed(list(_probes(_bare(hint), depth)))}
    return list(reversed(found.values()))


def fields_of(params: Any) -> dict[str, Any]:
    """The fields of a client's parameters with their types, except those that are sent as headers."""
    if isinstance(params, type) and issubclass(params, BaseModel):
        return {name: field.annotation for name, field in params.model_fields.items()}
    hints = get_type_hints(params, include_extras=True)
    return {name: hint for name, hint in hints.items() if not _is_header(hint)}


def _probes(hint: Any, depth: int) -> Iterator[Probe]:
    origin = get_origin(hint)
    if origin is Literal:
        yield from (Probe(_told(value), value) for value in get_args(hint))
    elif origin in (Union, types.UnionType):
        parts = _parts(hint)
        among = sum(map(is_typeddict, parts)) > 1
        for part in parts:
            yield from list(_objects(part, depth))[:1] if among and is_typeddict(part) else probes_of(part, depth)
    elif origin in LISTS:
        (part,) = get_args(hint)
        yield from (Probe(f"[{each.label}]", [each.value]) for each in probes_of(part, depth))
    elif origin is dict:
        yield Probe("object", {"x": _sample(get_args(hint)[1], depth)})
    elif is_typeddict(hint):
        yield from _objects(hint, depth)
    elif hint is bool:
        yield from (Probe("true", True), Probe("false", False))
    elif hint in SAMPLES:
        yield Probe("text" if hint in (str, object) else "number", SAMPLES[hint])


def _objects(hint: Any, depth: int) -> Iterator[Probe]:
    """An object of each kind; without kinds, an object for each value of each field."""
    fields = get_type_hints(hint, include_extras=True)
    needed = {name for name, field in fields.items() if _is_needed(field, hint.__total__)}
    least = {name: _sample(fields[name], depth - 1) for name in fields if name in needed}
    kind = least.get("type") or least.get("role") or _kind(fields)
    if kind is not None:
        yield Probe(f"`{kind}`", least)
    elif depth == 0 or needed == fields.keys():
        yield Probe("object", least)
    if kind is not None and len(least) > 1:
        return
    for name, field in fields.items() if depth else ():
        if name not in ("type", "role"):
            yield from (
                Probe(f"{name}: {each.label}", least | {name: each.value}) for each in probes_of(field, depth - 1)
            )


def _kind(fields: Mapping[str, Any]) -> str | None:
    """The default kind of an object whose kind is optional."""
    words = [probe.value for probe in probes_of(fields["type"], 1)] if "type" in fields else []
    return words[0] if words else None


def _parts(hint: Any) -> list[Any]:
    """The parts of a union; words beside any text are omitted, as examples of it."""
    parts = [_bare(part) for part in get_args(hint)]
    return [part for part in parts if str not in parts or get_origin(part) is not Literal]


def _is_needed(field: Any, total: bool) -> bool:
    return get_origin(field) is Required or (total and get_origin(field) is not NotRequired)


def _sample(hint: Any, depth: int) -> Any:
    """One value of a type."""
    found = probes_of(hint, max(0, depth))
    return found[0].value if found else {}


def _bare(hint: Any) -> Any:
    """The type without annotations."""
    while get_origin(hint) in (Annotated, Required, NotRequired):
        hint = get_args(hint)[0]
    return hint


def _told(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else str(value).lower()


def _is_header(hint: Any) -> bool:
    aliases = (getattr(note, "alias", None) for note in getattr(hint, "__metadata__", ()))
    return any(alias and "-" in alias for alias in aliases)
