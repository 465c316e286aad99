"""One operation of the API as data: what it takes, what it answers, how it fails, and which operations may follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from twofold.server.openapi.shapes import Schema, either, ref

Method = Literal["GET", "POST", "DELETE"]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class RequestRule:
    """What JSON Schema cannot say of a request, or only in a way that nobody reads; what breaks it is a 400.

    ``param`` and ``code`` are those of the error; None is that of an error that blames no field.
    """

    says: str
    param: str | None
    code: str = "invalid_value"


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request. ``examples`` by name are bodies that are answered well."""

    schema: Schema
    examples: Mapping[str, Any] = field(default_factory=dict)
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class OperationLink:
    """An operation that may follow. What it takes are constants, or runtime expressions of OpenAPI."""

    name: str
    operation: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """``answers`` are the contents of a 200, by type; ``failures`` the statuses beside those that all operations have.

    is_open   it asks for no key
    """

    method: Method
    path: str
    id: str
    tag: str
    summary: str
    answers: Mapping[str, Schema]
    failures: tuple[int, ...] = ()
    body: Body | None = None
    parameters: tuple[Schema, ...] = ()
    rules: tuple[RequestRule, ...] = ()
    links: tuple[OperationLink, ...] = ()
    is_open: bool = False


def replied(*names: str) -> Mapping[str, Schema]:
    """A JSON reply of one of these schemas."""
    return {JSON: ref(names[0]) if len(names) == 1 else either(*map(ref, names))}
