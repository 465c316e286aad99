"""A server as users start it: ``twofold serve`` in a process of its own, on loopback and a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

START_S: Final = 120.0
END_S: Final = 60.0
TWOFOLD: Final = (sys.executable, "-m", "twofold")
PATIENT: Final = ("--slo", "default:ttft=1h,tpot=200ms")
"""A slow machine must not refuse requests of which a test wants to see the end."""


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A running server: its process and address; ``log`` is the file with its standard error."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60.0, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        with self.client() as client:
            return client.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        with self.client() as client:
            return client.get(path, **options)

    def worker_pids(self) -> list[int]:
        """Ids of the processes of its models."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = [int(pid) for pid in path.read_text().split()]
        return [pid for pid in children if b"twofold.fleet" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def end(self) -> int:
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)


@contextmanager
def live_server(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    own_data: bool = True,
    twofold: Sequence[str] = TWOFOLD,
    port: int = 0,
) -> Iterator[LiveServer]:
    """A server with these arguments, ready; its data are in ``folder``, unless it has no data folder of its own
    and the environment says where. ``twofold`` is the command to start it with."""
    log = folder / "server.log"
    command = [*twofold, "serve", "--port", str(port), *PATIENT]
    if own_data:
        command += ["--data-folder", str(folder / "data")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments], stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
    try:
        yield LiveServer(process, _url(process, log), log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL that the server prints once it is ready."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"ANTHROPIC_BASE_URL=(\S+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")
