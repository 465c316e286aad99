"""A worker process and the connection to it."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import msgspec

from twofold.core.errors import ResourceError
from twofold.server.workers.messages import Codec, FromWorker, ToWorker, Unframer

ROOT: Final = Path(__file__).parents[3]
"""The folder that contains the package."""
END_S: Final = 2.0
"""Seconds that a process has to end after its socket was closed."""


class WorkerLink(asyncio.Protocol):
    """A worker process and the event loop's connection to it, over a socketpair. The caller of ``open`` closes it.

    The process ends when its socket is closed. ``on_message`` is called with each message until then.
    """

    def __init__(self, on_message: Callable[[FromWorker], None]) -> None:
        self._on_message = on_message
        self._codec = Codec(FromWorker)
        self._unframer = Unframer()
        self._transport: asyncio.Transport | None = None
        self._process: Process | None = None
        self.ended = asyncio.Event()

    @classmethod
    async def open(cls, on_message: Callable[[FromWorker], None]) -> WorkerLink:
        """Starts a worker. Raises ResourceError if that fails."""
        link = cls(on_message)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                link._process = await _start(theirs.fileno())
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        except BaseException:
            ours.close()
            if link._process is not None:
                await link.close()
            raise
        return link

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        """Sends a message; does nothing if the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._codec.frame(message))

    def kill(self) -> None:
        """Kills the process."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def close(self, end_s: float = END_S) -> int:
        """Closes the connection, waits until the process ends, for ``end_s`` seconds at most, and returns its exit
        status."""
        assert self._process is not None
        if self._transport is not None:
            self._transport.abort()
        try:
            async with asyncio.timeout(end_s):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another class

    def data_received(self, data: bytes) -> None:
        try:
            messages = [self._codec.message(payload) for payload in self._unframer.feed(data)]
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError):
            self.kill()  # these bytes are not from a working worker
            if self._transport is not None:
                self._transport.abort()
            return
        for message in messages:
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the exit status says more
        self.ended.set()


async def _start(descriptor: int) -> Process:
    """Starts the process; it imports modules from the current folder only if the package itself is there."""
    here = Path.cwd() == ROOT
    command = [sys.executable, *([] if here else ["-P"]), "-m", "twofold.server.workers", str(descriptor)]
    try:
        return await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, pass_fds=(descriptor,))
    except OSError as error:
        raise ResourceError(
            f"The process for a model could not be started: {error.strerror}.",
            hint="Each loaded model runs in its own process.",
        ) from error
