"""Writes lines to a file that may block, on a thread, so that callers do not wait.

While ``max_lines`` lines wait, further ones are dropped; their number is logged once the file accepts lines again.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

MAX_LINES: Final = 10_000
MAX_BYTES: Final = 1 << 16
"""Waiting lines are written together, up to this size or one line beyond."""
CLOSE_S: Final = 2.0
RETRY_S: Final = 0.01


class LineWriter:
    """Writes lines in order to a file descriptor. ``lost(n)`` returns the line for n dropped lines."""

    def __init__(self, file: int, lost: Callable[[int], str], max_lines: int = MAX_LINES) -> None:
        self._file = file
        self._lost = lost
        self._max_lines = max_lines
        self._dropped = 0
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queues a line, without its line end. Does not block; any thread may call it."""
        if self._lines.qsize() >= self._max_lines:
            self._dropped += 1
        else:
            self._lines.put(line)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Writes the waiting lines, as far as the file accepts them in time. Later lines are not written."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        last = broken = False
        while not last:
            text, last = self._waiting()
            try:
                _write(self._file, b"" if broken else text)
            except OSError:
                broken = True

    def _waiting(self) -> tuple[bytes, bool]:
        """Waits for a line; returns the waiting lines as bytes, and whether they are the last."""
        text, line = bytearray(), self._lines.get()
        while line is not None:
            text += _encoded(line)
            if len(text) >= MAX_BYTES:
                break
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                break
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text += _encoded(self._lost(dropped))
        return bytes(text), line is None


def _write(file: int, text: bytes) -> None:
    """Writes all of it, also to a file that another process made non-blocking."""
    while text:
        try:
            text = text[os.write(file, text) :]
        except BlockingIOError:
            time.sleep(RETRY_S)


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"
