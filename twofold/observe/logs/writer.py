"""Lines for a file that may be slow: a thread writes them, and who logs never waits.

When the file takes nothing for so long that ``most`` lines are waiting, further ones are dropped; how many is told as
soon as there is room.
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
"""Lines that wait are written together, so many bytes at a time or a line more."""
CLOSE_S: Final = 2.0
RETRY_S: Final = 0.01


class LineWriter:
    """Writes lines in order to a file descriptor. ``lost(n)`` makes the line that says that n were dropped."""

    def __init__(self, file: int, lost: Callable[[int], str], most: int = MAX_LINES) -> None:
        self._file = file
        self._lost = lost
        self._most = most
        self._dropped = 0
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Takes a line without its end. Never waits, and may be called by any thread."""
        if self._lines.qsize() >= self._most:
            self._dropped += 1
        else:
            self._lines.put(line)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Writes what waits, as far as the file takes it in time. Lines that come later are not written."""
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
        """The next line, when there is one, with those that wait behind it; and whether they were the last ones."""
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
    """Writes it whole. The file may be one that others made not to wait."""
    while text:
        try:
            text = text[os.write(file, text) :]
        except BlockingIOError:
            time.sleep(RETRY_S)


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"
