"""Endpoints as ASGI applications: paths with a handler for each HTTP method, and replies of models, as JSON or as a
stream of events.

Each request gets a context, which is accounted for when it ends; each error is sent in the path's API protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import UNSET
from starlette.datastructures import Headers, QueryParams
from starlette.types import Message, Receive, Scope, Send

from twofold.api.base import Dialect, DialectRequest, GeneratedReply, ReplyHead, ShowsProgress, Streamer
from twofold.api.body import ReplyObject, encode
from twofold.api.fields import ignoring
from twofold.api.names import declared_name
from twofold.core.errors import ParameterError, SlowClientError, TwofoldError
from twofold.core.forecast import RequestProgress
from twofold.core.request import RequestOptions
from twofold.core.tasks import start_task
from twofold.engine.outputs import OutputDelta
from twofold.fleet.fleet import Fleet
from twofold.fleet.streams import StreamReader
from twofold.observe.served import ServedRequest, log_id
from twofold.server.context import CLIENT_GONE, RequestContext
from twofold.server.edge.body import MAX_DIGITS, ClientGoneError, check_json_type, decode_json, disconnected, read_body
from twofold.server.edge.keys import Caller
from twofold.server.edge.limits import KIB
from twofold.server.edge.protocol import StreamWriter
from twofold.server.edge.quotas import UNLIMITED
from twofold.server.edge.refusals import Header, RawResponse
from twofold.server.response_cache import CACHE_HEADER
from twofold.server.runner import GenerationRun, reply_size
from twofold.server.services import Services

log = logging.getLogger("twofold.serve")

CACHE_WORDS: Final = {"keep": True, "skip": False}
"""Values of CACHE_HEADER: True stores a completion although it is sampled, False does not use the cache."""
INLINE_BYTES: Final = 4 * KIB
"""Bodies of up to this size are decoded on the event loop, longer ones on a thread."""
UPLOAD_SILENCE_S: Final = 30.0
"""Maximum seconds between two pieces of an upload, which may take long as a whole."""

UNBUFFERED: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Headers of streams, so that proxies do not buffer them."""
OBJECTS: Final = 16
"""Objects of a list that are encoded in one call: vectors have up to some thousand numbers."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """A response: bytes of ``content_type``, at once or in ``pieces``."""

    body: bytes = b""
    status: int = 200
    pieces: AsyncGenerator[bytes, None] | None = None
    content_type: bytes = b"application/json"
    headers: tuple[Header, ...] = ()

    async def send(self, send: Send) -> None:
        if self.pieces is None:
            await RawResponse.of(self.status, self.body, self.headers, self.content_type).send(send)
            return
        async with aclosing(self.pieces):
            headers = [(b"content-type", self.content_type), *self.headers]
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            async for piece in self.pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@dataclass(slots=True, eq=False)
class EndpointRequest(RequestContext):
    """A request over HTTP. ``channel`` gives the messages of its client."""

    scope: Scope = field(kw_only=True)
    channel: Receive = field(kw_only=True)
    services: Services = field(kw_only=True)

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

    def enter(self) -> None:
        """Takes one request and the announced bytes of its body from its key's quota. Raises QuotaError."""
        if self.caller.quota != UNLIMITED:
            announced = self.headers.get("content-length", "0")
            size = int(announced) if announced.isdecimal() and len(announced) <= MAX_DIGITS else 0
            self.quota = self.services.quotas.enter(self.caller.id, self.caller.quota, time.monotonic(), size)

    async def receive(self) -> Message:
        """The next message of its client. Counts the bytes of the body."""
        message = await self.channel()
        self.received += len(message.get("body", b""))
        return message

    async def read(self, read: Callable[[object], T]) -> T:
        """The result of ``read`` on the decoded JSON body.

        Raises TooLargeError, SlowClientError, ClientGoneError, BusyError, FieldError for a body that is not JSON in
        UTF-8 or has another content type (which some API protocols allow), and what ``read`` raises.
        """
        services, headers, limits = self.services, self.headers, self.services.config.body
        check_json_type(headers, any_type=self.dialect.any_type)
        body = await read_body(headers, self.receive, limits, partial(self.hold, services.bodies))
        self.size = len(body)
        if len(body) <= INLINE_BYTES:
            return read(decode_json(body, limits))
        return await services.pool.run(self.source, len(body), lambda: read(decode_json(body, limits)))

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

    def lease(self, model: str | None) -> AbstractAsyncContextManager[Fleet]:
        """The served model of that name, loaded; None: the first one."""
        return self.services.registry.lease(model, RequestOptions(tenant=self.tenant))

    async def work(self, model: str, work: Callable[[], T]) -> T:
        """The result of ``work`` on the body, run on a thread; it may render the chat template of the served ``model``.

        Raises BusyError, ClientGoneError, and the errors of ``work``.
        """
        prepared = asyncio.create_task(self.services.pool.prepare(model, self.source, self.size, work))
        if not await done_before_disconnect(prepared, self.receive):
            raise ClientGoneError
        return prepared.result()


