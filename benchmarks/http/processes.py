"""Starts servers on free loopback ports and measures their processor time."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.worker import WorkerError
from twofold.bench.client.target import ServerTarget, exchange
from twofold.core.errors import NetworkError

ROOT: Final = Path(__file__).parents[2]
END_S: Final = 20.0
LOOK_S: Final = 0.1
LOOK_TIMEOUT_S: Final = 5.0
LOG_TAIL: Final = 300


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start a server. ``{port}`` and ``{folder}`` (an empty folder) in ``command`` are filled in.

    ready    path that returns 200 once the server is ready
    fields   additional request fields, such as those that make completions reach their full length
    start_s  maximum seconds until it is ready
    """

    name: str
    command: Sequence[str]
    ready: str
    fields: dict[str, Any] = field(default_factory=dict)
    start_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server that is ready."""

    recipe: Recipe
    url: str
    pid: int

    @property
    def name(self) -> str:
        return self.recipe.name

    def workers(self) -> list[int]:
        """Process ids of its direct children."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


@contextmanager
def serving(recipe: Recipe) -> Iterator[Serving]:
    """Starts a server and waits until it is ready. Raises WorkerError if it exits or is too slow."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [part.format(port=port, folder=folder) for part in recipe.command]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(process, recipe, url, log)
            yield Serving(recipe, url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cpu_s(pid: int, *, main_only: bool = False) -> float:
    """Processor seconds of a process's live threads, or of its main thread only."""
    tasks = Path(f"/proc/{pid}/task")
    threads = [tasks / str(pid)] if main_only else list(tasks.iterdir())
    total = 0
    for thread in threads:
        with suppress(OSError):  # the thread has ended
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(process: subprocess.Popen[bytes], recipe: Recipe, url: str, log: Path) -> None:
    until = time.monotonic() + recipe.start_s
    while time.monotonic() < until and process.poll() is None:
        if _status(url, recipe.ready) == 200:
            return
        time.sleep(LOOK_S)
    outcome = (
        f"was not ready within {recipe.start_s:g} s"
        if process.poll() is None
        else f"ended with code {process.returncode}"
    )
    raise WorkerError(f"{recipe.name} {outcome}: …{log.read_text('utf-8', 'replace')[-LOG_TAIL:].strip()}")


def _status(url: str, path: str) -> int:
    with suppress(NetworkError):
        return exchange(ServerTarget.of(url), "GET", path, None, {}, LOOK_TIMEOUT_S)[0]
    return 0
