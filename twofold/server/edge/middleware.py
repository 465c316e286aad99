"""The first ASGI application: every request passes it.

It assigns a request id, checks host, origin and site, responds to CORS preflight requests, and checks the API key,
except for OPEN_PATHS and the files of the web page. The endpoints find ``request_id`` and ``caller`` in the request's
state, and a path without the doubled and trailing slashes of joined addresses (``//api/chat``). Every response, also an
error, gets the id and the headers for browsers, and is sent in pieces, so that little of it waits in memory for a slow
reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twofold.core.errors import TwofoldError, UsageError
from twofold.server.edge.hosts import SECURITY_HEADERS, Hosts, Origins, is_loopback
from twofold.server.edge.keys import Caller, KeyRing, presented_key
from twofold.server.edge.limits import KIB
from twofold.server.edge.protocol import OPEN_PATHS
from twofold.server.edge.refusals import DialectOf, Header, error_response, request_id_of
from twofold.web.page import is_page

ABOUT_PATH: Final = "/v1/twofold/server"
"""Without a key, it only says that the server has keys."""
SLASHES: Final = re.compile("/{2,}")
PIECE: Final = 256 * KIB
"""Maximum bytes of a piece of a response; at most two pieces wait for a slow reader."""


@dataclass(frozen=True, slots=True)
class EdgeMiddleware:
    """Wraps ``app``. ``keys`` returns the current keys; ``web``: browsers get the files of the page without one."""

    app: ASGIApp
    keys: Callable[[], KeyRing]
    dialect_of: DialectOf
    hosts: Hosts = field(default_factory=Hosts)
    origins: Origins = field(default_factory=Origins)
    web: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["path"] = SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host")
        request_id = request_id_of(headers.get("x-request-id", ""))
        name = request_id.encode("ascii")
        common = ((b"x-request-id", name), (b"request-id", name), *SECURITY_HEADERS, *self.origins.headers(origin))
        outward = _outward(send, common)
        try:
            self.hosts.check(host)
            self.origins.check(origin, host)
            self.origins.check_site(headers)
            if scope["method"] == "OPTIONS" and self._is_preflight(headers):
                asked = headers.get("access-control-request-headers", "").encode("latin-1")
                await self.origins.preflight(asked).send(outward)
                return
            caller = self._caller(scope["path"], headers)
        except TwofoldError as error:
            await error_response(self.dialect_of(scope["path"]), error, request_id).send(outward)
            return
        scope.setdefault("state", {}).update(request_id=request_id, caller=caller)
        await self.app(scope, receive, outward)

    def _caller(self, path: str, headers: Headers) -> Caller:
        """Raises AccessError."""
        if path in OPEN_PATHS or (self.web and is_page(path, headers.get("accept", ""))):
            return Caller()
        keys = self.keys()
        if path == ABOUT_PATH and keys.required and presented_key(headers) is None:
            return Caller(anonymous=True)
        return keys.caller(headers, datetime.now(UTC))

    def _is_preflight(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return "access-control-request-method" in headers and origin is not None and self.origins.allows(origin)


def check_exposure(host: str, keys: KeyRing) -> None:
    """Raises UsageError if a server without keys could be reached from other machines."""
    if not keys.required and not is_loopback(host):
        raise UsageError(
            f"Binding to {host} requires an API key; without one only loopback is allowed.",
            hint="Give --api-key or --api-keys FILE (`twofold keys add` makes one), or omit --host.",
        )


def _outward(send: Send, always: tuple[Header, ...]) -> Send:
    """A ``send`` that adds those of the ``always`` headers that a response lacks, and splits long bodies."""

    async def outward(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            given += [header for header in always if header[0] not in names]
            message = {**message, "headers": given}
        elif len(message.get("body", b"")) > PIECE:
            await _send_pieces(send, message)
            return
        await send(message)

    return outward


async def _send_pieces(send: Send, message: Message) -> None:
    body, more = memoryview(message["body"]), message.get("more_body", False)
    for start in range(0, len(body), PIECE):
        piece = bytes(body[start : start + PIECE])
        await send({"type": message["type"], "body": piece, "more_body": more or start + PIECE < len(body)})
