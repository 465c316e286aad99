"""A worker's end of a connection to the server."""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from twofold.fleet.messages import LENGTH, Codec, FromWorker, ToWorker

MAX_UNSENT: Final = 64 << 20
"""Maximum bytes that wait until the server reads them."""


class Channel:
    """Messages over a connected socket. Any thread may send; one thread receives.

    If more than MAX_UNSENT bytes wait, a ``patient`` channel makes senders wait. Any other channel closes the
    connection, because its senders must not delay other hubs.
    """

    def __init__(self, connection: socket.socket, *, patient: bool = True) -> None:
        connection.setblocking(True)
        self._patient = patient
        self._socket = connection
        self._file = connection.makefile("rb")
        self._codec = Codec(ToWorker)
        self._waiting: deque[memoryview] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._over = False
        self._writer = threading.Thread(target=self._write, name="twofold-write", daemon=True)
        self._writer.start()

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
            if self._full and not self._patient:
                self.hang_up()
            while self._full and self._patient and not self._over:
                self._changed.wait()
            if self._over:
                return
            if not self._waiting:
                frame = frame[self._sent(frame) :]
            if frame:
                self._waiting.append(frame)
                self._bytes += len(frame)
                self._changed.notify_all()

    @property
    def _full(self) -> bool:
        """Whether more than MAX_UNSENT bytes wait besides the frame that is being written."""
        return self._bytes - (len(self._waiting[0]) if self._waiting else 0) > MAX_UNSENT

    def hang_up(self) -> None:
        """Ends the connection, for both sides; what was not sent is lost."""
        self._over = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket; to be called once, by the thread that received. Nothing is sent any more."""
        self.hang_up()
        with self._changed:
            self._changed.notify_all()
        self._writer.join()
        self._file.close()
        self._socket.close()

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
            return len(frame)  # the reader notices the end of the server and ends the process

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._over:
                    self._changed.wait()
                if self._over:
                    self._waiting.clear()
                    self._changed.notify_all()
                    return
                frame = self._waiting[0]
            with suppress(OSError):
                self._socket.sendall(frame)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= len(frame)
                self._changed.notify_all()
