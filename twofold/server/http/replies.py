"""Replies of models over HTTP: JSON at once, or a stream of events; and errors in the caller's API protocol."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import UNSET
from starlette.types import Receive, Send

from twofold.api.base import DialectRequest, GeneratedReply, ReplyHead, Streamer
from twofold.api.body import ReplyObject, encode
from twofold.core.errors import TwofoldError
from twofold.server.context import CLIENT_GONE, RequestContext
from twofold.server.edge.refusals import RawResponse
from twofold.server.runner import RequestRun, RequestRunner, reply_size

QUIET_S: Final = 15.0
"""A stream that is silent for so long gets a keep-alive event, so that no proxy closes it."""
UNBUFFERED: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Headers of streams: no proxy shall buffer them."""
OBJECTS: Final = 16
"""Objects of a list that are encoded in one call: vectors have up to some thousand numbers."""

Keep: TypeAlias = Callable[[RequestContext, Any, ReplyHead, GeneratedReply], Awaitable[None]]
"""Stores the body of the reply to a request."""
T = TypeVar("T")
log = logging.getLogger("twofold.serve")


def internal_error(request_id: str, error: Exception) -> TwofoldError:
    """What a client may know of a fault of the server: only that there was one."""
    log.error("request %s: internal error: %s", request_id, type(error).__name__, exc_info=error)
    return TwofoldError("Internal server error.", hint="The server log has the cause under the request id.")


def json_bytes(body: ReplyObject | GeneratedReply, piece: int = OBJECTS) -> bytes:
    """An object in JSON, its lists ``piece`` values at a time: encoding holds the interpreter lock."""
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
    """Waits for ``work`` and cancels it when the client disconnects; whether it was done before."""
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        done = work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    finally:
        gone.cancel()
        work.cancel()
    return done


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(slots=True)
class Reply:
    """The reply to one request. Before its first byte an error is a status; afterwards it is an event.

    keep     stores the body before the client has all of it
    quiet_s  seconds of silence after which a stream gets a keep-alive event
    """

    runner: RequestRunner
    context: RequestContext
    request: DialectRequest
    receive: Receive
    keep: Keep | None = None
    quiet_s: float = QUIET_S
    _streamer: Streamer | None = None
    _begun: bool = False
    _opening: bytes = b""
    _sent_at: float = 0.0

    async def send(self, send: Send) -> None:
        """Runs the request and sends the reply; stops when the client disconnects."""
        context = self.context
        context.task = asyncio.create_task(self._run(send))
        try:
            if not await done_before_disconnect(context.task, self.receive):
                context.record.status = CLIENT_GONE
        finally:
            context.task = None  # a task keeps the frames of its CancelledError, which hold the context

    async def _run(self, send: Send) -> None:
        context = self.context
        try:
            async with self.runner.open(context, self.request) as run:
                await (self._stream(run, send) if self.request.stream else self._whole(run, send))
        except asyncio.CancelledError:
            if context.cut is None:
                raise
            await self._fail(context.cut, send)
        except TwofoldError as error:
            await self._fail(error, send)
        except Exception as error:
            await self._fail(internal_error(context.record.request_id, error), send)

    async def _whole(self, run: RequestRun, send: Send) -> None:
        body = await self.runner.reply(run)
        if self.keep is not None:
            await self.keep(self.context, self.request, run.head, body)
        data = await self.runner.beside(run, reply_size(run), partial(json_bytes, body))
        self._begun = True
        await RawResponse.of(200, data, self.context.headers()).send(send)

    async def _stream(self, run: RequestRun, send: Send) -> None:
        streamer = await self.runner.beside(run, 0, partial(self.request.streamer, run.head, run.model.facts))
        self._streamer = streamer
        self._opening = streamer.open()  # before the first delta: events are numbered in this order
        self._sent_at = time.monotonic()
        watch = asyncio.create_task(self._keep_alive(streamer, send))
        try:
            async with aclosing(run.deltas()) as deltas:
                async for job, delta in deltas:
                    if data := streamer.take(job, delta):
                        await self._send(data, send)
                    if delta.token_ids:
                        self.context.delta_sent()
            await run.finish()
            if self.keep is not None:
                await self.keep(self.context, self.request, run.head, await self.runner.body(run))
            await self._send(streamer.close(run.outputs, self.runner.explained(run)), send, last=True)
        finally:
            watch.cancel()

    async def _fail(self, error: TwofoldError, send: Send) -> None:
        """Ends the reply with an error."""
        response = self.context.refused(error)
        if not self._begun:
            await response.send(send)
        elif self._streamer is not None:
            await self._send(self._streamer.fail(error, self.context.record.request_id), send, last=True)

    async def _send(self, data: bytes, send: Send, *, last: bool = False) -> None:
        """Sends events of a stream; the first time also its headers, and the events before the first token."""
        if not self._begun:
            self._begun, data = True, self._opening + data
            kind = (b"content-type", self.context.dialect.stream_type.encode())
            headers = [kind, *UNBUFFERED, *self.context.headers()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent_at = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _keep_alive(self, streamer: Streamer, send: Send) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._sent_at + self.quiet_s - time.monotonic()))
            if time.monotonic() - self._sent_at >= self.quiet_s:
                await self._send(streamer.keep_alive, send)
