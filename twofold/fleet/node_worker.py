"""The worker process of one replica of a node, which all hubs of the node share.

It is started for the first hub that loads the model, and ends when the last one has gone. Each hub has a socket of its
own to it (``fleet.worker``). An engine has one set of options, so a hub must ask for those with which it was started.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from twofold.core.errors import ParameterError
from twofold.engine.config import EngineOptions
from twofold.fleet.link import END_S, end_worker, out_of_memory_kills, start_worker
from twofold.fleet.messages import LoadModel, WorkerCrashed


@dataclass(slots=True)
class RunningWorker:
    """A process and the hubs that use it, by address, with what each of them loads. ``sockets`` is our end of the
    connection on which it gets the sockets of hubs."""

    process: Process
    sockets: socket.socket
    out_of_memory: int
    loads: dict[str, LoadModel] = field(default_factory=dict)

    @classmethod
    async def start(cls) -> RunningWorker:
        """Raises ResourceError if it cannot be started."""
        ours, theirs = socket.socketpair()
        out_of_memory = out_of_memory_kills()
        with theirs:
            try:
                return cls(await start_worker(theirs.fileno(), "hubs"), ours, out_of_memory)
            except BaseException:
                ours.close()
                raise

    def connect(self) -> socket.socket:
        """A new connection for a hub. Raises OSError if the process has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.sockets, [b"h"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return ours

    async def crash(self) -> WorkerCrashed | None:
        """Waits up to END_S for the process to end. Returns its crash; None if it still runs or others killed it."""
        try:
            async with asyncio.timeout(END_S):
                status = await self.process.wait()
        except TimeoutError:
            return None
        if status == -signal.SIGKILL and out_of_memory_kills() == self.out_of_memory:
            return None
        return WorkerCrashed(f"signal {-status}" if status < 0 else f"exit status {status}")

    async def end(self) -> None:
        self.sockets.close()
        await end_worker(self.process, END_S)


class NodeWorker:
    """The process of a replica, one after the other; at most one runs."""

    def __init__(self) -> None:
        self._changing = asyncio.Lock()
        self._running: RunningWorker | None = None

    async def join(self, hub: str, load: LoadModel) -> RunningWorker:
        """The process for the hub at this address, which is started if none runs. The caller calls ``leave``.

        Raises ParameterError if another hub uses it with other options, or is the same one; ResourceError.
        """
        async with self._changing:
            running = self._running
            if running is not None and running.process.returncode is not None:
                running.sockets.close()
                running = None
            if running is None:
                running = self._running = await RunningWorker.start()
            for other, theirs in running.loads.items():
                _check_same(hub, load, other, theirs)
            running.loads[hub] = load
            return running

    async def leave(self, hub: str, running: RunningWorker) -> None:
        """The connection of a hub has ended; the last one ends the process."""
        async with self._changing:
            del running.loads[hub]
            if not running.loads:
                await running.end()
                if self._running is running:
                    self._running = None


def _check_same(hub: str, load: LoadModel, other: str, theirs: LoadModel) -> None:
    """Raises ParameterError if two hubs cannot share an engine."""
    if load.keys is not None and theirs.keys is not None and load.keys.secret == theirs.keys.secret:
        raise ParameterError(
            f"{hub} and {other} are addresses of one server.", param="join", hint="Give each server once."
        )
    ours, others = _options(load), _options(theirs)
    different = [name for name in ours if ours[name] != others[name]]
    if different:
        asked, runs = (", ".join(f"{name}={each[name]!r:.60}" for name in different) for each in (ours, others))
        raise ParameterError(
            f"The server {hub} has other engine options than {other}, for which this node runs the model: "
            f"{asked} instead of {runs}.",
            param="join",
            hint="Start both servers with the same options, or run a node for each.",
        )


def _options(load: LoadModel) -> Mapping[str, Any]:
    """All options of an engine, with defaults."""
    options = EngineOptions(**load.options)
    return {each.name: getattr(options, each.name) for each in fields(options)}
