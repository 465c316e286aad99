"""Endpoints as ASGI applications: a path with a handler for each HTTP method.

Each request gets a context, which is accounted for when it ends; each error is sent in the path's API protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from twofold.api.base import Dialect, DialectRequest
from twofold.api.body import ReplyObject, encode
from twofold.api.fields import ignoring
from twofold.core.errors import ParameterError, SlowClientError, TwofoldError
from twofold.observe.served import ServedRequest
from twofold.server.context import CLIENT_GONE, RequestContext
from twofold.server.edge.body import ClientGoneError, check_json_type, decode_json, read_body
from twofold.server.edge.limits import KIB, BodyLimits
from twofold.server.edge.middleware import arrival_of
from twofold.server.edge.quotas import Quotas
from twofold.server.edge.refusals import Header, RawResponse
from twofold.server.http.replies import QUIET_S, Keep, Reply, done_before_disconnect, internal_error
from twofold.server.pool import ByteBudget, WorkPool
from twofold.server.response_cache import CACHE_HEADER
from twofold.server.runner import RequestRunner

log = logging.getLogger("twofold.serve")

CACHE_WORDS: Final = {"keep": True, "skip": False}
"""Values of CACHE_HEADER: store a completion although it is sampled, or do not use the cache."""
INLINE_BYTES: Final = 4 * KIB
"""Bodies of up to this size are decoded on the event loop, longer ones on a thread."""
UPLOAD_SILENCE_S: Final = 30.0
"""Most seconds between two pieces of an upload, which may take long as a whole."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Site:
    """What all endpoints of a server share. ``tolerant``: unknown fields are ignored with a warning; else they are
    errors. ``quiet_s``: a stream that is silent for so long gets a keep-alive event."""

    runner: RequestRunner
    quotas: Quotas
    body: BodyLimits
    bodies: ByteBudget
    pool: WorkPool
    tolerant: bool = False
    quiet_s: float = QUIET_S


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """A response with status 200: bytes of ``content_type``, at once or in ``pieces``."""

    body: bytes = b""
    pieces: AsyncGenerator[bytes, None] | None = None
    content_type: bytes = b"application/json"
    headers: tuple[Header, ...] = ()

    async def send(self, send: Send) -> None:
        if self.pieces is None:
            await RawResponse.of(200, self.body, self.headers, self.content_type).send(send)
            return
        async with aclosing(self.pieces):
            headers = [(b"content-type", self.content_type), *self.headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for piece in self.pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """A request as its handler sees it."""

    context: RequestContext
    scope: Scope
    receive: Receive
    site: Site

    @property
    def path(self) -> dict[str, str]:
        """The variable parts of the path."""
        found: dict[str, str] = self.scope["path_params"]
        return found

    @property
    def query(self) -> QueryParams:
        return QueryParams(self.scope["query_string"])

    @property
    def headers(self) -> Headers:
        return Headers(scope=self.scope)

    @property
    def tenant(self) -> str:
        return self.context.caller.tenant

    async def read(self, read: Callable[[object], T]) -> T:
        """The result of ``read`` on the decoded JSON body.

        Raises TooLargeError, SlowClientError, ClientGoneError, BusyError, FieldError for a body that is not JSON in
        UTF-8 or has another content type (which some API protocols allow), and what ``read`` raises.
        """
        context, site, headers = self.context, self.site, self.headers
        check_json_type(headers, any_type=context.dialect.any_type)
        body = await read_body(headers, self.receive, site.body, partial(context.hold, site.bodies))
        context.size = len(body)
        if len(body) <= INLINE_BYTES:
            return read(decode_json(body, site.body))
        return await site.pool.run(context.source, len(body), lambda: read(decode_json(body, site.body)))

    async def body(self) -> object:
        """The body as plain data."""
        return await self.read(lambda body: body)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises SlowClientError, ClientGoneError."""
        more = True
        while more:
            try:
                async with asyncio.timeout(UPLOAD_SILENCE_S):
                    message = await self.receive()
            except TimeoutError:
                raise SlowClientError(f"No upload data arrived for {UPLOAD_SILENCE_S:g} s.") from None
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def work(self, model: str, work: Callable[[], T]) -> T:
        """The result of ``work``, whose cost is about that of the body, and which may render the chat template of a
        served model. Raises BusyError, ClientGoneError, and what it raises."""
        context = self.context
        prepared = asyncio.create_task(self.site.pool.prepare(model, context.source, context.size, work))
        if not await done_before_disconnect(prepared, self.receive):
            raise ClientGoneError
        return prepared.result()


Handler = Callable[[EndpointRequest], Awaitable[EndpointResponse | ReplyObject | dict[str, Any] | Reply]]
"""An object alone is sent as JSON with status 200."""


@dataclass(frozen=True, slots=True)
class Generating:
    """The handler of an endpoint whose replies a model makes.

    read      makes a request of a body
    complete  adds what the request only refers to
    keep      stores each whole reply, before the client has all of it
    """

    read: Callable[[object], DialectRequest]
    complete: Callable[[RequestContext, Any], Awaitable[Any]] | None = None
    keep: Keep | None = None

    async def __call__(self, asked: EndpointRequest) -> Reply:
        asked.site.runner.check_open()
        word = asked.headers.get(CACHE_HEADER)
        if word is not None and word not in CACHE_WORDS:
            raise ParameterError(f"{CACHE_HEADER} must be keep or skip.", param=CACHE_HEADER)
        asked.context.store = None if word is None else CACHE_WORDS[word]
        request = await asked.read(self.read)
        if self.complete is not None:
            request = await self.complete(asked.context, request)
        return Reply(asked.site.runner, asked.context, request, asked.receive, self.keep, asked.site.quiet_s)


@dataclass(frozen=True, slots=True)
class PathEndpoint:
    """A path, such as /v1/files/{file_id}, with its API protocol and its handlers by HTTP method.

    refusal   makes the error for any other method, given the path of the request
    """

    site: Site
    path: str
    dialect: Dialect
    handlers: Mapping[str, Handler]
    refusal: Callable[[str], TwofoldError]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival, dialect = arrival_of(scope), self.dialect
        caller, (address, _) = arrival.caller, scope.get("client") or ("", 0)
        record = ServedRequest(
            arrival.request_id,
            self.path,
            dialect.name,
            caller.tenant,
            caller.key_id,
            time.time(),
            traceparent=Headers(scope=scope).get("traceparent"),
        )
        context = RequestContext(record, dialect, caller, caller.key_id or address)
        handler = self.handlers.get(scope["method"])
        with self.site.runner.track(context, waits=isinstance(handler, Generating)):
            try:
                response = await self._response(context, handler, scope, receive)
                if response is not None:
                    await response.send(send)
            finally:
                context.leave()

    async def _response(
        self, context: RequestContext, handler: Handler | None, scope: Scope, receive: Receive
    ) -> EndpointResponse | RawResponse | Reply | None:
        """What to send; None if the client has disconnected. Quotas count POST requests: others cost little."""
        try:
            if handler is None:
                raise self.refusal(scope["path"])
            if scope["method"] == "POST":
                receive = context.enter(self.site.quotas, Headers(scope=scope), receive)
            with ignoring(unknown=self.site.tolerant) as ignored:
                response = await handler(EndpointRequest(context, scope, receive, self.site))
            if ignored.shown:
                context.omitted = ignored.shown
                log.warning("request %s: omitted: %s", context.record.request_id, ", ".join(ignored.logged))
            if isinstance(response, Reply):
                return response
            if not isinstance(response, EndpointResponse):
                response = EndpointResponse(encode(response))
            return replace(response, headers=(*response.headers, *context.headers()))
        except ClientGoneError:
            context.record.status = CLIENT_GONE
            return None
        except TwofoldError as error:
            return context.refused(error)
        except Exception as error:
            return context.refused(internal_error(context.record.request_id, error))
