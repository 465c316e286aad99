"""Servers that share the workers of nodes, and faults of both."""

from __future__ import annotations

import http.client
import math
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fleet_machines import children

KINDS: Final = ("kill hub", "stop hub", "kill worker", "stop worker")
READY_S: Final = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Hub:
    """A server at a fixed port for clients and another one for nodes. ``outages`` are the times between its death and
    its being ready again."""

    command: Sequence[str]
    port: int = field(default_factory=free_port)
    nodes: int = field(default_factory=free_port)
    outages: list[tuple[float, float]] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it is ready: a node has joined."""
        listen = ("--port", str(self.port), "--replicas", "0", "--listen-nodes", f"127.0.0.1:{self.nodes}")
        folder = tempfile.mkdtemp()
        command = [*self.command, *listen, "--data-folder", folder]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + READY_S
        while not self._ready():
            assert time.monotonic() < until, "the server is not ready"
            time.sleep(0.1)

    def kill(self) -> None:
        """Kills it (SIGKILL) and starts it again."""
        assert self.process is not None
        self.outages.append((time.monotonic(), math.inf))
        self.process.kill()
        self.process.wait()
        self.start()
        self.outages[-1] = self.outages[-1][0], time.monotonic()

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def excuses(self, began: float) -> bool:
        """Whether it was dead at some time since then: an error of a client says nothing about other faults."""
        return any(ended >= began for _, ended in self.outages)

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def shared(hubs: Sequence[Hub], node: Sequence[str], nodes: int) -> Iterator[list[int]]:
    """The hubs with nodes that all of them share; the process ids of the nodes."""
    join = [word for hub in hubs for word in ("--join", f"127.0.0.1:{hub.nodes}")]
    processes = [subprocess.Popen([*node, *join], stderr=subprocess.DEVNULL) for _ in range(nodes)]
    try:
        for hub in hubs:
            hub.start()
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for hub in hubs:
            hub.end()
        for process in processes:
            process.wait()


@dataclass(slots=True)
class HubFaults:
    """Kills and stops hubs and workers of nodes at random times, one after the other, until ``stop`` is set."""

    hubs: Sequence[Hub]
    nodes: Sequence[int]
    seed: int
    most: int
    every_s: float
    lasts_s: tuple[float, float] = (0.3, 3.0)
    stop: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)
    models: int = 0

    def run(self) -> None:
        chance = random.Random(self.seed)
        while sum(self.counts.values()) < self.most and not self.stop.wait(chance.expovariate(1 / self.every_s)):
            kind, hub = chance.choice(KINDS), chance.choice(self.hubs)
            workers = [pid for node in self.nodes for pid in children(node)]
            self.models = max(self.models, len(workers))
            if kind == "kill hub":
                hub.kill()
            elif kind == "stop hub":
                assert hub.process is not None
                self._pause(hub.process.pid, chance)
            elif workers:
                pid = chance.choice(workers)
                if kind == "stop worker":
                    self._pause(pid, chance)
                else:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.counts[kind] += 1
        self.stop.set()

    def _pause(self, pid: int, chance: random.Random) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.uniform(*self.lasts_s))
            os.kill(pid, signal.SIGCONT)


def at_once(work: Sequence[Callable[[], None]]) -> None:
    """Runs all of these, each on a thread of its own, and waits for them."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
