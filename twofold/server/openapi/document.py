"""The OpenAPI 3.1 document of a server, made from the declared types of requests and replies.

Schemas describe the fields of requests; further conditions are in each operation's description, and as data under
``x-rules``. The server responds to each example request with 200.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from twofold.api.anthropic.errors import OVERLOADED, AnthropicError
from twofold.api.base import Dialect
from twofold.api.body import MAX_MODEL_CHARS, NonEmptyText, Schema, kind_of, object_of, schemas
from twofold.api.ollama.replies import OllamaError
from twofold.api.openai.errors import OpenAIError
from twofold.server.edge.refusals import MAX_RETRY_AFTER_S
from twofold.server.openapi.route import FIRST_MODEL, JSON, Route, schema_of

ABOUT: Final = (
    "Language models behind OpenAI's, Anthropic's and Ollama's APIs. Bodies are JSON in UTF-8; an optional field that "
    "is null counts as absent. Errors have the format of the path's API, in at most 4 KiB."
)
ALWAYS: Final = (400, 401, 403, 431, 500, 503)
OF_BODIES: Final = (408, 413)
STATUSES: Final = {
    400: "The request is invalid; the error names the field and the way out.",
    401: "The key is missing or unknown.",
    403: "The key lacks the right, or the Host or Origin of the request is not allowed.",
    404: "There is no such object, or it is another tenant's.",
    408: "The body did not arrive in time.",
    409: "The object's state does not allow it.",
    413: "The body is larger than the limit.",
    422: "The model's file cannot be used.",
    429: "The key's quota is used up.",
    431: "The head of the request is larger than the limit.",
    500: "The server failed; its log has the cause under the request's id.",
    502: "A download failed.",
    503: "The server is overloaded or shuts down, or its model's process ended; see Retry-After.",
    504: "The request timed out.",
    OVERLOADED: "The server is overloaded or shuts down.",
}
REQUEST_IDS: Final = {
    name: {
        "description": "The id of the request in logs and records.",
        "required": True,
        "schema": schema_of(Annotated[str, Meta(min_length=1, max_length=128)]),
    }
    for name in ("x-request-id", "request-id")
}
RETRY: Final = {
    name: {"description": description, "schema": schema_of(Annotated[int, Meta(ge=1, le=MAX_RETRY_AFTER_S * factor)])}
    for name, description, factor in (
        ("retry-after", "Seconds after which to retry.", 1),
        ("retry-after-ms", "Milliseconds after which to retry.", 1000),
    )
}
AUTHENTICATE: Final = {
    "www-authenticate": {"description": "How to send a key.", "schema": schema_of(str)},
    "x-should-retry": {"description": "Whether to repeat the request: false.", "schema": schema_of(str)},
}
ERRORS: Final[dict[str, Any]] = {"openai": OpenAIError, "anthropic": AnthropicError, "ollama": OllamaError}
BEARER: Final = {"type": "http", "scheme": "bearer"}
KEY_HEADER: Final = {"type": "apiKey", "in": "header", "name": "x-api-key"}


def document(
    routes: Sequence[Route],
    models: Sequence[str],
    dialect_of: Callable[[str], Dialect],
    *,
    version: str,
    keyed: bool = False,
    any_model: bool = False,
) -> dict[str, Any]:
    """The document of a server of these routes and ``models``, of which the first is the default.

    keyed       whether requests need a key
    any_model   whether any other name means the first model
    """
    name: Any = Annotated[NonEmptyText, Meta(max_length=MAX_MODEL_CHARS)] if any_model else Literal[*models]
    paths: dict[str, Any] = {}
    types = list(ERRORS.values())
    for route in routes:
        types += route.types
        item = _operation(route, dialect_of(route.path), models[0], keyed=keyed)
        paths.setdefault(route.template, {})[route.method.lower()] = item
    model_name = {**schema_of(name), "description": "A model; the first one by default."}
    components: dict[str, Any] = {"schemas": {"ModelName": model_name, **schemas(types)}}
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Twofold", "version": version, "description": ABOUT},
        "paths": paths,
        "components": components,
    }
    if keyed:
        components["securitySchemes"] = {"bearer": BEARER, "header": KEY_HEADER}
        whole["security"] = [{"bearer": []}, {"header": []}]
    return whole


def _operation(route: Route, dialect: Dialect, model: str, *, keyed: bool) -> dict[str, Any]:
    contents = {} if route.reply_type is None else {JSON: schema_of(route.reply_type)}
    if route.events is not None:
        contents[dialect.stream_type.partition(";")[0]] = _stream(route.events, dialect)
    reply: dict[str, Any] = {
        "description": route.summary,
        "headers": REQUEST_IDS,
        "content": {kind: {"schema": schema} for kind, schema in (contents | dict(route.contents)).items()},
    }
    if route.links:
        reply["links"] = {
            link.name: {"operationId": link.operation}
            | ({"parameters": dict(link.parameters)} if link.parameters else {})
            | ({} if link.body is None else {"requestBody": _filled(link.body, model)})
            for link in route.links
        }
    found: dict[str, Any] = {
        "operationId": route.id,
        "tags": [route.tag],
        "summary": route.summary,
        "responses": {"200": reply, **_failures(route, dialect)},
    }
    if route.rules:
        found["description"] = "\n".join(f"- {rule.says}" for rule in route.rules)
        found["x-rules"] = [asdict(rule) for rule in route.rules]
    if parameters := [*route.path_parameters, *route.parameters]:
        found["parameters"] = parameters
    if route.request_type is not None:
        examples = {name: {"value": _filled(value, model)} for name, value in route.examples.items()}
        content = {"schema": schema_of(route.request_type)} | ({"examples": examples} if examples else {})
        found["requestBody"] = {"required": True, "content": {route.body_type: content}}
    if route.is_open and keyed:
        found["security"] = [{}, {"bearer": []}, {"header": []}] if route.shows_more else []
    return found


def _filled(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """An example of a body for a server whose first model is ``model``."""
    return {name: model if value is FIRST_MODEL else value for name, value in body.items()}


def _stream(events: Any, dialect: Dialect) -> Schema:
    """The schema of one line of a stream of JSON, or of one server-sent event with its name and data."""
    if dialect.name == "ollama":
        return {**schema_of(events | OllamaError), "description": "One line."}
    if isinstance(events, Mapping):
        return {"anyOf": [_event(name, events[name]) for name in events], "description": "One event."}
    tags = [object_of(body).kinds.get("type") for body in kind_of(events).bodies]
    names = [name for tag in tags if tag is not None and tag.words is not None for name in tag.words.known]
    content = events if names else events | OpenAIError
    data: Schema = {"type": "string", "contentMediaType": JSON, "contentSchema": schema_of(content)}
    return {
        "type": "object",
        "properties": {
            "event": {"enum": names or ["message"]},
            "data": data if names else {"anyOf": [{"enum": ["[DONE]"]}, data]},
        },
        "required": ["data"],
        "description": "One event.",
    }


def _event(name: str, content: Any) -> Schema:
    """The schema of a server-sent event with this name."""
    return {
        "type": "object",
        "properties": {
            "event": {"const": name},
            "data": {"type": "string", "contentMediaType": JSON, "contentSchema": schema_of(content)},
        },
        "required": ["event", "data"],
    }


def _failures(route: Route, dialect: Dialect) -> dict[str, Any]:
    """The responses with errors, by status."""
    statuses = {*ALWAYS, *route.failures, *(OF_BODIES if route.request_type is not None else ())}
    if route.path_parameters:
        statuses.add(404)
    if route.is_open and not route.shows_more:
        statuses.discard(401)
    if dialect.name == "anthropic":
        statuses.add(OVERLOADED)
    content = {JSON: {"schema": schema_of(ERRORS[dialect.name])}}
    return {
        str(status): {
            "description": STATUSES[status],
            "headers": REQUEST_IDS
            | (RETRY if status in (429, 503, OVERLOADED) else {})
            | (AUTHENTICATE if status == 401 else {}),
            "content": content,
        }
        for status in sorted(statuses)
    }
