"""All routes of a server, as one ASGI application behind the door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.routing import Route, Router

from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.base import Dialect
from twofold.api.ollama.errors import OllamaDialect
from twofold.api.openai.errors import OpenAIDialect
from twofold.core.errors import MethodError, NotFoundError, closest_match
from twofold.server.http.asgi import App, Receive, Scope, Send
from twofold.server.http.endpoints import (
    Generating,
    GeneratingEndpoint,
    Handler,
    PlainEndpoint,
    Site,
    exchange_of,
    refuse,
)

OPENAI: Final = OpenAIDialect()
ANTHROPIC: Final = AnthropicDialect()
OLLAMA: Final = OllamaDialect()
ANTHROPIC_PATHS: Final = "/v1/messages"
OLLAMA_PATHS: Final = "/api/"

Routes = Mapping[str, Mapping[str, Handler]]
"""Handlers by path and HTTP method."""


def dialect_of(path: str) -> Dialect:
    """The dialect that is spoken at a path."""
    if path.startswith(OLLAMA_PATHS):
        return OLLAMA
    return ANTHROPIC if path.startswith(ANTHROPIC_PATHS) else OPENAI


def build_app(site: Site, generating: Mapping[str, Generating], plain: Routes) -> App:
    """The application: endpoints that generate, and ``plain`` ones that answer at once."""
    methods: dict[str, dict[str, App]] = {}
    for path, one in generating.items():
        methods.setdefault(path, {})["POST"] = GeneratingEndpoint(site, dialect_of(path), path, one)
    for path, handlers in plain.items():
        for method, handler in handlers.items():
            methods.setdefault(path, {})[method] = PlainEndpoint(site, dialect_of(path), path, handler)
    routes = [Route(path, _Methods(site, path, apps)) for path, apps in methods.items()]
    return Router(routes, default=_Nowhere(site, tuple(methods)), redirect_slashes=False)


class _Methods:
    """One path: an application for each HTTP method."""

    def __init__(self, site: Site, path: str, apps: Mapping[str, App]) -> None:
        self._site = site
        self._path = path
        self._apps = dict(apps)
        if "GET" in apps:
            self._apps["HEAD"] = apps["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._apps.get(scope["method"])
        if app is not None:
            await app(scope, receive, send)
            return
        allowed = tuple(sorted(self._apps))
        error = MethodError(
            "This path does not support this HTTP method.", allowed=allowed, hint=f"It supports {', '.join(allowed)}."
        )
        await _refused(self._site, self._path, error, scope, send)


class _Nowhere:
    """Paths that lead nowhere."""

    def __init__(self, site: Site, paths: tuple[str, ...]) -> None:
        self._site = site
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of an ASGI app
        if scope["type"] != "http":
            return
        close = closest_match(scope["path"], self._paths)
        hint = f"Did you mean {close}?" if close else "GET /openapi.json lists all paths."
        error = NotFoundError("There is nothing at this path.", hint=hint)
        await _refused(self._site, UNMATCHED, error, scope, send)


UNMATCHED: Final = "unmatched"
"""The endpoint, in logs and metrics, of a path that no route matches."""


async def _refused(site: Site, path: str, error: NotFoundError, scope: Scope, send: Send) -> None:
    exchange = exchange_of(scope, dialect_of(scope["path"]), path)
    with site.runner.track(exchange, waits=False):
        await refuse(site, exchange, error, send)
