"""Endpoints as ASGI applications: those that generate, and those that answer at once.

Each request becomes an exchange, which is told to the observers when it has ended; each error becomes the error of the
path's dialect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import orjson
from starlette.datastructures import Headers, QueryParams

from twofold.api.base import Dialect, DialectRequest
from twofold.api.fields import leaving_out
from twofold.core.errors import ParameterError, SlowClientError, TwofoldError
from twofold.server.edge.body import MAX_DIGITS, ClientGoneError, check_json_type, decode_json, read_body
from twofold.server.edge.limits import KIB, BodyLimits
from twofold.server.edge.middleware import arrival_of
from twofold.server.edge.quotas import Quotas
from twofold.server.edge.refusals import Header, Refusals
from twofold.server.exchange import CLIENT_GONE, Keep, RequestContext
from twofold.server.http.asgi import JSON, Message, Receive, Scope, Send, done_before_leaving, send_body
from twofold.server.http.replies import Replies, internal_error
from twofold.server.pool import ByteBudget, WorkPool
from twofold.server.response_cache.cache import CACHE_HEADER
from twofold.server.runner import RequestRunner

log = logging.getLogger("twofold.serve")

REPLAY_WORDS: Final = {"keep": True, "skip": False}
INLINE_BYTES: Final = 4 * KIB
"""Bodies up to so many bytes are read at once, longer ones beside the event loop."""
UPLOAD_SILENCE_S: Final = 30.0
"""An upload may take long, but not between two of its pieces."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Site:
    """What all endpoints of a server share. ``tolerant``: unknown fields are left out; else they are errors."""

    runner: RequestRunner
    replies: Replies
    refusals: Refusals
    quotas: Quotas
    body: BodyLimits
    bodies: ByteBudget
    pool: WorkPool
    tolerant: bool = False

    async def read(
        self, exchange: RequestContext, headers: Headers, receive: Receive, read: Callable[[object], T]
    ) -> T:
        """What ``read`` makes of the JSON body, which may be called something else where the dialect allows it.

        Raises TooLargeError, SlowClientError, ClientGoneError, BusyError, FieldError for what is not JSON in UTF-8, and
        what ``read`` raises.
        """
        check_json_type(headers, any_type=exchange.dialect.any_type)
        body = await read_body(headers, receive, self.body, partial(exchange.hold, self.bodies))
        exchange.size = len(body)
        if len(body) <= INLINE_BYTES:
            return read(decode_json(body, self.body))
        return await self.pool.run(exchange.source, len(body), lambda: read(decode_json(body, self.body)))


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """What an endpoint gives: data for JSON, or ready bytes with their type, at once or in ``pieces``."""

    data: Any = None
    body: bytes | None = None
    pieces: AsyncGenerator[bytes, None] | None = None
    content_type: bytes = b"application/json"
    status: int = 200
    headers: Iterable[Header] = ()


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """A request to an endpoint that answers at once."""

    exchange: RequestContext
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
        return self.exchange.caller.tenant

    async def read(self, read: Callable[[object], T]) -> T:
        """What ``read`` makes of the body; see ``Site.read``."""
        return await self.site.read(self.exchange, self.headers, self.receive, read)

    async def body(self) -> object:
        """The body as it is in JSON."""
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
        """What ``work`` gives, which takes about as long as the body is, and may render the chat template of a served
        model. Raises BusyError, ClientGoneError, and what it raises."""
        prepared = asyncio.create_task(self.site.pool.prepare(model, self.exchange.source, self.exchange.size, work))
        if not await done_before_leaving(prepared, self.receive):
            raise ClientGoneError
        return prepared.result()


Handler = Callable[[EndpointRequest], Awaitable[EndpointResponse | dict[str, Any]]]
"""An object alone is sent as JSON with status 200."""


@dataclass(frozen=True, slots=True)
class Generating:
    """What an endpoint that generates takes.

    read      makes a request of a body
    complete  adds what the request only refers to
    keep      gets every reply that is whole, before the client has all of it
    """

    read: Callable[[object], DialectRequest]
    complete: Callable[[RequestContext, Any], Awaitable[Any]] | None = None
    keep: Keep | None = None


