"""Connections from the hub to workers: over a socketpair to a process of its own, or over TCP to a node's."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from twofold.core.clock import MonotonicClock
from twofold.core.errors import ResourceError, TwofoldError
from twofold.core.request import EngineRequest
from twofold.fleet.checks import PeerError, check_numbers, output_bytes
from twofold.fleet.messages import (
    HELLO_BYTES,
    MAX_FRAME_BYTES,
    SHORT_BYTES,
    Codec,
    Drained,
    Failed,
    FromNode,
    FromWorker,
    Gone,
    Hello,
    JoinRefused,
    Leave,
    Ready,
    StepOutputs,
    ToWorker,
    Unframer,
    WorkerCrashed,
)

log = logging.getLogger("twofold.serve")
ROOT: Final = Path(__file__).parents[2]
"""The folder that contains the package."""
VM_COUNTERS: Final = Path("/proc/vmstat")
END_S: Final = 2.0
"""Seconds that a process has to end after its socket was closed."""
MAX_NODE_FRAME_BYTES: Final = 256 << 20
"""Maximum length of a node's frame: a step's outputs with the log-probabilities of long prompts are the longest."""
NODE_BYTES: Final = {b"blocks": 512 << 10, b"step": 2 << 20, b"gone": 1 << 20, b"seen": 4 << 20}
"""Maximum length of a node's messages by kind, besides the outputs of the requests that it has. Others are short."""
MAX_BLOCK_BYTES: Final = 64 << 20
"""Maximum length of a message with a block of each KV group."""
HELLO_S: Final = 2.0
"""Seconds that a node has for its hello."""
KEEPALIVE: Final = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""A peer that is gone is noticed after 10 s: by probes, or by data that was not received within these milliseconds."""

OnMessage = Callable[[FromWorker], None]


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended: the ``cause`` in words, and whether the worker itself, its requests or its memory may be the
    reason (``by_itself``). A connection that broke, and a process killed by somebody else, say nothing about them."""

    cause: str
    by_itself: bool


class Link(Protocol):
    """A connection to a worker. ``ended`` is set when it has ended."""

    ended: asyncio.Event

    @property
    def busy(self) -> bool:
        """Whether a long message is being decoded."""

    @property
    def pid(self) -> int | None:
        """Process id of a worker on this machine that belongs to the hub; None for any other."""

    def send(self, message: ToWorker) -> None:
        """Sends a message; does nothing if the connection has ended."""

    def kill(self) -> None:
        """Ends the worker, or at least the connection, at once."""

    async def close(self, end_s: float = END_S) -> WorkerEnd:
        """Closes the connection, waits up to ``end_s`` seconds for the worker to end, and returns how it ended."""


