"""The side that asks: a process that compiles grammars on trial, replaced whenever one was too much for it."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Final

from twofold.core.errors import ResourceError
from twofold.grammar import vet

START_S: Final = 20.0


class TrialProcess:
    """Tells whether a grammar can be compiled in ``seconds``. Starts its process with the first question.

    Not thread-safe: one thread asks.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def fault(self, grammar: str) -> str:
        """What is wrong with a grammar, or an empty text. Raises ResourceError if no process can be started."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        start = time.monotonic()
        try:
            process.stdin.write(vet.message(grammar))
            process.stdin.flush()
        except OSError:
            return self._ended("is too deep or too large to compile")
        answer = _answer(process.stdout, start + self._seconds)
        if answer is not None:
            return answer
        slow = process.poll() is None and time.monotonic() - start >= self._seconds
        limit = f"takes more than {self._seconds * 1e3:.0f} ms to compile"
        return self._ended(limit if slow else "is too deep or too large to compile")

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()

    def _ended(self, why: str) -> str:
        self.close()
        return why

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", str(Path(vet.__file__))]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise _unstarted() from error
        assert self._process.stdout is not None
        if _answer(self._process.stdout, time.monotonic() + START_S) is None:
            self.close()
            raise _unstarted()
        return self._process


def _unstarted() -> ResourceError:
    return ResourceError(
        "The process that tries out grammars could not be started.",
        hint="Structured output needs one more process of up to 256 MiB.",
    )


def _answer(stream: IO[bytes], until: float) -> str | None:
    """A message that arrives in time, else None. An answer is short: it comes in one piece."""
    ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
    return vet.read_message(stream) if ready else None  # type: ignore[arg-type]
