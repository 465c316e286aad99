"""All routes of a server, as one ASGI application."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final

from starlette import routing
from starlette.types import ASGIApp, Receive, Scope, Send

from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.base import Dialect
from twofold.api.ollama.replies import OllamaDialect
from twofold.api.openai.errors import OpenAIDialect
from twofold.core.errors import MethodError, NotFoundError, TwofoldError, closest_match
from twofold.server.http import (
    about,
    admin,
    estimate,
    generating,
    live,
    models,
    ollama,
    planner,
    root,
    status,
    stored,
    tokens,
)
from twofold.server.http.endpoints import Handler, PathEndpoint
from twofold.server.openapi.route import Route
from twofold.server.services import Services

ROUTES: Final[tuple[Route, ...]] = (
    *generating.OPENAI,
    estimate.estimate,
    generating.RESPONSE,
    tokens.count_response_tokens,
    generating.MESSAGE,
    tokens.count_message_tokens,
    *generating.OLLAMA,
    ollama.ollama_show,
    *tokens.ROUTES,
    *planner.ROUTES,
    root.get_root,
    *status.PROBES,
    *ollama.ROUTES,
    *models.ROUTES,
    about.get_server,
    *status.RECORDS,
    *admin.ROUTES,
    *stored.ROUTES,
    live.watch_engine,
)
"""In the order of the OpenAPI document. The first path that fits a request counts."""
OPENAI: Final = {"/v1/chat/": OpenAIDialect(), "/v1/completions": OpenAIDialect("prompt"), "": OpenAIDialect("input")}
ANTHROPIC: Final = AnthropicDialect()
OLLAMA: Final = OllamaDialect()
UNMATCHED: Final = "unmatched"
"""The endpoint, in logs and metrics, of a path that no route matches."""
PAGE_PATH: Final = "/web/{version}/{file:path}"
MAX_PARTS: Final = 8


def dialect_of(path: str) -> Dialect:
    """The API protocol of a path."""
    if path.startswith("/api/"):
        return OLLAMA
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return next(dialect for prefix, dialect in OPENAI.items() if path.startswith(prefix))


def build_app(services: Services) -> ASGIApp:
    """The application that serves all routes, and the files of the web page. HEAD is supported wherever GET is."""
    paths: dict[str, dict[str, Handler]] = {} if services.page is None else {PAGE_PATH: {"GET": root.get_file}}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = route.handler
    found = []
    for path, handlers in paths.items():
        methods = {**handlers, **({"HEAD": handlers["GET"]} if "GET" in handlers else {})}
        refusal = partial(_unsupported_method, sorted(methods))
        found.append(routing.Route(path, PathEndpoint(services, path, dialect_of(path), methods, refusal)))

    async def unmatched(scope: Scope, receive: Receive, send: Send) -> None:
        refusal, known = partial(_not_found, list(paths)), partial(known_path, list(paths))
        await PathEndpoint(services, UNMATCHED, dialect_of(scope["path"]), {}, refusal, known)(scope, receive, send)

    return routing.Router(found, default=unmatched, redirect_slashes=False)


def known_path(routes: Sequence[str], path: str) -> str:
    """The longest part of a path that some route begins with, as logs show it: /v1/files/{file_id}/…"""
    asked, longest = list(filter(None, path.split("/")))[:MAX_PARTS], list[str]()
    for route in routes:
        parts = list(filter(None, route.split("/")))
        both = zip(parts, asked, strict=False)
        count = sum(1 for _ in takewhile(lambda each: each[0] == each[1] or each[0].startswith("{"), both))
        longest = max(longest, parts[:count], key=len)
    return "/" + "/".join([*longest, "…"])


def _unsupported_method(allowed: Sequence[str], path: str) -> TwofoldError:  # noqa: ARG001 - of a refusal
    return MethodError(
        "This path does not support this HTTP method.",
        allowed=tuple(allowed),
        hint=f"It supports {', '.join(allowed)}.",
    )


def _not_found(paths: Sequence[str], path: str) -> TwofoldError:
    close = closest_match(path, paths)
    hint = f"Did you mean {close}?" if close else "GET /openapi.json lists all paths."
    return NotFoundError("There is nothing at this path.", hint=hint)
