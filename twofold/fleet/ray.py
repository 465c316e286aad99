"""Replicas on a Ray cluster. Ray places and restarts nodes; it carries no token, no key and no certificate.

    server   the plan, as a line of JSON; the end of the input ends the driver   →  driver
    driver   lines of JSON: it is connected, or what failed                      →  server
    driver   one actor for each replica                                          →  Ray
    actor    joins the server as ``twofold node`` does, over TLS                 →  server

The driver is a process of its own, because Ray ends a driver that has lost the cluster's control store (GCS). Actors
that run then keep serving, and the server starts a driver again and again.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import socket
import sys
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from twofold.core.errors import ParameterError, ResourceError, TwofoldError
from twofold.fleet.certificates import context
from twofold.fleet.joining import FleetAddress
from twofold.fleet.link import END_S, python_command
from twofold.fleet.node import NodeSettings, serve_hubs
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders

log = logging.getLogger("twofold.serve")
AUTO: Final = "auto"
CONNECT_S: Final = 5.0
CHECK_S: Final = 0.5
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
"""Pauses before an actor or a driver that failed is started again; each is twice as long as the one before."""
ANY_HOSTS: Final = ("0.0.0.0", "::")


class RayPlan(msgspec.Struct, frozen=True):
    """What Ray shall run.

    address       of the cluster, or ``auto`` for the one of this machine
    replicas      of each model
    threads       of each replica: the CPUs that Ray reserves for it
    join          the server's address HOST:PORT for nodes
    models        name and source of each model
    certificates  folder of the fleet's certificates on each machine of the cluster; None on loopback
    """

    address: str
    replicas: int
    threads: int
    join: str = ""
    models: tuple[tuple[str, str], ...] = ()
    certificates: str | None = None

    @classmethod
    def of(cls, address: str, replicas: int, threads: int | None) -> RayPlan:
        """What users choose; the server adds the rest. Raises ParameterError, also if Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            message = "--ray requires Ray, which is not installed."
            raise ParameterError(message, param="ray", hint="pip install 'twofold[ray]'")
        if address != AUTO and not re.fullmatch(r".+:\d{1,5}", address):
            raise ParameterError(f"ray must be {AUTO} or HOST:PORT, not {address!r:.60}.", param="ray")
        if threads is None or replicas < 1:
            message = "--ray requires --threads, the CPUs of each replica, and at least one of --replicas."
            raise ParameterError(message, param="threads" if threads is None else "replicas")
        return cls(address, replicas, threads)


class DriverNote(msgspec.Struct, frozen=True):
    """What a driver says. ``connected``: it has reached the cluster; ``problem``: what failed."""

    connected: bool = False
    problem: str = ""


