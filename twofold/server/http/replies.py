"""Answers over HTTP: JSON at once, or a stream as it comes; and errors in the caller's dialect."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from functools import partial
from typing import Final

from twofold.api.base import DialectRequest, Streamer
from twofold.core.errors import TwofoldError
from twofold.server.edge.refusals import Refusals
from twofold.server.exchange import CLIENT_GONE, RequestContext
from twofold.server.http.asgi import JSON, STREAMED, Receive, Send, done_before_leaving, json_bytes, send_body
from twofold.server.runner import RequestRun, RequestRunner, reply_size

QUIET_S: Final = 15.0
"""A stream that says nothing for so long gets an event that means nothing, so that nobody closes it."""

log = logging.getLogger("twofold.serve")


def internal_error(exchange: RequestContext, error: Exception) -> TwofoldError:
    """What a client may know of a fault of ours: nothing but that there was one."""
    log.error("request %s: internal error: %s", exchange.request_id, type(error).__name__, exc_info=error)
    return TwofoldError("Internal server error.", hint="The server log has the cause under the request id.")


class Replies:
    """Answers generating requests. ``quiet_s`` is how long a stream may say nothing."""

    def __init__(self, runner: RequestRunner, refusals: Refusals, *, quiet_s: float = QUIET_S) -> None:
        self._runner = runner
        self._refusals = refusals
        self._quiet_s = quiet_s

    async def answer(self, exchange: RequestContext, request: DialectRequest, receive: Receive, send: Send) -> None:
        """Answers a request; ends when the client goes away."""
        work = asyncio.create_task(self._work(exchange, request, send))
        exchange.task = work
        try:
            if not await done_before_leaving(work, receive):
                exchange.status = CLIENT_GONE
        finally:
            exchange.task = None  # a task keeps the frames of its CancelledError, which hold the exchange

    async def _work(self, exchange: RequestContext, request: DialectRequest, send: Send) -> None:
        reply = _Reply(exchange, request, send, self._refusals, self._quiet_s)
        try:
            async with self._runner.open(exchange, request) as run:
                if request.stream:
                    await reply.stream(run, self._runner)
                else:
                    await reply.whole(run, self._runner)
        except asyncio.CancelledError:
            if exchange.cut is None:
                raise
            await reply.fail(exchange.cut)
        except TwofoldError as error:
            await reply.fail(error)
        except Exception as error:
            await reply.fail(internal_error(exchange, error))


class _Reply:
    """One reply. Before its first byte an error is a status; afterwards it is an event."""

    def __init__(
        self, exchange: RequestContext, request: DialectRequest, send: Send, refusals: Refusals, quiet_s: float
    ) -> None:
        self._refusals = refusals
        self._exchange = exchange
        self._request = request
        self._send = send
        self._quiet_s = quiet_s
        self._streamer: Streamer | None = None
        self._begun = False
        self._opening = b""
        self._spoken = 0.0

    async def whole(self, run: RequestRun, runner: RequestRunner) -> None:
        await run.whole()
        body = await runner.body(run)
        extra = runner.explained(run)
        if extra is not None:
            body["twofold"] = extra
        if self._exchange.keep is not None:
            await self._exchange.keep(self._exchange, self._request, run.head, body)
        data = await runner.beside(run, reply_size(run), partial(json_bytes, body))
        self._begun = True
        await send_body(self._send, 200, data, (JSON, *self._exchange.headers()))

    async def stream(self, run: RequestRun, runner: RequestRunner) -> None:
        make = partial(self._request.streamer, run.head, run.facts)
        self._streamer = streamer = await runner.beside(run, 0, make)
        self._opening = streamer.open()  # before anything is taken: events are numbered in this order
        self._spoken = time.monotonic()
        watch = asyncio.create_task(self._keep_alive(streamer))
        try:
            async with aclosing(run.deltas()) as deltas:
                async for job, delta in deltas:
                    told = streamer.take(job, delta)
                    if told:
                        await self._tell(told)
                    if delta.token_ids:
                        self._exchange.told()
            if self._exchange.keep is not None:
                body = await runner.body(run)
                await self._exchange.keep(self._exchange, self._request, run.head, body)
            end = streamer.close(run.outputs, runner.explained(run))
            await self._tell(end, last=True)
        finally:
            watch.cancel()

    async def fail(self, error: TwofoldError) -> None:
        """Ends the reply with an error."""
        self._exchange.fail(error)
        if not self._begun:
            exchange = self._exchange
            answer = self._refusals.answer(error, exchange.endpoint, exchange.request_id, exchange.headers())
            await answer.send(self._send)
        elif self._streamer is not None:
            await self._tell(self._streamer.fail(error, self._exchange.request_id), last=True)

    async def _tell(self, data: bytes, *, last: bool = False) -> None:
        """Tells events of a stream; the first time behind all that stands before the first token."""
        if not self._begun:
            self._begun, data = True, self._opening + data
            kind = (b"content-type", self._exchange.dialect.stream_type.encode())
            headers = [kind, *STREAMED, *self._exchange.headers()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._spoken = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _keep_alive(self, streamer: Streamer) -> None:
        """Speaks up when nothing was said for long."""
        while True:
            await asyncio.sleep(max(0.0, self._spoken + self._quiet_s - time.monotonic()))
            if time.monotonic() - self._spoken >= self._quiet_s:
                await self._tell(streamer.keep_alive)
