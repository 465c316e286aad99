"""``twofold node`` in a process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.server.live import TWOFOLD

WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A running node; ``log`` is the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def worker_pids(self) -> list[int]:
        """Ids of its worker processes."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_for(self, text: str, times: int = 1) -> None:
        """Waits until it has printed a text so many times."""
        until(lambda: self.log.read_text().count(text) >= times, self.log)


def until(condition: Callable[[], object], log: Path) -> None:
    """Waits for something to become true; a failure shows the log."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)


@contextmanager
def live_node(log: Path, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[LiveNode]:
    """A node with these arguments. ``prefix`` is a command that runs the others."""
    with log.open("wb") as output:
        process = subprocess.Popen([*prefix, *TWOFOLD, "node", *arguments], stdout=output, stderr=output)
    try:
        yield LiveNode(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(WAIT_S)
