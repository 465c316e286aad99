"""A node: replicas of a model on this machine, for one or several hubs that are elsewhere.

Each replica has a connection to each hub. The node sends its hello, waits until the hub loads the model, starts a
worker process with its own file unless it runs for another hub, and passes frames on in both directions. When the
connection ends, the worker ends the hub's requests, which go on elsewhere; the worker ends with its last hub. Then the
node joins again.

A node that shall end asks its hubs to let it leave, and serves until other replicas have their requests.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from twofold.core.errors import BusyError, ParameterError, TwofoldError, WorkerError
from twofold.engine.config import EngineOptions
from twofold.fleet.certificates import HOST
from twofold.fleet.joining import FleetAddress
from twofold.fleet.link import END_S, keep_alive
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
)
from twofold.fleet.node_worker import NodeWorker, RunningWorker
from twofold.fleet.routing.router import Role
from twofold.formats.identity import file_digest, model_parts
from twofold.host.versions import NUMERICS, twofold_version

log = logging.getLogger("twofold.node")
MAX_FIRST_BYTES: Final = 1 << 20
"""Maximum length of the hub's first frame, which has the options of the engine."""
REFUSED_PAUSE_S: Final = 30.0
"""Pause before a hub that refused the node is asked again, while others take it."""
MIN_PAUSE_S: Final = 0.25
MAX_PAUSE_S: Final = 5.0
"""Pauses between two attempts to join; each is twice as long as the one before."""
CLOSED: Final = "the hub closed it; do both have certificates of the fleet, or neither?"
REFUSED: Final = b"\x92\xa7refused"
"""How the payload of JoinRefused begins: an array of two, the first of which is the tag."""
DRAINED: Final = b"\x91\xa7drained"
"""The payload of Drained."""
HUB_OPTIONS: Final = frozenset(
    {"max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting_seqs", "block_size", "kv_cache_dtype"}
    | {"kv_cache_memory_bytes", "swap_space_bytes", "enable_prefix_caching", "token_budget", "tpot_target_ms"}
    | {"itl_limit_ms", "overlap", "seed", "speculative_config", "stop_loops", "backend", "threads"}
)
"""Options of the engine that a hub sets: numbers and choices, which mean the same on every machine."""
UNUSED_OPTIONS: Final = frozenset({"chat_template", "kv_store_bytes"})
"""Options that only a server's own process uses, or only with another one."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What a node offers, and to which hubs.

    model      the name under which the hub serves it; ``path`` is its file here
    context    of TLS; None on loopback
    name       of the node, for the hub's log
    options    ``EngineKeywords`` that this machine sets itself, such as threads
    draft      its file of the draft model, for hubs that use one
    say        prints a sentence to the user
    """

    hubs: Sequence[FleetAddress]
    model: str
    path: Path
    name: str
    context: ssl.SSLContext | None = None
    replicas: int = 1
    role: Role = "both"
    options: Mapping[str, Any] = field(default_factory=dict)
    draft: Path | None = None
    say: Callable[[str], None] = log.info


async def serve_hubs(settings: NodeSettings, leaving: asyncio.Event | None = None) -> None:
    """Joins the hubs, again and again, until all of them refuse the node, or the model cannot be loaded. Raises that
    error. Returns when all hubs have drained the node, which ``leaving`` asks for."""
    leaving = leaving or asyncio.Event()
    digest = await asyncio.to_thread(file_digest, model_parts(settings.path))
    hello = Hello(twofold_version(), NUMERICS, settings.name, settings.model, digest, settings.role)
    await _together([_Replica(settings, hello, leaving).serve() for _ in range(settings.replicas)])


async def _together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs all of these, until the first error, which ends the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():  # a second time would interrupt the end of its process
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_until_terminated(settings: NodeSettings) -> None:
    """Serves the hubs until SIGTERM, which makes the node leave; a second one ends the process at once."""
    leaving, loop = asyncio.Event(), asyncio.get_running_loop()

    def leave() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        settings.say("Leaving: other replicas take over the requests")
        leaving.set()

    loop.add_signal_handler(signal.SIGTERM, leave)
    await serve_hubs(settings, leaving)


