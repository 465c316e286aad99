"""One operation of the API: its request, its replies, its errors, and the operations that may follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.body import Body, NonEmptyText, Schema, kind_of

Method: TypeAlias = Literal["GET", "POST", "DELETE"]

JSON: Final = "application/json"
TAGS: Final = (
    ("/v1/responses", "Responses"),
    ("/v1/messages", "Anthropic"),
    ("/v1/files", "Files"),
    ("/v1/batches", "Batches"),
    ("/v1/models", "Models"),
    ("/v1/twofold", "Twofold"),
    ("/v1/rerank", "Scores"),
    ("/v1/score", "Scores"),
    ("/v1/compress", "Twofold"),
    ("/v1/", "OpenAI"),
    ("/rerank", "Scores"),
    ("/score", "Scores"),
    ("/api/", "Ollama"),
    ("/tokenize", "Tokens"),
    ("/detokenize", "Tokens"),
    ("/", "Server"),
)
"""Starts of paths, and the tags of their operations; the first match counts."""


@dataclass(frozen=True, slots=True)
class RequestRule:
    """A condition of requests that no schema expresses; a request that breaks it gets a 400.

    ``param`` and ``code`` are those of the error; ``param`` is None for an error that is about no field.
    """

    says: str
    param: str | None
    code: str = "invalid_value"


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body of a request: a type, or a schema. ``examples``, by name, are bodies that get a 200."""

    content: Any
    examples: Mapping[str, Any] = field(default_factory=dict)
    content_type: str = JSON

    @property
    def schema(self) -> Schema:
        return schema_of(self.content)


@dataclass(frozen=True, slots=True)
class OperationLink:
    """An operation that may follow; its parameters and its body are constants, or runtime expressions of OpenAPI."""

    name: str
    operation: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """An operation.

    reply     type of the JSON reply, or its schema
    events    type of the events of a stream: a union of objects, or the type of their data by their names
    contents  schemas of other replies, by content type
    failures  statuses of errors besides those of all operations
    is_open   the operation needs no key; ``shows_more``: but replies with more if it gets one
    """

    method: Method
    path: str
    id: str
    summary: str
    reply: Any = None
    _: KW_ONLY
    events: Any = None
    contents: Mapping[str, Schema] = field(default_factory=dict)
    failures: tuple[int, ...] = ()
    body: RequestBody | None = None
    parameters: tuple[Schema, ...] = ()
    rules: tuple[RequestRule, ...] = ()
    links: tuple[OperationLink, ...] = ()
    is_open: bool = False
    shows_more: bool = False

    @property
    def tag(self) -> str:
        return next(tag for start, tag in TAGS if self.path.startswith(start))

    @property
    def path_parameters(self) -> tuple[Schema, ...]:
        names = re.findall(r"\{(\w+)\}", self.path)
        return tuple(_parameter("path", name, NonEmptyText, required=True) for name in names)

    @property
    def types(self) -> tuple[type[Body], ...]:
        """The declared objects to which the operation refers."""
        events = tuple(self.events.values()) if isinstance(self.events, Mapping) else (self.events,)
        used = (self.reply, *events, None if self.body is None else self.body.content)
        return tuple(body for hint in used if not isinstance(hint, dict | None) for body in kind_of(hint).bodies)


def schema_of(content: Any) -> Schema:
    """The JSON Schema of a type; a schema is returned unchanged."""
    return content if isinstance(content, dict) else kind_of(content).schema


def in_query(name: str, content: Any, description: str, **more: Any) -> Schema:
    """A field of a query string."""
    return _parameter("query", name, content, required=False, description=description, **more)


def in_header(name: str, content: Any, description: str) -> Schema:
    """A header of a request."""
    return _parameter("header", name, content, required=False, description=description)


def page(max_limit: int, *others: Schema) -> tuple[Schema, ...]:
    """The query parameters of a list that is read page by page, with ``others``."""
    return (
        in_query("limit", Annotated[int, Meta(ge=1, le=max_limit)], "Maximum number of entries of a page."),
        in_query("after", str, "The id of the entry after which the page begins."),
        *others,
    )


def _parameter(place: str, name: str, content: Any, **more: Any) -> Schema:
    return {"name": name, "in": place, "schema": schema_of(content), **more}
