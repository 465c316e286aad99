"""Replicas on a Ray cluster. Ray places and restarts nodes; it carries no token, no key and no certificate.

    server   plans, as lines of JSON; the end of the input ends the driver   →  driver
    driver   lines of JSON: it is connected, or what failed                  →  server
    driver   one actor for each replica; machines for all of them            →  Ray
    actor    joins the server as ``twofold node`` does, over TLS             →  server

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
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec

from twofold.core.errors import ParameterError, TwofoldError
from twofold.core.units import count
from twofold.fleet.certificates import context
from twofold.fleet.joining import FleetAddress
from twofold.fleet.node import NodeSettings, serve_hubs
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders

AUTO: Final = "auto"
CONNECT_S: Final = 5.0
CHECK_S: Final = 0.5
PLACE_S: Final = 10.0
"""Time after which an actor that does not run is said to have no room."""
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
"""Pauses before an actor or a driver that failed is started again; each is twice as long as the one before."""
ANY_HOSTS: Final = ("0.0.0.0", "::")


class RayPlan(msgspec.Struct, frozen=True):
    """What Ray shall run.

    address       of the cluster, or ``auto`` for the one of this machine
    replicas      of each model at first
    threads       of each replica: the CPUs that Ray reserves for it
    join          the server's address HOST:PORT for nodes
    models        name, source, and slots of the replicas of each model
    certificates  folder of the fleet's certificates on each machine of the cluster; None on loopback
    draft         source of the draft model; None without one
    """

    address: str
    replicas: int
    threads: int
    join: str = ""
    models: tuple[tuple[str, str, frozenset[int]], ...] = ()
    certificates: str | None = None
    draft: str | None = None

    @classmethod
    def of(cls, address: str, replicas: int, threads: int | None) -> RayPlan:
        """What users choose; the server adds the rest. Raises ParameterError, also if Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            message = "--ray requires Ray, which is not installed."
            raise ParameterError(
                message, param="ray", hint=f"Run: {sys.executable} -m pip install ray (in a clone: make ray)"
            )
        if address != AUTO and not re.fullmatch(r".+:\d{1,5}", address):
            raise ParameterError(f"ray must be {AUTO} or HOST:PORT, not {address!r:.60}.", param="ray")
        if threads is None or replicas < 1:
            message = "--ray requires --threads, the CPUs of each replica, and at least one of --replicas."
            raise ParameterError(message, param="threads" if threads is None else "replicas")
        return cls(address, replicas, threads)


class DriverNote(msgspec.Struct, frozen=True):
    """What a driver says. ``connected``: it has reached the cluster; ``problem``: what failed; ``waiting``: why the
    replicas of a model do not run, by slot."""

    connected: bool = False
    problem: str = ""
    waiting: dict[str, dict[int, str]] | None = None


class RayNode:
    """The actor: a node with one replica."""

    def run(self, plan: RayPlan, model: str, source: str, name: str) -> str:
        """Serves until the server refuses the node, or the model cannot be loaded; returns that reason."""
        try:
            folder = None if plan.certificates is None else Path(plan.certificates)
            hub = FleetAddress.of(plan.join, folder, "join")
            tls = None if folder is None else context(folder, "node")
            cache = CacheFolders.of().create().models
            path = sources.resolve(source, cache=cache).path
            draft = None if plan.draft is None else sources.resolve(plan.draft, cache=cache).path
            settings = NodeSettings(
                hubs=(hub,),
                model=model,
                path=path,
                name=name,
                context=tls,
                options={"threads": plan.threads},
                draft=draft,
            )
            asyncio.run(serve_hubs(settings))
        except TwofoldError as error:
            return str(error)
        return "it ended"


def node_name(slot: int) -> str:
    """The name of the node in a slot. It differs from the names of hosts, which other nodes have by default."""
    return f"ray:{slot}"


@dataclass(slots=True)
class _Slot:
    """A place for an actor, with the reference to its result while it runs, and one that is there once it has room."""

    model: str
    source: str
    number: int
    actor: Any = None
    result: Any = None
    placed: Any = None
    problem: str = ""
    pause_s: float = MIN_PAUSE_S
    started_at: float = -MAX_PAUSE_S