class _Replica:
    """One replica and its hubs: each of them has one connection after the other, and all share the worker process.

    A hub that refuses the node is asked again after REFUSED_PAUSE_S, for it may be started with other options; the
    error is raised when no other hub is left.
    """

    def __init__(self, settings: NodeSettings, hello: Hello, leaving: asyncio.Event) -> None:
        self._settings = settings
        self._hello = hello
        self._leaving = leaving
        self._worker = NodeWorker()
        self._refused: dict[FleetAddress, str] = {}
        self._said: dict[FleetAddress, str] = {}
        self._left: set[FleetAddress] = set()

    async def serve(self) -> None:
        """Serves the hubs until all have drained the replica. Raises the last one's error if all others refuse it."""
        await _together([self._serve_hub(hub) for hub in self._settings.hubs])

    async def _serve_hub(self, hub: FleetAddress) -> None:
        pause = MIN_PAUSE_S
        while not self._leaving.is_set():
            accepted = partial(self._refused.pop, hub, None)
            connection = _Connection(self._settings, hub, self._hello, self._worker, self._leaving, accepted)
            wait_s = pause
            try:
                if await connection.serve():
                    self._settings.say(f"The hub {hub} has drained a replica of {self._settings.model}")
                    break
                log.warning("the connection to %s ended", hub)
            except BusyError as error:
                accepted()
                log.warning("the hub %s is not ready: %s", hub, error)
            except TwofoldError as error:
                self._note_refusal(hub, error)
            except (OSError, EOFError) as error:
                accepted()
                log.warning("the connection to %s failed: %s", hub, str(error) or CLOSED)
            if hub in self._refused:
                wait_s = REFUSED_PAUSE_S
            elif connection.loaded:
                wait_s = pause = MIN_PAUSE_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._leaving.wait()
            pause = min(2 * pause, MAX_PAUSE_S)
        self._left.add(hub)

    def _note_refusal(self, hub: FleetAddress, error: TwofoldError) -> None:
        """Says once why a hub cannot be served. Raises the error if no other one is left."""
        self._refused[hub] = str(error)
        if not set(self._settings.hubs) - self._left - self._refused.keys():
            raise error
        if self._said.get(hub) != str(error):
            self._said[hub] = str(error)
            self._settings.say(f"Not serving {hub}: {error} {error.hint or ''}".rstrip())


