"""Errors about fields of bodies, and the parts of bodies that are ignored.

The rule for every field of every API, at every depth:

- null counts as absent, also in a field that is not known; an empty text or list does in one that is not supported;
- a field is used where the feature exists;
- what only labels, hints or describes (LABELS, and fields declared as IGNORED) is ignored, and a warning in the
  response names it;
- what would change a completion and cannot be done, and what is not known, is an error that names it.

Tools of unknown types, and unknown fields if the server is tolerant, are ignored with a warning, too: see ``ignoring``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from twofold.core.errors import MAX_QUOTED, ParameterError, describe, did_you_mean, spelled

MISSING: Final = "missing_required_parameter"
UNKNOWN: Final = "unknown_parameter"
UNSUPPORTED: Final = "unsupported_parameter"
UNSUPPORTED_VALUE: Final = "unsupported_value"
IMPOSSIBLE: Final = "invalid_value"
MAX_IGNORED: Final = 16
"""Maximum ignored parts of a request that its warning names."""
LABELS: Final = frozenset(
    {
        *("id", "object", "created", "created_at", "createdAt", "updated_at", "updatedAt", "timestamp"),
        *("index", "status", "usage", "stop_reason", "stop_sequence", "finish_reason", "native_finish_reason"),
        *("model", "provider", "title", "description", "tags", "examples", "metadata", "annotations", "citations"),
        *("provider_specific_fields", "provider_metadata", "providerMetadata", "provider_options", "providerOptions"),
        *("extra_content", "additional_kwargs", "response_metadata", "usage_metadata", "artifact"),
        *("signature", "thought_signature", "encrypted_content", "thinking_blocks"),
        *("reasoning_opaque", "reasoning_signature"),
        *("session_id", "trace_id", "request_id", "run_id", "parent_id"),
        *("cache_control", "copilot_cache_control", "defer_loading"),
    }
)
"""Fields that any object of a request may have: clients and other servers put them into what is sent back. They label,
hint or describe. An object that declares one reads it."""
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
    logged    their paths without labels, for ``api.names.declared_name``
    notes     sentences about what was done otherwise than asked
    objects   the ignored objects, each with the error that it would be
    """

    unknown: bool
    shown: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    objects: list[tuple[dict[str, Any], FieldError]] = field(default_factory=list)

    def add(self, shown: str, logged: str | None) -> None:
        if len(self.shown) < MAX_IGNORED and shown not in self.shown:
            self.shown.append(shown)
            if logged is not None:
                self.logged.append(logged)


_ignored: ContextVar[IgnoredFields | None] = ContextVar("ignored", default=None)


@contextmanager
def ignoring(*, unknown: bool) -> Iterator[IgnoredFields]:
    """Within this context, parts of bodies are ignored and noted; outside of it, as for batches, they are errors.

    Work on the threads of ``server/pool`` is within the context of its request.
    """
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
    ignored.add(f"{path} of type {spelled(kind)}", path)


def omission(**asked: str | None) -> FieldError | None:
    """Returns the error of the first ignored object that has these fields, itself or in an object inside it; None if no
    ignored object has them. A field that is None may have any value."""
    ignored, given = _ignored.get(), [(name, value) for name, value in asked.items() if value is not None]
    for value, error in () if ignored is None else ignored.objects:
        parts = (value, *(part for part in value.values() if isinstance(part, dict)))
        if all(any(part.get(name) == value for part in parts) for name, value in given):
            return error
    return None


def ignore_label(name: str) -> None:
    """Ignores a field that changes no completion, with a warning if there is a response for it."""
    if (ignored := _ignored.get()) is not None:
        ignored.add(name, None)


def warn(text: str) -> None:
    """Tells the caller, in the warning of the response, what was done otherwise than asked."""
    ignored = _ignored.get()
    if ignored is not None and text not in ignored.notes:
        ignored.notes.append(text)


def refuse_unknown(where: str, name: str, known: Collection[str]) -> None:
    """Raises FieldError for an unknown field of the object at ``where``, with the closest known name; or ignores it
    with a warning, if the server is tolerant."""
    ignored = _ignored.get()
    if ignored is not None and ignored.unknown:
        ignored.add(where + spelled(name), where + name)
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
