"""Reads JSON objects that strangers wrote: each field once, with its type, and nothing is passed over in silence.

A field that is null counts as left out, as in OpenAI's API. What nobody asked for until ``close`` is unknown. A whole
number may be written with a fraction of nothing: JSON has one kind of numbers, and some clients write 2 as 2.0.

What an answer can do without (tools that cannot be offered here, unknown fields where the server takes them) is left
out and told of, see ``leaving_out``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from dataclasses import field as made
from typing import Final

from twofold.core.errors import MAX_QUOTED, ParameterError, closest_match, describe, plain_name, spelled

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
class IgnoredFields:
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


_left_out: ContextVar[IgnoredFields | None] = ContextVar("left_out", default=None)


@contextmanager
def leaving_out(*, unknown: bool) -> Iterator[IgnoredFields]:
    """Reads requests that may hold what cannot be had here; without it, as in files of requests, all of that is an
    error."""
    left_out = IgnoredFields(unknown)
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


def refuse_unknown(where: str, field: str, known: Collection[str]) -> None:
    """Raises FieldError for an unknown field of the object at ``where``, with the nearest known name; or omits it with
    a warning, if the server omits such fields."""
    left_out = _left_out.get()
    if left_out is not None and left_out.unknown:
        left_out.add(where + spelled(field), plain_name(where + field))
        return
    close = closest_match(field, known)
    hint = f"Did you mean {close!r}?" if close else f"Known: {', '.join(sorted(known))}."
    message = f"{where}{spelled(field)} is not a known field."
    raise FieldError(message, param=where + field[:MAX_QUOTED], code=UNKNOWN, hint=hint)


def impossible(name: str, value: object, wanted: str) -> FieldError:
    """The error for a value of a wrong type or outside its range."""
    return FieldError(f"{name} must be {wanted}, not {describe(value)}.", param=name)


def unsupported(name: str, hint: str) -> FieldError:
    """The error for a field that OpenAI's API knows and Twofold does not offer."""
    return FieldError(f"{name} is not supported.", param=name, code=UNSUPPORTED, hint=hint)
