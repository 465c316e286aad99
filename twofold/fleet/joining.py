"""Nodes that join a hub: where it listens, and which of them it takes."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import gt
from pathlib import Path
from typing import Any, Final

from twofold.core.errors import BusyError, ParameterError, ResourceError, TwofoldError
from twofold.core.tasks import start_task
from twofold.engine.config import MAX_STEP_ROWS, EngineOptions
from twofold.fleet.certificates import context
from twofold.fleet.link import NodeLink, keep_alive
from twofold.fleet.messages import Hello, Ready
from twofold.fleet.routing.router import Role
from twofold.host.versions import NUMERICS, twofold_version

log = logging.getLogger("twofold.serve")
MAX_PORT: Final = 65_535
HANDSHAKE_S: Final = 0.09
"""Seconds after which a peer that has not proved who it is is disconnected."""
MAX_UNKNOWN: Final = 64
"""Maximum number of connections of peers that have not said hello."""
MAX_REPLICAS: Final = 64
"""Maximum number of worker processes of a model on one machine."""
MAX_ENGINE_BYTES: Final = 1 << 46
MAX_GROUPS: Final = 16
"""More KV groups than any model has."""
MAX_NODES: Final = 256
"""Maximum number of connections of nodes."""
BUSY_RETRY_S: Final = 5.0
LOG_S: Final = 10.0
"""Minimum seconds between two lines of the log about refused connections."""


@dataclass(frozen=True, slots=True)
class FleetAddress:
    """The address at which a hub awaits nodes, and the folder of the certificates; None on loopback only."""

    host: str
    port: int
    certificates: Path | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str, certificates: Path | None, param: str) -> FleetAddress:
        """Reads HOST:PORT. Raises ParameterError, also for an address beyond this machine without certificates."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        least = 1 if param == "join" else 0
        if not host or not port.isascii() or not port.isdigit() or not least <= int(port) <= MAX_PORT:
            raise ParameterError(f"{param} must be HOST:PORT, not {text!r:.60}.", param=param)
        if certificates is None and not _is_loopback(host):
            raise ParameterError(
                f"{param} {text!r:.60} is not on this machine, so it needs certificates.",
                param=param,
                hint="Make them with `twofold fleet init DIR`, and give --fleet-certs DIR.",
            )
        return cls(host, int(port), certificates)


def check_node(hello: Hello, digest: str) -> None:
    """Raises ParameterError if the node's program or its file differs from the hub's, whose file has this digest."""
    version = twofold_version()
    if (hello.version, hello.numerics) != (version, NUMERICS):
        raise ParameterError(
            f"The node runs Twofold {hello.version:.40} (numerics {hello.numerics}), the hub {version} ({NUMERICS}).",
            param="join",
            hint="Install the same version on both.",
        )
    if hello.digest != digest:
        raise ParameterError(
            f"The node's file of {hello.model!r:.80} is another one than the hub's.",
            param="model",
            hint="Copy the hub's file.",
        )


def check_ready(ready: Ready, options: EngineOptions, context: int) -> None:
    """Raises ParameterError if a node's engine is not what the hub's ``options`` make of the model with this
    ``context``: outputs would depend on the replica."""
    facts = ready.engine
    made = ready.context, ready.kv_type, facts.block_size
    wanted = context, options.kv_type, options.block_size
    if made != wanted:
        raise ParameterError(
            f"The node's context, KV type and block size are {made}, those of the hub's replicas {wanted}.",
            param="join",
            hint="Give the node as much memory as that takes, or start the server with a smaller --max-model-len.",
        )
    sizes: list[float] = [ready.bytes, facts.slots, facts.rows, len(facts.groups), facts.attention_chunk]
    sizes += [size for group in facts.groups for size in (group.blocks, group.block_bytes)]
    if ready.machine is not None:
        speeds = [read.bytes_per_s for read in ready.machine.reads]
        sizes += [min(speeds, default=0), ready.machine.int8_macs_per_s, ready.machine.float_macs_per_s]
    limits = [MAX_ENGINE_BYTES, MAX_STEP_ROWS, MAX_STEP_ROWS, MAX_GROUPS, MAX_STEP_ROWS]
    held = sum(group.blocks * group.block_bytes for group in facts.groups)
    large = held > MAX_ENGINE_BYTES or any(map(gt, sizes, limits))
    short = any(group.blocks * facts.block_size < context for group in facts.groups if group.window is None)
    if short or large or not all(0 < size < math.inf for size in sizes):
        raise ParameterError(
            "The node reports impossible sizes of its engine, such as a KV cache without room for one sequence.",
            param="join",
            hint="Install the same version on both.",
        )


