"""A route: a method and a path with its handler, and what the OpenAPI document says of it: its request, its replies,
its errors, and the operations that may follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints

from msgspec import Meta

from twofold.api.body import Body, NonEmptyText, Schema, kind_of
from twofold.server.http.endpoints import EndpointResponse, Generating, Handler

Method: TypeAlias = Literal["GET", "POST", "DELETE"]

JSON: Final = "application/json"
FIRST_MODEL: Final = "{the first model}"
"""Stands for the first model of the server in examples and links."""
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
class OperationLink:
    """An operation that may follow; its parameters and its body are constants, or runtime expressions of OpenAPI."""

    name: str
    operation: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A route, and its operation in the OpenAPI document.

    path      as the router reads it: a parameter with slashes is {name:path}
    id        name of the operation
    reply     type of the JSON reply, or its schema; None: the type that its handler declares to return
    events    type of the events of a stream: a union of objects, or the type of their data by their names
    contents  schemas of other replies, by content type
    failures  statuses of errors besides those of all operations
    body      type of its body, or its schema; None: that of the handler, or none
    examples  valid request bodies by name: each gets a 200. FIRST_MODEL stands for the first model
    is_open   the operation needs no key; ``shows_more``: but replies with more if it gets one
    """

    method: Method
    path: str
    handler: Handler
    id: str
    summary: str
    reply: Any = None
    _: KW_ONLY
    events: Any = None
    contents: Mapping[str, Schema] = field(default_factory=dict)
    failures: tuple[int, ...] = ()
    body: Any = None
    body_type: str = JSON
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters: tuple[Schema, ...] = ()
    rules: tuple[RequestRule, ...] = ()
    links: tuple[OperationLink, ...] = ()
    is_open: bool = False
    shows_more: bool = False

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")

    @property
    def tag(self) -> str:
        return next(tag for start, tag in TAGS if self.path.startswith(start))

    @property
    def path_parameters(self) -> tuple[Schema, ...]:
        names = re.findall(r"\{(\w+)\}", self.template)
        return tuple(_parameter("path", name, NonEmptyText, required=True) for name in names)

    @property
    def request_type(self) -> Any:
        """The type of its body, or its schema; None without a body."""
        return self.handler.request if isinstance(self.handler, Generating) else self.body

    @property
    def reply_type(self) -> Any:
        """The type of its JSON reply, or its schema; None without one."""
        if self.reply is not None:
            return self.reply
        made = get_type_hints(self.handler.request.reply if isinstance(self.handler, Generating) else self.handler)
        return None if made["return"] is EndpointResponse else made["return"]

    @property
    def types(self) -> tuple[type[Body], ...]:
        """The declared objects to which the operation refers."""
        events = tuple(self.events.values()) if isinstance(self.events, Mapping) else (self.events,)
        used = (self.reply_type, *events, self.request_type)
        return tuple(body for hint in used if not isinstance(hint, dict | None) for body in kind_of(hint).bodies)


def _route(method: Method, path: str, **more: Any) -> Callable[[Handler], Route]:
    """Makes a route of the handler that it decorates. The handler's name is that of the operation, in camel case; the
    first paragraph of its docstring is the summary."""

    def made(handler: Handler) -> Route:
        first, *others = handler.__name__.split("_")
        name = first + "".join(word.capitalize() for word in others)
        return Route(method, path, handler, name, " ".join(str(handler.__doc__).partition("\n\n")[0].split()), **more)

    return made


get = partial(_route, "GET")
post = partial(_route, "POST")
delete = partial(_route, "DELETE")


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