class GeneratingEndpoint:
    """POST of a request that is answered by a model."""

    def __init__(self, site: Site, dialect: Dialect, path: str, generating: Generating) -> None:
        self._site = site
        self._dialect = dialect
        self._path = path
        self._generating = generating

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope, self._dialect, self._path)
        headers = Headers(scope=scope)
        with self._site.runner.track(exchange):
            try:
                request = None
                async with _refusing(self._site, exchange, send):
                    with noting(self._site, exchange):
                        request = await self._read(exchange, headers, receive)
                if request is not None:
                    exchange.keep = self._generating.keep
                    await self._site.replies.answer(exchange, request, receive, send)
            finally:
                exchange.leave()

    async def _read(self, exchange: RequestContext, headers: Headers, receive: Receive) -> DialectRequest:
        self._site.runner.check_open()
        exchange.replay = asked_replay(headers.get(CACHE_HEADER))
        counted = entered(exchange, self._site.quotas, headers, receive)
        request = await self._site.read(exchange, headers, counted, self._generating.read)
        if self._generating.complete is not None:
            request = await self._generating.complete(exchange, request)
        return request


class PlainEndpoint:
    """What answers at once, for one HTTP method or several. Quotas count what is posted: the rest costs little."""

    def __init__(self, site: Site, dialect: Dialect, path: str, handler: Handler) -> None:
        self._site = site
        self._dialect = dialect
        self._path = path
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope, self._dialect, self._path)
        with self._site.runner.track(exchange, waits=False):
            try:
                answer = None
                async with _refusing(self._site, exchange, send):
                    if scope["method"] == "POST":
                        receive = entered(exchange, self._site.quotas, Headers(scope=scope), receive)
                    with noting(self._site, exchange):
                        answer = await self._handler(EndpointRequest(exchange, scope, receive, self._site))
                if answer is not None:
                    answer = EndpointResponse(answer) if isinstance(answer, dict) else answer
                    exchange.status = answer.status
                    await send_answer(send, replace(answer, headers=(*answer.headers, *exchange.headers())))
            finally:
                exchange.leave()


def entered(exchange: RequestContext, quotas: Quotas, headers: Headers, receive: Receive) -> Receive:
    """Takes a request's share of its key's quota; what receives its body, and counts it. Raises QuotaError."""
    announced = headers.get("content-length", "0")
    exchange.enter(quotas, int(announced) if announced.isdecimal() and len(announced) <= MAX_DIGITS else 0)

    async def counting() -> Message:
        message = await receive()
        exchange.received += len(message.get("body", b""))
        return message

    return counting


@contextmanager
def noting(site: Site, exchange: RequestContext) -> Iterator[None]:
    """Records which parts of a request are omitted while it is read, for its reply and the log."""
    with leaving_out(unknown=site.tolerant) as left_out:
        yield
    if left_out.told:
        exchange.left_out = left_out.told
        log.warning("request %s: omitted: %s", exchange.request_id, ", ".join(left_out.logged))


@asynccontextmanager
async def _refusing(site: Site, exchange: RequestContext, send: Send) -> AsyncIterator[None]:
    """Answers with the error that ends what is done meanwhile; a client that has gone gets none."""
    try:
        yield
    except ClientGoneError:
        exchange.status = CLIENT_GONE
    except TwofoldError as error:
        await refuse(site, exchange, error, send)
    except Exception as error:
        await refuse(site, exchange, internal_error(exchange, error), send)


def asked_replay(value: str | None) -> bool | None:
    """What a request says of kept answers: keep one although it is sampled, or skip them; None where it says nothing.

    Raises ParameterError for another word.
    """
    if value is None:
        return None
    if value not in REPLAY_WORDS:
        raise ParameterError(f"{CACHE_HEADER} must be keep or skip.", param=CACHE_HEADER)
    return REPLAY_WORDS[value]


def exchange_of(scope: Scope, dialect: Dialect, path: str) -> RequestContext:
    """The exchange that a request begins."""
    arrival = arrival_of(scope)
    traceparent = Headers(scope=scope).get("traceparent")
    address, _ = scope.get("client") or ("", 0)
    source = arrival.caller.key_id or address
    return RequestContext(arrival.request_id, path, dialect, arrival.caller, traceparent=traceparent, source=source)


async def refuse(site: Site, exchange: RequestContext, error: TwofoldError, send: Send) -> None:
    """Answers with an error."""
    exchange.fail(error)
    answer = site.refusals.answer(error, exchange.endpoint, exchange.request_id, exchange.headers())
    await answer.send(send)


async def send_answer(send: Send, answer: EndpointResponse) -> None:
    if answer.pieces is not None:
        await _send_pieces(send, answer, answer.pieces)
    elif answer.body is None:
        await send_body(send, answer.status, orjson.dumps(answer.data), (JSON, *answer.headers))
    else:
        kind = (b"content-type", answer.content_type)
        await send_body(send, answer.status, answer.body, (kind, *answer.headers))


async def _send_pieces(send: Send, answer: EndpointResponse, pieces: AsyncGenerator[bytes, None]) -> None:
    headers = [(b"content-type", answer.content_type), *answer.headers]
    async with aclosing(pieces):
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