def check_number(replicas: int, options: Mapping[str, Any], roles: Sequence[Role]) -> None:
    """Raises ParameterError if a model with these ``EngineKeywords`` and roles of replicas cannot be scaled so."""
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ParameterError(f"replicas must be from 1 to {MAX_REPLICAS}, not {replicas}.", param="replicas")
    if replicas > 1 and options.get("kv_store") is not None:
        raise ParameterError("A KV store has one writer: it takes one replica.", param="replicas")
    if any(role != "both" for role in roles):
        raise ParameterError(
            "The model's replicas have roles, so their number stays as it is.",
            param="replicas",
            hint="Restart the server with other numbers, or let a node with a role join.",
        )


class NodeListener:
    """Awaits nodes at an address. ``admit`` is called with the link and hello of each, and raises the error with which
    it is refused.

    A peer has HANDSHAKE_S to prove with TLS that it is a node. At most MAX_UNKNOWN peers are in that state or have not
    sent their hello; further ones wait in the system's queue, so strangers take no descriptors from clients.
    """

    def __init__(self, address: FleetAddress, admit: Callable[[NodeLink, Hello], Awaitable[None]]) -> None:
        self._address = address
        self._admit = admit
        self._socket: socket.socket | None = None
        self._links: set[NodeLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unknown = asyncio.Semaphore(MAX_UNKNOWN)
        self._refused, self._logged_at = 0, -math.inf

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        """HOST:PORT for --join."""
        return str(replace(self._address, port=self.port))

    async def start(self) -> None:
        """Raises ParameterError for unusable certificates, ResourceError if the address cannot be bound."""
        tls = None if self._address.certificates is None else context(self._address.certificates, "hub")
        self._socket = await asyncio.to_thread(_bound, self._address)
        self._begin(self._accept(self._socket, tls))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for link in self._links:
            link.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = start_task(work, "nodes")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        while True:
            await self._unknown.acquire()
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:  # no descriptor is free, or the peer has left
                self._unknown.release()
                self._refuse_peer(error)
                await asyncio.sleep(HANDSHAKE_S)
            else:
                self._begin(self._greet(connection, tls))

    async def _greet(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serves a peer, if it proves in time that it is a node and then says hello."""
        link = NodeLink()
        try:
            try:
                keep_alive(connection)
                limit: dict[str, Any] = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_S}
                await asyncio.get_running_loop().connect_accepted_socket(lambda: link, connection, **limit)
                self._links.add(link)
                await link.greeted.wait()
            finally:
                self._unknown.release()
            if link.hello is not None:
                await self._take(link, link.hello)
        except OSError as error:  # TLS errors are such, too
            connection.close()
            self._refuse_peer(error)
        finally:
            link.kill()
            self._links.discard(link)

    async def _take(self, link: NodeLink, hello: Hello) -> None:
        """Serves a node until its connection ends."""
        try:
            if len(self._links) > MAX_NODES:
                raise BusyError(f"The hub has {MAX_NODES} nodes already.", retry_after_s=BUSY_RETRY_S)
            await self._admit(link, hello)
        except TwofoldError as error:
            log.warning("node %s was refused: %s", link.name, error)
            link.refuse(error)
        await link.ended.wait()

    def _refuse_peer(self, error: OSError) -> None:
        """Logs that a peer was refused, but not more often than once in LOG_S."""
        self._refused += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_S:
            why = str(error) or type(error).__name__
            log.warning("%d connections to the port for nodes were refused; the last one: %s", self._refused, why)
            self._refused, self._logged_at = 0, now


def _bound(address: FleetAddress) -> socket.socket:
    """A listening socket. Raises ResourceError."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind(where)
            listening.listen(MAX_NODES)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ResourceError(
            f"Nodes cannot be awaited at {address.host}:{address.port}: {error.strerror or error}.",
            hint="Choose another address; each hub needs its own.",
        ) from error
    return listening


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
