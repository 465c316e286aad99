"""A node: replicas of a model on this machine, for a hub that is elsewhere.

Each replica has a connection of its own. The node sends its hello, waits until the hub loads the model, starts a worker
process with its own file, and passes frames on in both directions. When the connection ends, so does the process: its
requests go on elsewhere, and a worker without a hub is of no use. Then the node joins again.

A node that shall end asks the hub to let it leave, and serves until other replicas have its requests.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from twofold.core.errors import BusyError, ParameterError, TwofoldError, WorkerError
from twofold.fleet.certificates import HOST
from twofold.fleet.link import END_S, end_worker, keep_alive, out_of_memory_kills, start_worker
from twofold.fleet.messages import (
    LENGTH,
    MAX_FRAME_BYTES,
    Codec,
    FromHub,
    Hello,
    JoinRefused,
    Leave,
    LoadModel,
    Ready,
    Unloadable,
    WorkerCrashed,
)
from twofold.fleet.reading import file_digest
from twofold.fleet.routing.router import Role
from twofold.host.versions import NUMERICS, twofold_version

log = logging.getLogger("twofold.node")
MAX_FIRST_BYTES: Final = 1 << 20
"""Maximum length of the hub's first frame, which has the options of the engine."""
MIN_PAUSE_S: Final = 0.25
MAX_PAUSE_S: Final = 5.0
"""Pauses between two attempts to join; each is twice as long as the one before."""
REFUSED: Final = b"\x92\xa7refused"
"""How the payload of JoinRefused begins: an array of two, the first of which is the tag."""
DRAINED: Final = b"\x91\xa7drained"
"""The payload of Drained."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What a node offers, and to which hub.

    model      the name under which the hub serves it; ``path`` is its file here
    context    of TLS; None on loopback
    name       of the node, for the hub's log
    options    ``EngineKeywords`` that this machine sets itself, such as threads
    say        prints a sentence to the user
    """

    host: str
    port: int
    model: str
    path: Path
    name: str
    context: ssl.SSLContext | None = None
    replicas: int = 1
    role: Role = "both"
    options: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = log.info


async def serve_hub(settings: NodeSettings, leaving: asyncio.Event | None = None) -> None:
    """Joins the hub, again and again, until it refuses the node, or the model cannot be loaded. Raises that error.
    Returns when the hub has drained the node, which ``leaving`` asks for."""
    leaving = leaving or asyncio.Event()
    digest = await asyncio.to_thread(file_digest, settings.path)
    hello = Hello(twofold_version(), NUMERICS, settings.name, settings.model, digest, settings.role)
    slots = [asyncio.create_task(_slot(settings, hello, leaving)) for _ in range(settings.replicas)]
    try:
        await asyncio.gather(*slots)
    finally:
        for slot in slots:
            if not slot.cancelling():  # a second time would interrupt the end of its process
                slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)


async def serve_until_terminated(settings: NodeSettings) -> None:
    """Serves the hub until SIGTERM, which makes the node leave; a second one ends the process at once."""
    leaving, loop = asyncio.Event(), asyncio.get_running_loop()

    def leave() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        settings.say("Leaving: other replicas take over the requests")
        leaving.set()

    loop.add_signal_handler(signal.SIGTERM, leave)
    await serve_hub(settings, leaving)


async def _slot(settings: NodeSettings, hello: Hello, leaving: asyncio.Event) -> None:
    """One replica, with one connection after the other."""
    pause, hub = MIN_PAUSE_S, f"{settings.host}:{settings.port}"
    while not leaving.is_set():
        connection = _Connection(settings, hello, leaving)
        try:
            if await connection.serve():
                settings.say(f"The hub has drained a replica of {settings.model}")
                return
            log.warning("the connection to %s ended", hub)
        except BusyError as error:
            log.warning("the hub is not ready: %s", error)
        except (OSError, EOFError) as error:
            log.warning("the connection to %s failed: %s", hub, error or "it ended")
        if connection.loaded:
            pause = MIN_PAUSE_S
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await leaving.wait()
        pause = min(2 * pause, MAX_PAUSE_S)