class _Framed(asyncio.Protocol):
    """Messages over an asyncio transport. What is no message, or cannot be true, ends the connection."""

    peer = "a worker process"

    def __init__(
        self, limit: int, reads: Any, take: Callable[[Any], None], check: Callable[..., None] | None = None
    ) -> None:
        """``take`` gets each message, which passed the ``check``."""
        self.ended = asyncio.Event()
        self._take = take
        self._codec = Codec(reads, check)
        self._unframer = Unframer(limit)
        self._transport: asyncio.Transport | None = None
        self._reading: Iterator[None] | None = None
        self._paused = False

    @property
    def busy(self) -> bool:
        """Whether a long message is being decoded."""
        return self._reading is not None

    def write(self, message: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._codec.frame(message))

    def broken(self) -> None:
        """What arrived is no message."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another class

    def data_received(self, data: bytes) -> None:
        """Reads until the next pause. During a long message nothing more is received, and the loop does other work:
        then it is called again without data. A call for each token, so one function."""
        if self._reading is None:
            self._reading = self._read(data)
        elif data:
            self._unframer.add(data)
            return
        if self._transport is None:
            return
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None
            if self._paused and not self._transport.is_closing():
                self._transport.resume_reading()
            self._paused = False
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            why = str(error) if isinstance(error, PeerError) else type(error).__name__
            log.warning("%s sent an invalid message, so its connection ends: %s", self.peer, why)
            self.broken()
        except Exception:  # a fault of ours
            log.exception("a message of %s could not be handled, so its connection ends", self.peer)
            self.broken()
        else:
            if not self._paused:
                self._paused = True
                self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.data_received, b"")

    def _read(self, data: bytes) -> Iterator[None]:
        """Takes messages; pauses within long ones."""
        for payload in self._unframer.feed(data):
            short = len(payload) <= SHORT_BYTES
            self._take(self._codec.message(payload) if short else (yield from self._codec.in_parts(payload)))

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the exit status says more
        self._reading = None
        self.ended.set()


class WorkerLink(_Framed):
    """A worker process and the event loop's connection to it, over a socketpair. The caller of ``open`` closes it.

    The process ends when its socket is closed. ``on_message`` is called with each message until then.
    """

    def __init__(self, on_message: OnMessage) -> None:
        super().__init__(MAX_FRAME_BYTES, FromWorker, on_message)
        self._process: Process | None = None
        self._killed_here = False
        self._out_of_memory = out_of_memory_kills()

    @classmethod
    async def open(cls, on_message: OnMessage) -> WorkerLink:
        """Starts a worker. Raises ResourceError if that fails."""
        link = cls(on_message)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                link._process = await start_worker(theirs.fileno())
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
        self.write(message)

    def kill(self) -> None:
        self._killed_here = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def close(self, end_s: float = END_S) -> WorkerEnd:
        assert self._process is not None
        if self._transport is not None:
            self._transport.abort()
        status = await end_worker(self._process, end_s)
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        own = status != -signal.SIGKILL or self._killed_here or out_of_memory_kills() != self._out_of_memory
        return WorkerEnd(cause, own)

    def broken(self) -> None:
        self.kill()  # these bytes are not from a working worker
        super().broken()


class NodeLink(_Framed):
    """The hub's end of a node's connection: one replica on another machine.

    The peer has proved who it is before any byte of it arrives here, unless the hub listens on loopback only. Its first
    frame is a Hello; then ``open`` makes it the link of a replica, or ``refuse`` ends it. The clocks of the machines
    differ, so requests are sent with their age.

    slot      number of the replica on the cluster; None if no cluster runs it for this hub
    greeted   set when the hello is there, or the connection has ended without one
    on_leave  is called when the node wants to end
    """

    pid = None

    def __init__(self) -> None:
        super().__init__(HELLO_BYTES, Hello | FromNode, self._hear, check_numbers)
        self._asked: dict[str, int] = {}
        self._block_bytes = 0
        self._end = WorkerEnd("its connection ended", by_itself=False)
        self.greeted = asyncio.Event()
        self._on_message: OnMessage | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._clock = MonotonicClock()
        self.hello: Hello | None = None
        self.slot: int | None = None
        self.on_leave: Callable[[], object] = self.kill

    @property
    def name(self) -> str:
        """Of the node, for logs."""
        return "?" if self.hello is None else "".join(filter(str.isprintable, self.hello.node[:64]))

    async def open(self, on_message: OnMessage) -> NodeLink:
        self._on_message, self._unframer.limit = on_message, SHORT_BYTES
        return self

    def _limit(self, tag: bytes) -> int:
        """The maximum length of a message of this kind, by the node's requests and the blocks of its cache."""
        outputs = sum(self._asked.values()) if tag in (b"step", b"gone") else 0
        return self._block_bytes if tag == b"block_data" else NODE_BYTES.get(tag, SHORT_BYTES) + outputs

    def send(self, message: ToWorker) -> None:
        if isinstance(message, EngineRequest):
            message = replace(message, arrival=self._clock.now() - message.arrived)
            self._asked[message.request_id] = output_bytes(message)
        self.write(message)

    def refuse(self, error: TwofoldError) -> None:
        """Sends the node the reason for the refusal, and closes the connection."""
        self.write(JoinRefused(error))
        if self._transport is not None:
            self._transport.close()

    def dismiss(self) -> None:
        """The node may end; it closes the connection."""
        self.write(Drained())

    def kill(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self, end_s: float = END_S) -> WorkerEnd:  # noqa: ARG002 - the node ends its process
        self.kill()
        return self._end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_S, self.kill)

    def _hear(self, message: Any) -> None:
        if self.hello is None:
            if not isinstance(message, Hello):
                raise TypeError("a node begins with its hello")
            assert self._deadline is not None
            self._deadline.cancel()
            self.hello = message
            self.peer = f"node {self.name}"
            self.greeted.set()
        elif self._on_message is None or isinstance(message, Hello):
            raise TypeError("a node waits for its model")
        elif isinstance(message, Leave):
            self.on_leave()
        elif isinstance(message, WorkerCrashed):
            self._end = WorkerEnd(message.cause[:40], by_itself=True)
        else:
            self._count(message)
            self._on_message(message)

    def _count(self, message: Any) -> None:
        """Notes the lengths of later messages: of those about blocks, and of outputs that are still to come."""
        if isinstance(message, Ready):
            self._block_bytes = min(MAX_BLOCK_BYTES, sum(g.block_bytes for g in message.engine.groups)) + SHORT_BYTES
            self._unframer.limit, self._unframer.kinds = MAX_NODE_FRAME_BYTES, self._limit
        elif isinstance(message, Failed | Gone):
            self._asked.pop(message.request_id, None)
        elif isinstance(message, StepOutputs):
            for delta in message.deltas:
                if delta.request is not None or delta.error is not None:
                    self._asked.pop(delta.request_id, None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.greeted.set()
        super().connection_lost(error)


def keep_alive(connection: socket.socket) -> None:
    """Makes the system send at once, and notice that the peer is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in KEEPALIVE.items():
        with suppress(AttributeError, OSError):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def out_of_memory_kills() -> int:
    """Processes that the kernel has killed since it started, because memory was short; 0 where it does not say."""
    try:
        counters = VM_COUNTERS.read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters.splitlines() if line.startswith("oom_kill ")), 0)


def python_command(*arguments: str) -> list[str]:
    """A command for this Python, which imports modules from the current folder only if the package itself is there."""
    return [sys.executable, *([] if Path.cwd() == ROOT else ["-P"]), *arguments]


async def start_worker(descriptor: int, *more: str) -> Process:
    """Starts a worker process, with ``more`` arguments. Raises ResourceError if that fails."""
    command = python_command("-m", "twofold.fleet", str(descriptor), *more)
    try:
        return await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, pass_fds=(descriptor,))
    except OSError as error:
        raise ResourceError(
            f"The process for a model could not be started: {error.strerror}.",
            hint="Each loaded model runs in its own process.",
        ) from error


async def end_worker(process: Process, end_s: float) -> int:
    """Waits until a process whose socket was closed has ended, and kills it after ``end_s`` seconds."""
    try:
        async with asyncio.timeout(end_s):
            return await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()
