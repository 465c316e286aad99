"""Faults of processes and machines, at random times and in a random order."""

from __future__ import annotations

import os
import random
import signal
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.fleet.hubs import Hub
from benchmarks.fleet.machines import NODE_PORT, Machine, plug, pull

WORKER: Final = b"twofold.fleet"
HUB_KINDS: Final = ("kill hub", "stop hub", "kill worker", "stop worker")
MACHINE_KINDS: Final = ("cable", "kill worker", "stop worker", "kill node", "garbage")


@dataclass(slots=True, kw_only=True)
class FaultInjector(ABC):
    """Injects at most this many faults, ``every_s`` seconds apart on average, until ``stop`` is set. ``lasts_s`` is the
    shortest and the longest time of those that end by themselves, ``counts`` the faults of each kind."""

    seed: int
    most: int
    every_s: float
    lasts_s: tuple[float, float] = (0.3, 3.0)
    stop: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """One fault after the other; sets ``stop`` at the end."""
        chance = random.Random(self.seed)
        try:
            while self.counts.total() < self.most and not self.stop.wait(chance.expovariate(1 / self.every_s)):
                kind = self.inject(chance)
                if kind is not None:
                    self.counts[kind] += 1
        finally:
            self.stop.set()

    @abstractmethod
    def inject(self, chance: random.Random) -> str | None:
        """Injects a fault and waits for its end. Returns its kind; None if there was nothing to hit."""

    def pause(self, pid: int, seconds: float) -> None:
        """Stops a process for a time, at most until the end of all faults."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.stop.wait(seconds)
            os.kill(pid, signal.SIGCONT)

    def disturb(self, kind: str, pid: int, chance: random.Random) -> None:
        """Stops a process for a while, or kills it, as the kind says."""
        if kind.startswith("stop"):
            self.pause(pid, chance.uniform(*self.lasts_s))
        else:
            kill(pid)


@dataclass(slots=True, kw_only=True)
class WorkerFaults(FaultInjector):
    """Kills the worker processes of a server, or stops them with the probability ``stops``. Several may be stopped at
    once."""

    server: int
    stops: float = 0.35
    _pauses: list[threading.Thread] = field(default_factory=list)

    def run(self) -> None:
        FaultInjector.run(self)
        for each in self._pauses:
            each.join()

    def inject(self, chance: random.Random) -> str | None:
        pids = worker_pids(self.server)
        if not pids:
            return None
        pid = chance.choice(pids)
        if chance.random() >= self.stops:
            kill(pid)
            return "kill"
        self._pauses.append(threading.Thread(target=self.pause, args=(pid, chance.uniform(*self.lasts_s))))
        self._pauses[-1].start()
        return "stop"


@dataclass(slots=True, kw_only=True)
class HubFaults(FaultInjector):
    """Kills and stops hubs and the workers of nodes. ``workers`` is the highest number of workers that were seen."""

    hubs: Sequence[Hub]
    nodes: Sequence[int]
    workers: int = 0

    def inject(self, chance: random.Random) -> str | None:
        kind, hub = chance.choice(HUB_KINDS), chance.choice(self.hubs)
        pids = [pid for node in self.nodes for pid in children(node)]
        self.workers = max(self.workers, len(pids))
        if kind == "kill hub":
            hub.kill()
        elif kind == "stop hub":
            assert hub.process is not None
            self.pause(hub.process.pid, chance.uniform(*self.lasts_s))
        elif pids:
            self.disturb(kind, chance.choice(pids), chance)
        else:
            return None
        return kind


@dataclass(slots=True, kw_only=True)
class MachineFaults(FaultInjector):
    """Pulls cables, kills and stops workers of nodes, kills nodes, and sends garbage to the port for nodes. Never two
    machines at once, so that one replica is left. ``pids`` has the process of a node, ``restart`` starts it again."""

    hub: Machine
    machines: Sequence[Machine]
    pids: Callable[[int], int]
    restart: Callable[[int], None]

    def inject(self, chance: random.Random) -> str | None:
        kind, number = chance.choice(MACHINE_KINDS), chance.randrange(len(self.machines))
        workers = children(self.pids(number))
        if kind == "cable":
            pull(self.hub, self.machines[number])
            self.stop.wait(chance.uniform(*self.lasts_s))
            plug(self.hub, self.machines[number])
        elif kind == "garbage":
            self.hub.run(lambda: garbage(NODE_PORT, chance))
        elif kind == "kill node":
            kill(self.pids(number))
            self.restart(number)
        elif workers:
            self.disturb(kind, workers[0], chance)
        else:
            return None
        return kind


def kill(pid: int) -> None:
    """Kills a process, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The child processes of a process; none if it has ended."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def worker_pids(server: int) -> list[int]:
    """The worker processes of a server."""
    found = []
    for pid in children(server):
        with suppress(OSError):
            if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def garbage(port: int, chance: random.Random) -> None:
    """Sends random bytes, or the beginning of a handshake, to a port of this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as peer:
        if chance.random() < 0.5:
            peer.sendall(chance.randbytes(chance.randrange(1, 5000)))
        else:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="hub.twofold.invalid")
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            hello = outgoing.read()
            peer.sendall(hello[: chance.randrange(1, len(hello) + 1)])
        peer.settimeout(2)
        while peer.recv(4096):
            pass