@dataclass(slots=True)
class RayDriver:
    """Keeps an actor in each slot of a plan."""

    ray: Any
    say: Callable[[DriverNote], None]
    plan: RayPlan = field(default_factory=lambda: RayPlan(AUTO, 0, 0))
    slots: dict[tuple[int, str], _Slot] = field(default_factory=dict)
    said: dict[str, dict[int, str]] = field(default_factory=dict)

    def follow(self, plan: RayPlan) -> None:
        """Ends actors that a plan lacks, makes slots for those that are new, and asks for machines for all."""
        self.plan = plan
        wanted = {(number, model): source for model, source, slots in plan.models for number in slots}
        for key in self.slots.keys() - wanted.keys():
            self._kill(self.slots.pop(key))
        for number, model in sorted(wanted.keys() - self.slots.keys()):
            self.slots[number, model] = _Slot(model, wanted[number, model], number)
        self._ask_for_machines()

    def _ask_for_machines(self) -> None:
        with suppress(Exception):  # a cluster without this still sees the actors that wait
            bundles = [{"CPU": self.plan.threads} for _ in self.slots]
            importlib.import_module("ray.autoscaler.sdk").request_resources(bundles=bundles)

    def start_missing(self) -> None:
        """Starts actors whose pause has passed."""
        now = time.monotonic()
        for slot in self.slots.values():
            if slot.result is None and now - slot.started_at >= slot.pause_s:
                actor = self.ray.remote(num_cpus=self.plan.threads, max_restarts=-1, max_task_retries=-1)(RayNode)
                slot.actor = actor.options(scheduling_strategy="SPREAD").remote()
                slot.placed = slot.actor.__ray_ready__.remote()
                slot.result = slot.actor.run.remote(self.plan, slot.model, slot.source, node_name(slot.number))
                slot.started_at = now

    def collect(self) -> None:
        """Says why actors ended, and which of them have no room."""
        ended = self._done(slot.result for slot in self.slots.values())
        for slot in self.slots.values():
            if slot.result in ended:
                try:
                    problem = self.ray.get(slot.result)
                except Exception as error:  # of any kind: Ray passes on what the actor raised
                    problem = f"{type(error).__name__}: {error}".partition("\n")[0]
                slot.problem = f"a node of {slot.model} ended: {problem}"
                self.say(DriverNote(problem=slot.problem))
                self._kill(slot)
                lasted = time.monotonic() - slot.started_at > MAX_PAUSE_S
                slot.pause_s = MIN_PAUSE_S if lasted else min(2 * slot.pause_s, MAX_PAUSE_S)
        self._say_waiting()

    def _say_waiting(self) -> None:
        """Says why replicas do not run, when that changes."""
        placed = self._done(slot.placed for slot in self.slots.values())
        full = f"no machine of the Ray cluster has {count(self.plan.threads, 'free CPU')}; Ray was asked for one"
        waiting: dict[str, dict[int, str]] = {}
        for slot in self.slots.values():
            if slot.placed in placed:
                slot.problem = ""
            elif slot.placed is not None and time.monotonic() - slot.started_at > PLACE_S and slot.problem != full:
                slot.problem = full
                self.say(DriverNote(problem=f"a replica of {slot.model} waits: {full}"))
            if slot.problem:
                waiting.setdefault(slot.model, {})[slot.number] = slot.problem
        if waiting != self.said:
            self.said = waiting
            self.say(DriverNote(waiting=waiting))

    def _done(self, references: Iterable[Any]) -> list[Any]:
        some = [each for each in references if each is not None]
        done, _ = self.ray.wait(some, num_returns=len(some), timeout=0) if some else ([], [])
        return list(done)

    def close(self) -> None:
        """Ends all actors, and gives up the request for machines."""
        self.follow(msgspec.structs.replace(self.plan, models=()))

    def _kill(self, slot: _Slot) -> None:
        if slot.actor is not None:
            self.ray.kill(slot.actor)
        slot.actor = slot.result = slot.placed = None


def drive(plans: SimpleQueue[RayPlan | None], say: Callable[[DriverNote], None]) -> None:
    """Connects to the cluster and follows plans until None."""
    ray: Any = importlib.import_module("ray")  # an extra, imported in this process only

    plan = plans.get()
    if plan is None:
        return
    if plan.address != AUTO:  # Ray takes more than a minute to notice that nothing is there
        host, _, port = plan.address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    ray.init(address=plan.address, namespace="twofold", log_to_driver=False, logging_level=logging.ERROR)
    say(DriverNote(connected=True))
    host, _, port = plan.join.rpartition(":")
    join = f"{ray.util.get_node_ip_address()}:{port}" if host.strip("[]") in ANY_HOSTS else plan.join
    driver = RayDriver(ray, say)
    try:
        driver.follow(msgspec.structs.replace(plan, join=join))
        while True:
            driver.start_missing()
            driver.collect()
            with suppress(Empty):
                if (plan := plans.get(timeout=CHECK_S)) is None:
                    return
                driver.follow(msgspec.structs.replace(plan, join=join))
    finally:
        driver.close()
        ray.shutdown()


def main() -> None:
    """The driver process."""
    output = os.dup(1)
    os.dup2(2, 1)  # Ray prints, too
    plans: SimpleQueue[RayPlan | None] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            plans.put(msgspec.json.decode(line, type=RayPlan))
        plans.put(None)

    def say(note: DriverNote) -> None:
        os.write(output, msgspec.json.encode(note) + b"\n")

    threading.Thread(target=read, daemon=True).start()
    try:
        drive(plans, say)
    except Exception as error:  # of any kind: Ray has no base class of errors for connections
        say(DriverNote(problem=f"{type(error).__name__}: {error}".partition("\n")[0]))
        sys.exit(1)
