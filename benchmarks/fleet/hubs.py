"""Servers that share the workers of nodes."""

from __future__ import annotations

import http.client
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.http.processes import free_port

READY_S: Final = 60.0


@dataclass(slots=True)
class Hub:
    """A server at a fixed port for clients and another one for nodes; its data are in ``folder``. ``outages`` are the
    times between its death and its being ready again."""

    command: Sequence[str]
    folder: str
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
        command = [*self.command, *listen, "--data-folder", tempfile.mkdtemp(dir=self.folder)]
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
def shared(serve: Sequence[str], node: Sequence[str], nodes: int) -> Iterator[tuple[list[Hub], list[int]]]:
    """Two hubs, and the process ids of nodes that both share."""
    with tempfile.TemporaryDirectory() as folder:
        hubs = [Hub(serve, folder) for _ in range(2)]
        join = [word for hub in hubs for word in ("--join", f"127.0.0.1:{hub.nodes}")]
        processes = [subprocess.Popen([*node, *join], stderr=subprocess.DEVNULL) for _ in range(nodes)]
        try:
            for hub in hubs:
                hub.start()
            yield hubs, [process.pid for process in processes]
        finally:
            for process in processes:
                process.terminate()
            for hub in hubs:
                hub.end()
            for process in processes:
                process.wait()


def at_once(work: Sequence[Callable[[], None]]) -> None:
    """Runs all of these, each on a thread of its own, waits for them, and raises the first error."""
    with ThreadPoolExecutor(len(work)) as pool:
        for each in [pool.submit(each) for each in work]:
            each.result()