class _Connection:
    """One connection to a hub and the worker process behind it. ``loaded``: the worker has loaded the model; then
    ``on_load`` is called."""

    def __init__(
        self,
        settings: NodeSettings,
        hub: FleetAddress,
        hello: Hello,
        worker: NodeWorker,
        leaving: asyncio.Event,
        on_load: Callable[[], object],
    ) -> None:
        self.loaded = False
        self._leaving = leaving
        self._settings = settings
        self._hub = hub
        self._worker = worker
        self._on_load = on_load
        self._writer: asyncio.StreamWriter | None = None
        self._hello = hello
        self._from_hub, self._from_worker = Codec(FromHub), Codec(Ready | Unloadable)

    async def serve(self) -> bool:
        """Joins and serves until the connection or the process ends; returns whether the hub has drained it. Raises the
        hub's error if it refuses the node, the worker's if it cannot load the model, OSError and EOFError."""
        hub = self._hub
        try:
            reader, writer = await self._unless_leaving(self._dial())
            keep_alive(writer.get_extra_info("socket"))
            writer.write(self._from_hub.frame(self._hello))
            load = await self._unless_leaving(self._first(reader))
            return await self._use_worker(load, reader, writer)
        except ssl.SSLError as error:
            alert = "ALERT" in (error.reason or "")  # the hub says what it does not like
            if alert or isinstance(error, ssl.SSLCertVerificationError):
                raise _wrong_certificate(hub, error) from error
            raise
        finally:
            if self._writer is not None:
                self._writer.transport.abort()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the hub. The writer is kept here, in case the result is not wanted any more."""
        tls = self._settings.context
        reader, self._writer = await asyncio.open_connection(
            self._hub.host, self._hub.port, ssl=tls, server_hostname=None if tls is None else HOST
        )
        return reader, self._writer

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
        try:
            (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        except asyncio.IncompleteReadError as error:
            raise EOFError from error
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

    async def _use_worker(self, load: LoadModel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Joins the worker process for as long as the connection lasts; returns whether the hub has drained it."""
        hub = str(self._hub)
        try:
            options = _engine_options(load.options, self._settings)
            load = LoadModel(str(self._settings.path), options, load.shares_clock, load.keys)
            running = await self._worker.join(hub, load)
        except TwofoldError as error:
            writer.write(self._from_hub.frame(Unloadable(error)))
            await self._finish(writer)
            raise
        try:
            return await self._relay(running, load, reader, writer)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._worker.leave(hub, running)))

    async def _relay(
        self, running: RunningWorker, load: LoadModel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Passes frames on until either side ends; returns whether the hub has drained the replica. Raises the error
        with which either of them ends."""
        from_worker, to_worker = await asyncio.open_unix_connection(sock=running.connect())
        to_worker.write(self._from_hub.frame(load))
        ways = [
            asyncio.create_task(self._pass_requests(reader, to_worker)),
            asyncio.create_task(self._pass_outputs(from_worker, writer)),
            asyncio.create_task(self._ask_to_leave(writer)),
        ]
        try:
            await asyncio.wait(ways[:2], return_when=asyncio.FIRST_COMPLETED)
            if ways[1].done() and (crash := await running.crash()) is not None:
                writer.write(self._from_hub.frame(crash))
            await self._finish(writer)  # the worker's last message is why it ends
        finally:
            to_worker.transport.abort()  # before anything that a cancellation may interrupt
            for way in ways:
                way.cancel()
            results = await asyncio.gather(*ways, return_exceptions=True)
        for result in results:
            if isinstance(result, TwofoldError):
                raise result
        return results[0] is True

    async def _finish(self, hub: asyncio.StreamWriter) -> None:
        """Closes the connection to the hub when it has what was written, or END_S later."""
        with suppress(OSError):
            hub.close()
            async with asyncio.timeout(END_S):
                await hub.wait_closed()

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
            self._on_load()
            self._settings.say(f"Ready: a replica of {self._settings.model} for {self._hub}")


def _engine_options(asked: Mapping[str, Any], settings: NodeSettings) -> dict[str, Any]:
    """The options of the engine: those that a hub asks for, as far as they are numbers and choices, and this machine's.

    No path and no name of a file or model comes from a hub. Raises ParameterError for other options, for impossible
    values, and for a draft model if the node has none.
    """
    given = {name: value for name, value in asked.items() if value is not None and name not in UNUSED_OPTIONS}
    others = sorted(given.keys() - HUB_OPTIONS - settings.options.keys())
    if others:
        raise ParameterError(
            f"The server sets {', '.join(others):.80}, which only the node's own machine may set.",
            param="join",
            hint="Remove the option from the server.",
        )
    config = given.get("speculative_config")
    if isinstance(config, Mapping) and (config.get("model") is not None or config.get("method") == "draft_model"):
        if settings.draft is None:
            raise ParameterError(
                "The server uses a draft model, and this node has none.",
                param="draft_model",
                hint="Give the node --draft-model with the name or path of its own copy.",
            )
        given["speculative_config"] = {**config, "model": str(settings.draft)}
    options = {**given, **settings.options}
    EngineOptions(**options)
    return options


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame, with its length. Raises EOFError at the end, and for an invalid length."""
    head = await reader.readexactly(LENGTH.size)
    (length,) = LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise EOFError(f"a frame of {length} bytes")
    return head + await reader.readexactly(length)


def _wrong_certificate(hub: FleetAddress, error: ssl.SSLError) -> ParameterError:
    return ParameterError(
        f"{hub} and this node have no certificates of one fleet: {error.reason or error}.",
        param="fleet_certs",
        hint="Copy ca.pem and node.pem from the folder that `twofold fleet init` wrote.",
    )
