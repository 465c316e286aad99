"""Errors about fields of bodies, and the parts of bodies that are ignored.

Unknown fields are errors. Parts that the completion does not need (tools of unknown types, and unknown fields if the
server is tolerant) are ignored with a warning in the response, see ``ignoring``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from twofold.core.errors import MAX_QUOTED, ParameterError, describe, did_you_mean, plain_name, spelled

MISSING: Final = "missing_required_parameter"
UNKNOWN: Final = "unknown_parameter"
UNSUPPORTED: Final = "unsupported_parameter"
UNSUPPORTED_VALUE: Final = "unsupported_value"
IMPOSSIBLE: Final = "invalid_value"
MAX_IGNORED: Final = 16
"""Maximum ignored parts of a request that its warning names."""
MAX_EXACT: Final = 1 << 53
"""Up to this number, a float represents every integer exactly."""


class FieldError(ParameterError):
    """A field is missing, unknown, unsupported or impossible; ``code`` is OpenAI's code for that."""

    def __init__(self, message: str, *, param: str, code: str = IMPOSSIBLE, hint: str | None = None) -> None:
        super().__init__(message, param=param, hint=hint)
        self.code = code


@dataclass(frozen=True, slots=True)
class IgnoredFields:
    """The ignored parts of a request.

    unknown   whether unknown fields are ignored; else they are errors
    shown     their names for the response
    logged    the same for the log, without names that are not plain
    objects   the ignored objects, each with the error that it would be
    """

    unknown: bool
    shown: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    objects: list[tuple[dict[str, Any], FieldError]] = field(default_factory=list)

    def add(self, shown: str, logged: str) -> None:
        if len(self.shown) < MAX_IGNORED and shown not in self.shown:
            self.shown.append(shown)
            self.logged.append(logged)


_ignored: ContextVar[IgnoredFields | None] = ContextVar("ignored", default=None)


@contextmanager
def ignoring(*, unknown: bool) -> Iterator[IgnoredFields]:
    """Within this context, parts of bodies are ignored and noted; outside of it, as for batches, they are errors."""
    ignored = IgnoredFields(unknown)
    token = _ignored.set(ignored)
    try:
        yield ignored
    finally:
        _ignored.reset(token)


def ignore_object(value: dict[str, Any], path: str, error: FieldError) -> None:
    """Ignores an object of a type that the completion does not need; raises ``error`` outside of ``ignoring``."""
    ignored, kind = _ignored.get(), value["type"]
    if ignored is None:
        raise error
    ignored.objects.append((value, error))
    ignored.add(f"{path} of type {spelled(kind)}", f"{path} of type {plain_name(kind)}")


def omission(name: str | None = None) -> FieldError | None:
    """The error of the first ignored object, or of the first with this name, which may be in an object in it; None if
    there is none."""
    ignored = _ignored.get()
    for value, error in () if ignored is None else ignored.objects:
        parts = (value, *(part for part in value.values() if isinstance(part, dict)))
        if name is None or any(part.get("name") == name for part in parts):
            return error
    return None


def refuse_unknown(where: str, name: str, known: Collection[str]) -> None:
    """Raises FieldError for an unknown field of the object at ``where``, with the closest known name; or ignores it
    with a warning, if the server is tolerant."""
    ignored = _ignored.get()
    if ignored is not None and ignored.unknown:
        ignored.add(where + spelled(name), plain_name(where + name))
        return
    hint = did_you_mean(name, sorted(known))
    message = f"{where}{spelled(name)} is not a known field."
    raise FieldError(message, param=where + name[:MAX_QUOTED], code=UNKNOWN, hint=hint)


def impossible(name: str, value: object, wanted: str) -> FieldError:
    """The error for a value of a wrong type or outside its range."""
    return FieldError(f"{name} must be {wanted}, not {describe(value)}.", param=name)


def unsupported(name: str, hint: str) -> FieldError:
    """The error for a field of the API that Twofold does not support."""
    return FieldError(f"{name} is not supported.", param=name, code=UNSUPPORTED, hint=hint)


def check_depth(body: object, limit: int) -> None:
    """Raises FieldError if more than ``limit`` objects and lists are nested. The search goes layer by layer."""
    layer: list[Any] = [body] if type(body) is dict or type(body) is list else []
    for _ in range(limit):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not layer:
            return
    raise FieldError(f"The body is nested deeper than {limit} levels.", param="body")
