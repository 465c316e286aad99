"""A module that runs in a process of its own and replies to texts: work that may take too long, or is not trusted.

A message is its length (four bytes, little-endian) and that many bytes of UTF-8, in which lone surrogates are kept.
Requests arrive at the process on standard input, replies leave it on standard output; it ends with its input. Each
reply is one letter for its kind, and a text. ``limited`` bounds the processor time and the memory of one reply: a timer
of the kernel ends the process that takes too long, also in a call that cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from twofold.core.errors import ResourceError

HEAD_BYTES: Final = 4
WALL_S: Final = 60.0
"""Seconds to wait for a reply on a busy machine; a process that takes longer was stopped."""
ROOT: Final = Path(__file__).parents[2]
FROM_OUTSIDE: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""Signals that are not caused by the work."""


class ChildEndedError(Exception):
    """The process ended before its reply.

    status   as ``Popen.returncode``
    by_work  whether the work is the cause
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        self.by_work = -status not in FROM_OUTSIDE

    @property
    def timed_out(self) -> bool:
        """Whether the work took more time than it may."""
        return self.status == -signal.SIGPROF


class ChildProcess:
    """A process that runs ``python -m MODULE ARGUMENTS``. One thread at a time may use it.

    ``name`` says in errors what the process does, ``hint`` what it needs. Raises ResourceError if it cannot be started.
    """

    def __init__(self, module: str, arguments: Sequence[str], *, name: str, hint: str) -> None:
        # Python finds modules in the folder where it was started only if the package itself lies there. The process
        # has its own group, so that Ctrl-C does not reach it.
        here = os.path.samefile(".", ROOT)  # also if the current folder was deleted
        command = [sys.executable, *([] if here else ["-P"]), "-m", module, *arguments]
        try:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
            )
        except OSError as error:
            raise ResourceError(f"The process {name} could not be started: {error.strerror}.", hint=hint) from error
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self._to, self._from = self.popen.stdin.fileno(), self.popen.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self.close = weakref.finalize(self, _end, self.popen, os.getpid())

    def ask(self, text: str) -> tuple[str, str]:
        """Sends a request; returns the kind and the text of the reply. Raises ChildEndedError."""
        until = time.monotonic() + WALL_S
        try:
            self._send(message(text), until)
            size = int.from_bytes(self._receive(HEAD_BYTES, until), "little")
            reply = decoded(self._receive(size, until))
        except (TimeoutError, BrokenPipeError, EOFError) as error:
            if not isinstance(error, TimeoutError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.popen.wait(1)  # its pipes are closed before it has ended
            status = self.popen.poll()
            raise ChildEndedError(-signal.SIGPROF if status is None else status) from error
        return reply[0], reply[1:]

    def _send(self, data: bytes, until: float) -> None:
        left = memoryview(data)
        while left:
            _wait(self._to, select.POLLOUT, until)
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._to, left) :]

    def _receive(self, size: int, until: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            _wait(self._from, select.POLLIN, until)
            piece = os.read(self._from, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _wait(descriptor: int, event: int, until: float) -> None:
    """Waits until there is something to read, or room to write. Raises TimeoutError."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1e3):
        raise TimeoutError


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends a process, unless this is a fork of the one that started it."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
    else:
        process.returncode = 0


def begin() -> tuple[BinaryIO, BinaryIO]:
    """Prepares the process itself: it ends by its owner and by its timer only. Returns requests and replies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return sys.stdin.buffer, sys.stdout.buffer


@contextlib.contextmanager
def limited(seconds: float, memory: int) -> Iterator[int]:
    """Ends this process after ``seconds`` of processor time in the block, which may use ``memory`` bytes, or fewer if
    the system allows fewer: more raise MemoryError. Gives these bytes."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield soft
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def read_message(stream: BinaryIO) -> str | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(HEAD_BYTES)
    return decoded(stream.read(int.from_bytes(head, "little"))) if len(head) == HEAD_BYTES else None


def send_message(stream: BinaryIO, text: str) -> None:
    """Writes a message at once."""
    stream.write(message(text))
    stream.flush()


def message(text: str) -> bytes:
    """A text as it is sent."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(HEAD_BYTES, "little") + data


def decoded(data: bytes) -> str:
    """The text of a message, without its length."""
    return data.decode("utf-8", "surrogatepass")
