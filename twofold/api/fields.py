"""Reads JSON objects that strangers wrote: each field once, with its type, and nothing is passed over in silence.

A field that is null counts as left out, as in OpenAI's API. What nobody asked for until ``close`` is unknown. A whole
number may be written with a fraction of nothing: JSON has one kind of numbers, and some clients write 2 as 2.0.

What an answer can do without (tools that cannot be offered here, unknown fields where the server takes them) is left
out and told of, see ``leaving_out``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from dataclasses import field as made
from typing import Any, Final

from twofold.core.errors import MAX_QUOTED, ParameterError, named, nearest, plain_name, spelled, told

MISSING: Final = "missing_required_parameter"
UNKNOWN: Final = "unknown_parameter"
UNSUPPORTED: Final = "unsupported_parameter"
UNSUPPORTED_VALUE: Final = "unsupported_value"
IMPOSSIBLE: Final = "invalid_value"
MAX_LEFT_OUT: Final = 16
"""Things left out of a request that its caller is told of."""
EXACT: Final = 1 << 53
"""Up to here a floating-point number holds every whole one."""


class FieldError(ParameterError):
    """A field is missing, unknown, unsupported or impossible; ``code`` says which, in OpenAI's words."""

    def __init__(self, message: str, *, param: str, code: str = IMPOSSIBLE, hint: str | None = None) -> None:
        super().__init__(message, param=param, hint=hint)
        self.code = code


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is left out of a request because it cannot be had here, and its caller is told of beside the answer.

    unknown   whether fields that nobody knows are left out; else they are errors
    told      what the caller is told, logged what the log gets, where no name stands that is not a plain one
    """

    unknown: bool
    told: list[str] = made(default_factory=list)
    logged: list[str] = made(default_factory=list)

    def add(self, told: str, logged: str) -> None:
        if len(self.told) < MAX_LEFT_OUT and told not in self.told:
            self.told.append(told)
            self.logged.append(logged)


_left_out: ContextVar[LeftOut | None] = ContextVar("left_out", default=None)


@contextmanager
def leaving_out(*, unknown: bool) -> Iterator[LeftOut]:
    """Reads requests that may hold what cannot be had here; without it, as in files of requests, all of that is an
    error."""
    left_out = LeftOut(unknown)
    token = _left_out.set(left_out)
    try:
        yield left_out
    finally:
        _left_out.reset(token)


def leave_out(path: str, kind: str, error: FieldError) -> None:
    """Leaves out a part of a kind that the answer can do without; raises ``error`` where nobody could be told of it."""
    left_out = _left_out.get()
    if left_out is None:
        raise error
    left_out.add(f"{path} of type {spelled(kind)}", f"{path} of type {plain_name(kind)}")


class Fields:
    """The fields of the JSON object ``value``; ``path`` is where it stands in the whole, "" for the whole itself.

    Raises FieldError where ``value`` is no object, and from its methods.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise impossible(path or "body", value, "an object")
        self._values: dict[str, Any] = value
        self._path = path
        self._asked: set[str] = set()

    @property
    def path(self) -> str:
        """Where the object stands: tools[3]."""
        return self._path

    def name(self, field: str) -> str:
        """The field's name with its path: response_format.type."""
        return f"{self._path}.{field}" if self._path else field

    def take(self, field: str) -> Any:
        """The field as it stands; None where it is left out."""
        self._asked.add(field)
        return _counted(self._values.get(field))

    def given(self, names: Iterable[str]) -> frozenset[str]:
        """Which of these fields are there."""
        return frozenset(name for name in names if self._values.get(name) is not None)

    def require(self, field: str) -> Any:
        """The field as it stands; it must be there."""
        value = self.take(field)
        if value is None:
            raise FieldError(f"{self.name(field)} is required.", param=self.name(field), code=MISSING)
        return value

    def text(self, field: str) -> str | None:
        value = self.take(field)
        if value is not None and not isinstance(value, str):
            raise impossible(self.name(field), value, "text")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        value = self.take(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise impossible(self.name(field), value, "true or false")
        return value

    def whole(self, field: str, low: int, high: int) -> int | None:
        """A whole number from ``low`` to ``high``."""
        value = self.take(field)
        if value is not None and not (is_whole(value) and low <= value <= high):
            raise impossible(self.name(field), value, f"a whole number from {low} to {high}")
        return None if value is None else int(value)

    def choice(self, field: str, known: Iterable[str]) -> str:
        """One of the ``known`` texts; it must be there."""
        value, known = self.require(field), tuple(known)
        if not isinstance(value, str) or value not in known:
            close = nearest(value, known) if isinstance(value, str) else None
            hint = f"Did you mean {close!r}?" if close else None
            raise FieldError(
                f"{self.name(field)} must be {' or '.join(known)}, not {named(value)}.",
                param=self.name(field),
                hint=hint,
            )
        return value

    def inner(self, field: str) -> Fields | None:
        """The fields of an object inside this one."""
        value = self.take(field)
        return None if value is None else Fields(value, self.name(field))

    def only(self, field: str, *possible: object) -> None:
        """Refuses the field but for these values, which say what is done anyway."""
        value = self.take(field)
        if value is None or any(_same(value, one) for one in possible):
            return
        if not possible:
            raise unsupported(self.name(field), "Remove it.")
        raise FieldError(
            f"{self.name(field)} {named(value)} is not supported.",
            param=self.name(field),
            code=UNSUPPORTED_VALUE,
            hint=f"Remove it, or use one of: {', '.join(map(repr, possible))}.",
        )

    def close(self) -> None:
        """Raises for the first field that nobody asked for, with the nearest name that somebody did ask for. Where
        unknown fields are left out, all of them are."""
        where = f"{self._path}." if self._path else ""
        for field in self._values:
            if field not in self._asked:
                refuse_unknown(where, field, self._asked)


def refuse_unknown(where: str, field: str, known: Collection[str]) -> None:
    """Raises FieldError for an unknown field of the object at ``where``, with the nearest known name; or omits it with
    a warning, if the server omits such fields."""
    left_out = _left_out.get()
    if left_out is not None and left_out.unknown:
        left_out.add(where + spelled(field), plain_name(where + field))
        return
    close = nearest(field, known)
    hint = f"Did you mean {close!r}?" if close else f"Known: {', '.join(sorted(known))}."
    message = f"{where}{spelled(field)} is not a known field."
    raise FieldError(message, param=where + field[:MAX_QUOTED], code=UNKNOWN, hint=hint)


def is_whole(value: object) -> bool:
    """Whether this is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _counted(value: Any) -> Any:
    """The value, or the list of values or of such lists, with 2.0 as 2."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= EXACT else value
    if isinstance(value, list) and any(isinstance(one, float | list) for one in value):
        return [_counted(one) for one in value]
    return value


def _same(value: object, other: object) -> bool:
    """Whether these are equal in JSON, where 1 is not true."""
    return type(value) is type(other) and value == other


def impossible(name: str, value: object, wanted: str) -> FieldError:
    """The error for a value of a wrong type or outside its range."""
    return FieldError(f"{name} must be {wanted}, not {told(value)}.", param=name)


def unsupported(name: str, hint: str) -> FieldError:
    """The error for a field that OpenAI's API knows and Twofold does not offer."""
    return FieldError(f"{name} is not supported.", param=name, code=UNSUPPORTED, hint=hint)