class RayNodes:
    """The driver process of a server, and its restarts. The caller of ``start`` closes it."""

    def __init__(self, plan: RayPlan, join: str, models: Iterable[tuple[str, str]], certificates: Path | None) -> None:
        folder = None if certificates is None else str(certificates)
        self._plan = msgspec.structs.replace(plan, join=join, models=tuple(models), certificates=folder)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the driver. Raises ResourceError if it cannot reach the cluster."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(reached), name="ray driver")
        try:
            await reached
        except TwofoldError:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the driver, which removes the actors. Closing twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, reached: asyncio.Future[None]) -> None:
        """Runs one driver after the other; the first one has to reach the cluster."""
        pause = MIN_PAUSE_S
        while True:
            began = time.monotonic()
            problem = await self._run_driver(reached)
            if not reached.done():
                reached.set_exception(
                    ResourceError(f"Ray cannot be used: {problem}", hint="Is it running at the address of --ray?")
                )
                return
            if time.monotonic() - began > MAX_PAUSE_S:
                pause = MIN_PAUSE_S
            log.warning("the driver of Ray ended (%s); its next start is in %.0f s", problem, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    async def _run_driver(self, reached: asyncio.Future[None]) -> str:
        """Runs a driver until it ends. Returns the last problem that it named."""
        command = python_command("-c", "from twofold.fleet import ray; ray.main()")
        driver = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        problem = "it gave no reason"
        try:
            assert driver.stdin is not None
            assert driver.stdout is not None
            driver.stdin.write(msgspec.json.encode(self._plan) + b"\n")
            while line := await driver.stdout.readline():
                note = msgspec.json.decode(line, type=DriverNote)
                if note.connected and not reached.done():
                    reached.set_result(None)
                if note.problem:
                    problem = note.problem
                    if reached.done():
                        log.warning("Ray: %s", problem)
        finally:
            await asyncio.shield(asyncio.ensure_future(_end(driver)))
        return problem


async def _end(driver: Process) -> None:
    """Ends a driver by the end of its input; kills it if it takes too long."""
    assert driver.stdin is not None
    driver.stdin.close()
    try:
        async with asyncio.timeout(2 * END_S):
            await driver.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            driver.kill()
        await driver.wait()


# -- the driver --------------------------------------------------------------------------------------------------------


class RayNode:
    """The actor: a node with one replica."""

    def run(self, plan: RayPlan, model: str, source: str, name: str) -> str:
        """Serves until the server refuses the node, or the model cannot be loaded; returns that reason."""
        try:
            folder = None if plan.certificates is None else Path(plan.certificates)
            hub = FleetAddress.of(plan.join, folder, "join")
            tls = None if folder is None else context(folder, "node")
            path = sources.resolve(source, cache=CacheFolders.of().create().models).path
            settings = NodeSettings(
                hubs=(hub,),
                model=model,
                path=path,
                name=name,
                context=tls,
                options={"threads": plan.threads},
            )
            asyncio.run(serve_hubs(settings))
        except TwofoldError as error:
            return str(error)
        return "it ended"


@dataclass(slots=True)
class _Slot:
    """A place for an actor, with the reference to its result while it runs."""

    model: str
    source: str
    number: int
    actor: Any = None
    result: Any = None
    pause_s: float = MIN_PAUSE_S
    started_at: float = -MAX_PAUSE_S


@dataclass(slots=True)
class RayDriver:
    """Keeps an actor in each slot."""

    ray: Any
    plan: RayPlan
    say: Callable[[DriverNote], None]
    slots: Sequence[_Slot]

    def start_missing(self) -> None:
        """Starts actors whose pause has passed."""
        now = time.monotonic()
        for slot in self.slots:
            if slot.result is None and now - slot.started_at >= slot.pause_s:
                actor = self.ray.remote(num_cpus=self.plan.threads, max_restarts=-1, max_task_retries=-1)(RayNode)
                slot.actor = actor.options(scheduling_strategy="SPREAD").remote()
                name = f"ray-{slot.model}-{slot.number}"
                slot.result = slot.actor.run.remote(self.plan, slot.model, slot.source, name)
                slot.started_at = now

    def collect(self) -> None:
        """Says why actors ended."""
        ended, _ = self.ray.wait([slot.result for slot in self.slots if slot.result is not None], timeout=0)
        for slot in self.slots:
            if slot.result in ended:
                try:
                    problem = self.ray.get(slot.result)
                except Exception as error:  # of any kind: Ray passes on what the actor raised
                    problem = f"{type(error).__name__}: {error}".partition("\n")[0]
                self.say(DriverNote(problem=f"a node of {slot.model} ended: {problem}"))
                self._kill(slot)
                lasted = time.monotonic() - slot.started_at > MAX_PAUSE_S
                slot.pause_s = MIN_PAUSE_S if lasted else min(2 * slot.pause_s, MAX_PAUSE_S)

    def close(self) -> None:
        for slot in self.slots:
            self._kill(slot)

    def _kill(self, slot: _Slot) -> None:
        if slot.actor is not None:
            self.ray.kill(slot.actor)
        slot.actor = slot.result = None


def drive(plan: RayPlan, say: Callable[[DriverNote], None], over: threading.Event) -> None:
    """Connects to the cluster and keeps its actors until it is ``over``."""
    ray: Any = importlib.import_module("ray")  # an extra, imported in this process only

    if plan.address != AUTO:  # Ray takes more than a minute to notice that nothing is there
        host, _, port = plan.address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    ray.init(address=plan.address, namespace="twofold", log_to_driver=False, logging_level=logging.ERROR)
    say(DriverNote(connected=True))
    host, _, port = plan.join.rpartition(":")
    if host.strip("[]") in ANY_HOSTS:
        plan = msgspec.structs.replace(plan, join=f"{ray.util.get_node_ip_address()}:{port}")
    slots = [_Slot(model, source, number) for number in range(plan.replicas) for model, source in plan.models]
    driver = RayDriver(ray, plan, say, slots)
    try:
        while not over.wait(CHECK_S):
            driver.start_missing()
            driver.collect()
    finally:
        driver.close()
        ray.shutdown()


def main() -> None:
    """The driver process."""
    output = os.dup(1)
    os.dup2(2, 1)  # Ray prints, too
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=RayPlan)
    over = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        over.set()

    def say(note: DriverNote) -> None:
        os.write(output, msgspec.json.encode(note) + b"\n")

    threading.Thread(target=wait, daemon=True).start()
    try:
        drive(plan, say, over)
    except Exception as error:  # of any kind: Ray has no base class of errors for connections
        say(DriverNote(problem=f"{type(error).__name__}: {error}".partition("\n")[0]))
        sys.exit(1)