Complete: TypeAlias = Callable[[EndpointRequest, Any], Awaitable[Any]]
"""Returns the request, completed. Raises TwofoldError."""
Keep: TypeAlias = Callable[[EndpointRequest, Any, ReplyHead, GeneratedReply], Awaitable[None]]
"""Stores the body of the reply to a request."""


@dataclass(slots=True, eq=False)
class Reply(GenerationRun):
    """A request over HTTP whose reply a model generates. An error before the first byte of the reply sets its status; a
    later one is an event of the stream. Once a stream's opening events are sent, ``_writer`` sends its deltas while its
    client keeps up.

    ``complete`` and ``keep`` are those of ``Generating``.
    """

    context: EndpointRequest
    complete: tuple[Complete, ...] = ()
    keep: Keep | None = None
    _streamer: Streamer | None = None
    _begun: bool = False
    _opening: bytes = b""
    _writer: StreamWriter | None = None
    _sent_at: float = 0.0
    _progress: asyncio.Queue[RequestProgress] | None = None

    async def send(self, send: Send) -> None:
        """Runs the request and sends the reply; stops when the client disconnects."""
        context = self.context
        context.task = asyncio.create_task(self._run(send))
        try:
            if not await done_before_disconnect(context.task, context.receive):
                context.record.status = CLIENT_GONE
        finally:
            context.task = None  # a task keeps the frames of its CancelledError, which hold the context

    async def _run(self, send: Send) -> None:
        context = self.context
        try:
            for complete in self.complete:
                self.request = await complete(context, self.request)
            async with context.services.runner.open(self):
                await (self._stream(send) if self.request.stream else self._whole(send))
        except asyncio.CancelledError:
            if context.cut is None:
                raise
            await self._fail(context.cut, send)
        except TwofoldError as error:
            await self._fail(error, send)
        except Exception as error:
            await self._fail(internal_error(context.record.request_id, error), send)

    async def _whole(self, send: Send) -> None:
        context, runner = self.context, self.context.services.runner
        body = await runner.reply(self)
        if self.keep is not None:
            await self.keep(context, self.request, self.head, body)
        data = await runner.work_on_reply(self, reply_size(self), partial(json_bytes, body))
        self._begun = True
        await RawResponse.of(200, data, context.reply_headers()).send(send)

    async def _stream(self, send: Send) -> None:
        context, runner = self.context, self.context.services.runner
        streamer = await runner.work_on_reply(self, 0, partial(self.request.streamer, self.head, self.model.facts))
        self._streamer = streamer
        self._opening = streamer.open()  # before the first delta: events are numbered in this order
        self._sent_at = time.monotonic()
        watch = start_task(self._keep_alive(streamer, send), "comments of a stream")
        showing = None
        if isinstance(streamer, ShowsProgress) and any(job.options.progress for job in self.jobs):
            self._progress = asyncio.Queue()
            showing = start_task(self._show_progress(self._progress, streamer, send), "progress of a stream")
        try:
            async with aclosing(self.deltas()) as deltas:
                async for job, delta in deltas:
                    if data := streamer.take(job, delta):
                        await self._send(data, send)
                    if delta.token_ids:
                        context.delta_sent()
            await self.finish()
            if self.keep is not None:
                await self.keep(context, self.request, self.head, await runner.body(self))
            await self._send(streamer.close(self.outputs, runner.explained(self)), send, last=True)
        finally:
            watch.cancel()
            if showing is not None:
                showing.cancel()

    def reader(self) -> StreamReader:
        direct = self._send_now if len(self.jobs) == 1 and self._streamer is not None else None
        progress = None if self._progress is None else self._progress.put_nowait
        return StreamReader(direct, progress, self.context.record)

    async def _fail(self, error: TwofoldError, send: Send) -> None:
        """Ends the reply with an error."""
        response = self.context.refused(error)
        if not self._begun:
            await response.send(send)
        elif self._streamer is not None:
            await self._send(self._streamer.fail(error, self.context.record.request_id), send, last=True)

    async def _send(self, data: bytes, send: Send, *, last: bool = False) -> None:
        """Sends events of a stream; the first time, also its headers and its opening events."""
        if not self._begun:
            self._begun, data = True, self._opening + data
            kind = (b"content-type", self.context.dialect.stream_type.encode())
            headers = [kind, *UNBUFFERED, *self.context.reply_headers()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent_at = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": not last})
        self._writer = self.context.scope["state"]["writer"]

    def _send_now(self, delta: OutputDelta) -> bool:
        """Sends a delta's events without waking the request's task; False if it must wait for opening or client."""
        writer, streamer = self._writer, self._streamer
        if writer is None or streamer is None or writer.flow.write_paused:
            return False
        if data := streamer.take(0, delta):
            self._sent_at = time.monotonic()
            writer.write(data)
        if delta.token_ids:
            self.context.delta_sent()
        return True

    async def _show_progress(self, queue: asyncio.Queue[RequestProgress], streamer: ShowsProgress, send: Send) -> None:
        """Sends how far the request is, until its first delta."""
        while True:
            progress = await queue.get()
            if self.context.last_delta is None and (data := streamer.progress(progress)):
                await self._send(data, send)

    async def _keep_alive(self, streamer: Streamer, send: Send) -> None:
        quiet_s = self.context.services.config.quiet_s
        while True:
            await asyncio.sleep(max(0.0, self._sent_at + quiet_s - time.monotonic()))
            if time.monotonic() - self._sent_at >= quiet_s:
                await self._send(streamer.keep_alive, send)


Handler = Callable[[EndpointRequest], Awaitable[EndpointResponse | ReplyObject | dict[str, Any] | Reply]]
"""A returned object is sent as JSON with status 200."""


@dataclass(frozen=True, slots=True)
class Generating:
    """The handler of an endpoint whose replies a model generates.

    request   the type of its bodies, a RequestObject that is a DialectRequest
    complete  what is done with the request before it is admitted, such as adding stored objects to which it refers
    keep      stores each whole reply, before its last byte is sent
    """

    request: type[Any]
    complete: tuple[Complete, ...] = ()
    keep: Keep | None = None

    async def __call__(self, asked: EndpointRequest) -> Reply:
        word = asked.headers.get(CACHE_HEADER)
        if word is not None and word not in CACHE_WORDS:
            raise ParameterError(f"{CACHE_HEADER} must be keep or skip.", param=CACHE_HEADER)
        asked.store = None if word is None else CACHE_WORDS[word]
        request: DialectRequest = await asked.read(self.request.read)
        return Reply(asked, request, complete=self.complete, keep=self.keep)


@dataclass(frozen=True, slots=True)
class PathEndpoint:
    """A path, such as /v1/files/{file_id}, with its API protocol and its handlers by HTTP method.

    refusal   makes the error for any other method, given the path of the request
    known     makes what a log shows of a path that no route matches
    """

    services: Services
    path: str
    dialect: Dialect
    handlers: Mapping[str, Handler]
    refusal: Callable[[str], TwofoldError]
    known: Callable[[str], str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope["state"]["caller"]
        address, _ = scope.get("client") or ("", 0)
        record = ServedRequest(
            scope["state"]["request_id"],
            self.path,
            self.dialect.name,
            caller.tenant,
            caller.id,
            time.time(),
            traceparent=Headers(scope=scope).get("traceparent"),
            path=None if self.known is None else self.known(scope["path"]),
        )
        asked = EndpointRequest(
            record, self.dialect, caller, caller.id or address, scope=scope, channel=receive, services=self.services
        )
        handler = self.handlers.get(scope["method"])
        with self.services.runner.track(asked, waits=isinstance(handler, Generating)):
            response = await self._response(asked, handler)
            if response is not None:
                await response.send(send)

    async def _response(
        self, asked: EndpointRequest, handler: Handler | None
    ) -> EndpointResponse | RawResponse | Reply | None:
        """The response to send; None if the client has disconnected. Quotas count POST requests: others cost little."""
        try:
            if handler is None:
                raise self.refusal(asked.scope["path"])
            if isinstance(handler, Generating):
                self.services.runner.check_open()
            if asked.scope["method"] == "POST":
                asked.enter()
            with ignoring(unknown=self.services.config.tolerant) as ignored:
                response = await handler(asked)
            asked.notes += ignored.notes
            if ignored.shown:
                asked.omitted = ignored.shown
            if ignored.logged:
                names = ", ".join(map(declared_name, ignored.logged))
                log.warning("request %s: omitted: %s", log_id(asked.record.request_id), names)
            if isinstance(response, Reply):
                return response
            if not isinstance(response, EndpointResponse):
                response = EndpointResponse(encode(response))
            asked.record.status = response.status
            return replace(response, headers=(*response.headers, *asked.reply_headers()))
        except ClientGoneError:
            asked.record.status = CLIENT_GONE
            return None
        except TwofoldError as error:
            return asked.refused(error)
        except Exception as error:
            return asked.refused(internal_error(asked.record.request_id, error))


def internal_error(request_id: str, error: Exception) -> TwofoldError:
    """Logs an unexpected error; returns the error for the client, which contains nothing of it."""
    log.error("request %s: internal error: %s", log_id(request_id), type(error).__name__, exc_info=error)
    return TwofoldError("Internal server error.", hint="The server log has the cause under the request id.")


def json_bytes(body: ReplyObject | GeneratedReply, piece: int = OBJECTS) -> bytes:
    """An object in JSON. Lists are encoded ``piece`` values at a time, because encoding holds the interpreter lock."""
    parts = []
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if value is not UNSET:
            data = _json_list(value, piece) if isinstance(value, list) else encode(value)
            parts.append(b'"%b":%b' % (name.encode(), data))
    return b"{" + b",".join(parts) + b"}"


def _json_list(values: Sequence[object], piece: int) -> bytes:
    pieces = (encode(values[start : start + piece])[1:-1] for start in range(0, len(values), piece))
    return b"[" + b",".join(pieces) + b"]"


async def done_before_disconnect(work: asyncio.Task[T], receive: Receive) -> bool:
    """Waits for ``work``, and cancels it if the client disconnects. Returns whether ``work`` was done before that."""
    gone = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        done = work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    finally:
        gone.cancel()
        work.cancel()
    return done
