"""Runs ``twofold serve`` as a child process during a benchmark."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from twofold.core.errors import ResourceError
from twofold.host.signals import handled

START_S: Final = 900.0
"""Time limit of the start, in which the model may have to be downloaded."""
END_S: Final = 30.0
LAST_LINES: Final = 5
ADDRESS: Final = re.compile(r"ANTHROPIC_BASE_URL=(\S+)")


@contextmanager
def own_server(model: str, flags: Sequence[str] = ()) -> Iterator[str]:
    """The URL of ``twofold serve MODEL`` with these flags on a free port, ready for requests. It ends with the context.

    Raises ResourceError with the end of the server's log if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as folder:
        command = [sys.executable, "-m", "twofold", "serve", model, "--port", "0", "--data-folder", folder]
        # In its own process group, so that Ctrl-C reaches only this process, which then ends the server.
        process: subprocess.Popen[str] | None = None
        try:
            with _sigterm_later():
                process = subprocess.Popen(
                    [*command, "--access-log", "off", *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            yield _Log(process).address()
        finally:
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextmanager
def _sigterm_later() -> Iterator[None]:
    """Delays SIGTERM to the end of the block: in the middle of a process start, the process would be left behind."""
    arrived: list[int] = []
    try:
        with handled(lambda number, _: arrived.append(number), signal.SIGTERM):
            yield
    finally:
        if arrived:
            signal.raise_signal(signal.SIGTERM)


class _Log:
    """Reads the log of a server, so that its pipe never fills."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._url: str | None = None
        self._found = threading.Event()
        threading.Thread(target=self._read, name="server-log", daemon=True).start()

    def address(self) -> str:
        """Waits until the server is ready; returns its URL."""
        until = time.monotonic() + START_S
        while not self._found.wait(0.05):
            if time.monotonic() > until:
                raise ResourceError(f"The server was not ready within {START_S:.0f} s.", hint=self._end_of_log())
        if self._url is None:
            code = self._process.wait()
            raise ResourceError(f"The server did not start: it exited with code {code}.", hint=self._end_of_log())
        return self._url

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last.append(line.strip())
                found = ADDRESS.search(line)
                if found:
                    self._url = found[1]
                    self._found.set()
        self._found.set()

    def _end_of_log(self) -> str:
        return "End of its log: " + " ".join(self._last) if self._last else "Its log is empty."
