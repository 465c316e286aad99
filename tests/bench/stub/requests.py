"""The HTTP/1.1 of the stub: reads requests from bytes, and when the bytes arrived."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final

import orjson

STAMP: Final = 35
"""SO_TIMESTAMPNS of Linux."""
READ_BYTES: Final = 1 << 18
SURE_S: Final = 2e-5
"""Two clocks that were read further apart than this are read again."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        told = orjson.loads(self.body)
        assert isinstance(told, dict)
        return told


def take_request(inbox: bytearray) -> Request | None:
    """Removes and returns the first request in the received bytes; None if it is incomplete."""
    end = inbox.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = inbox[:end].decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    until = end + 4 + int(headers.get("content-length", "0"))
    if len(inbox) < until:
        return None
    method, path, _ = first.split(" ")
    body = bytes(inbox[end + 4 : until])
    del inbox[:until]
    return Request(method, path, headers, body)


def read(link: socket.socket) -> tuple[bytes, float]:
    """Received bytes, b"" at the end of the stream, and when the kernel received them (monotonic clock)."""
    data, extra, _, _ = link.recvmsg(READ_BYTES, 64)
    wall, now = _clocks()
    for level, kind, value in extra:
        if (level, kind) == (socket.SOL_SOCKET, STAMP):
            seconds, nanoseconds = struct.unpack("qq", value)
            return data, now - (wall - (seconds + nanoseconds * 1e-9))
    return data, now


def count_tokens(told: dict[str, Any]) -> int:
    """Tokens of a prompt: its words; of messages: three more for each, and two for the generation prompt."""
    prompt = told.get("prompt")
    if prompt is not None:
        return len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    return 2 + sum(3 + len(str(message["content"]).split()) for message in told.get("messages", ()))


def _clocks() -> tuple[float, float]:
    """Wall clock and monotonic clock at one moment."""
    while True:
        before = time.perf_counter()
        wall = time.time()
        after = time.perf_counter()
        if after - before < SURE_S:
            return wall, (before + after) / 2
