"""The worker's end of the socket: blocking reads by one thread, and writes that do not block the engine.

A frame is sent at once as far as the socket takes it; a thread writes the rest. Senders wait only for a server that
leaves MAX_WAITING bytes unread.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from twofold.server.workers.messages import LENGTH, Codec, FromWorker, ToWorker

MAX_WAITING: Final = 64 << 20


class Channel:
    """Messages over a connected socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._file = connection.makefile("rb")
        self._codec = Codec(ToWorker)
        self._waiting: deque[memoryview] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write, name="twofold-write", daemon=True).start()

    def receive(self) -> ToWorker | None:
        """The next message; None after the server has closed its end."""
        with suppress(ConnectionError):
            head = self._file.read(LENGTH.size)
            if len(head) == LENGTH.size:
                (length,) = LENGTH.unpack(head)
                payload = self._file.read(length)
                if len(payload) == length:
                    message: ToWorker = self._codec.message(payload)
                    return message
        return None

    def send(self, message: FromWorker) -> None:
        """Sends a message, which is lost if the server has closed its end."""
        frame = memoryview(self._codec.frame(message))
        with self._changed:
            while self._bytes > MAX_WAITING:
                self._changed.wait()
            if not self._waiting:
                frame = frame[self._sent(frame) :]
            if frame:
                self._waiting.append(frame)
                self._bytes += len(frame)
                self._changed.notify_all()

    def drain(self) -> None:
        """Waits until everything is written."""
        with self._changed:
            while self._waiting:
                self._changed.wait()

    def _sent(self, frame: memoryview) -> int:
        """Sends what the socket takes now; returns the number of bytes."""
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frame)  # the reader notices it and ends the process

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                frame = self._waiting[0]
            with suppress(OSError):
                self._socket.sendall(frame)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= len(frame)
                self._changed.notify_all()