class _Connection:
    """One connection to the hub and the worker process behind it. ``loaded``: the worker has loaded the model."""

    def __init__(self, settings: NodeSettings, hello: Hello, leaving: asyncio.Event) -> None:
        self.loaded = False
        self._leaving = leaving
        self._settings = settings
        self._hello = hello
        self._from_hub, self._from_worker = Codec(FromHub), Codec(Ready | Unloadable)

    async def serve(self) -> bool:
        """Joins and serves until the connection or the process ends; returns whether the hub has drained it. Raises the
        hub's error if it refuses the node, the worker's if it cannot load the model, OSError and EOFError."""
        settings = self._settings
        name = None if settings.context is None else HOST
        try:
            reader, writer = await self._unless_leaving(
                asyncio.open_connection(settings.host, settings.port, ssl=settings.context, server_hostname=name)
            )
        except ssl.SSLCertVerificationError as error:
            raise _wrong_certificate(settings, error) from error
        try:
            keep_alive(writer.get_extra_info("socket"))
            writer.write(self._from_hub.frame(self._hello))
            load = await self._unless_leaving(self._first(reader))
            options = {**load.options, **settings.options}
            first = LoadModel(str(settings.path), options, load.shares_clock, load.keys)
            return await self._relay(self._from_hub.frame(first), reader, writer)
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):  # the hub says what it does not like
                raise _wrong_certificate(settings, error) from error
            raise
        finally:
            writer.transport.abort()

    async def _unless_leaving(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that comes before a replica has requests. Raises EOFError if the node shall leave."""
        tasks = asyncio.create_task(work), asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise EOFError("the node leaves")
            return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _first(self, reader: asyncio.StreamReader) -> LoadModel:
        """The hub's first message, if it takes the node."""
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > MAX_FIRST_BYTES:
            raise WorkerError(f"The hub sent a frame of {length} bytes.", hint="Is it a Twofold hub?")
        try:
            first = self._from_hub.message(await reader.readexactly(length))
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise WorkerError("The hub sent something else than a message.", hint="Is it a Twofold hub?") from error
        if isinstance(first, JoinRefused):
            raise first.error
        assert isinstance(first, LoadModel)
        return first

    async def _relay(self, load: bytearray, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Runs a worker for the connection, until one of them ends; returns whether the hub has drained it. Raises the
        error with which either of them ends."""
        ours, theirs = socket.socketpair()
        out_of_memory = out_of_memory_kills()
        with theirs:
            process = await start_worker(theirs.fileno())
        from_worker, to_worker = await asyncio.open_unix_connection(sock=ours)
        to_worker.write(load)
        ways = [
            asyncio.create_task(self._pass_requests(reader, to_worker)),
            asyncio.create_task(self._pass_outputs(from_worker, writer)),
            asyncio.create_task(self._ask_to_leave(writer)),
        ]
        try:
            await asyncio.wait(ways[:2], return_when=asyncio.FIRST_COMPLETED)
            if ways[1].done() and (crash := await _crash(process, out_of_memory)) is not None:
                writer.write(self._from_hub.frame(crash))
            with suppress(OSError):
                writer.close()
                async with asyncio.timeout(END_S):
                    await writer.wait_closed()  # the worker's last message is why it ends
        finally:
            for way in ways:
                way.cancel()
            results = await asyncio.gather(*ways, return_exceptions=True)
            to_worker.transport.abort()
            await asyncio.shield(asyncio.ensure_future(end_worker(process, END_S)))
        for result in results:
            if isinstance(result, TwofoldError):
                raise result
        return results[0] is True

    async def _ask_to_leave(self, hub: asyncio.StreamWriter) -> None:
        await self._leaving.wait()
        hub.write(self._from_hub.frame(Leave()))

    async def _pass_requests(self, hub: asyncio.StreamReader, worker: asyncio.StreamWriter) -> bool:
        """Passes the hub's frames on; returns whether it has drained the node. Raises its error if it refuses what the
        worker has loaded."""
        with suppress(OSError, EOFError):
            while True:
                frame = await _frame(hub)
                if frame.startswith(REFUSED, LENGTH.size):
                    refused: JoinRefused = self._from_hub.message(memoryview(frame)[LENGTH.size :])
                    raise refused.error
                if len(frame) == LENGTH.size + len(DRAINED) and frame.endswith(DRAINED):
                    return True
                worker.write(frame)
                await worker.drain()
        return False

    async def _pass_outputs(self, worker: asyncio.StreamReader, hub: asyncio.StreamWriter) -> None:
        """Passes the worker's frames on, each as a whole; a hub that does not keep up stops the reading. Raises the
        worker's error if it cannot load the model."""
        with suppress(OSError, EOFError):
            while True:
                frame = await _frame(worker)
                hub.write(frame)
                await hub.drain()
                if not self.loaded:
                    self._note_load(memoryview(frame)[LENGTH.size :])

    def _note_load(self, payload: memoryview) -> None:
        """Reads what a worker says until it has loaded the model: beats, and then Ready or Unloadable."""
        with suppress(msgspec.ValidationError):
            message = self._from_worker.message(payload)
            if isinstance(message, Unloadable):
                raise message.error
            self.loaded = True
            self._settings.say(f"Ready: a replica of {self._settings.model}")


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame, with its length. Raises EOFError at the end, and for an invalid length."""
    head = await reader.readexactly(LENGTH.size)
    (length,) = LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise EOFError(f"a frame of {length} bytes")
    return head + await reader.readexactly(length)


async def _crash(process: Process, out_of_memory: int | None) -> WorkerCrashed | None:
    """How a process ended that closed its socket; None if it was killed from outside."""
    status = await end_worker(process, END_S)
    if status == -signal.SIGKILL and out_of_memory_kills() == out_of_memory:
        return None
    return WorkerCrashed(f"signal {-status}" if status < 0 else f"exit status {status}")


def _wrong_certificate(settings: NodeSettings, error: ssl.SSLError) -> ParameterError:
    return ParameterError(
        f"{settings.host}:{settings.port} and this node have no certificates of one fleet: {error.reason or error}.",
        param="fleet_certs",
        hint="Copy ca.pem and node.pem from the folder that `twofold fleet init` wrote.",
    )
