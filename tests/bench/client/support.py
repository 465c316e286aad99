"""Support for tests of the client: a plain load and endpoint, and servers that run a test's script."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from twofold.bench.client.loop import ClientOptions, LoadClient
from twofold.bench.client.target import ServerTarget
from twofold.bench.endpoints.endpoint import ApiEndpoint, BodyReader
from twofold.bench.load.base import Ask, EndedRequest
from twofold.bench.record import RecordedResponse, RequestSample, RunRecord

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def streamed(*texts: str) -> bytes:
    """A whole response with an event for each text, and the event that ends the stream."""
    return STREAM + b"".join(chunk(b"data: %b\n\n" % text.encode()) for text in (*texts, "[DONE]")) + LAST


def whole(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Told", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class PlainReader:
    """Reads events of plain text: ``[DONE]`` ends the stream, ``!…`` is an error, and ``?`` is invalid."""

    def __init__(self, response: RecordedResponse) -> None:
        self._response = response

    def event(self, name: str | None, data: bytes, moment: float) -> None:  # noqa: ARG002 - no event has one
        text = data.decode()
        if text == "[DONE]":
            self._response.done = True
        elif text == "?":
            raise ValueError("has a question mark")
        elif text.startswith("!"):
            self._response.error = text[1:]
        elif text:
            self._response.chunk(moment, text, 1)
        else:
            self._response.empty += 1

    def whole(self, body: bytes, moment: float) -> None:
        self._response.chunk(moment, body.decode())


class PlainEndpoint(ApiEndpoint):
    def __init__(self, **headers: str) -> None:
        self.path, self.headers = "/v1/plain", headers

    def body(self, ask: Ask) -> bytes:
        return json.dumps({"index": ask.index, "pad": "x" * ask.input_tokens}).encode()

    def reader(self, response: RecordedResponse) -> BodyReader:
        return PlainReader(response)


@dataclass
class PlainLoad:
    """Requests that are due at these times. ``next_one`` returns the request that follows an ended one."""

    due: tuple[float, ...]
    max_open: int | None = None
    pad: int = 0
    told: dict[str, Any] = field(default_factory=lambda: {"kind": "plain"})
    next_one: Callable[[EndedRequest, float], Ask | None] = lambda _sample, _now_s: None

    def describe(self) -> Mapping[str, Any]:
        return self.told

    def begin(self) -> Iterator[Ask]:
        return (Ask(index, due_s, self.pad, 4) for index, due_s in enumerate(self.due))

    def follow(self, sample: EndedRequest, now_s: float) -> Ask | None:
        return self.next_one(sample, now_s)


class Talk:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._read = b""

    def request(self) -> tuple[dict[str, str], dict[str, Any]] | None:
        """The next request's headers and body; None when the client has closed."""
        while b"\r\n\r\n" not in self._read:
            if not self._more():
                return None
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {"request": first} | dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("content-length", "0"))
        while len(self._read) < length:
            if not self._more():
                return None
        body, self._read = self._read[:length], self._read[length:]
        return headers, json.loads(body) if body else {}

    def _more(self) -> bool:
        data = self._sock.recv(65536)
        self._read += data
        return bool(data)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def reset(self) -> None:
        """Ends the connection with an RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._sock.close()


Serve = Callable[[Talk, int], None]
"""Serves one connection; the number counts connections from 0."""


@contextlib.contextmanager
def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server on loopback with a thread for each connection; yields its authority."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def talk(sock: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            secured = tls.wrap_socket(sock, server_side=True) if tls is not None else sock
            with secured:
                serve(Talk(secured), number)
        sock.close()

    def accept() -> None:
        number = 0
        while True:
            sock, _ = listener.accept()
            if ended.is_set():
                sock.close()
                return
            threads.append(threading.Thread(target=talk, args=(sock, number)))
            threads[-1].start()
            number += 1

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    host, port = listener.getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        ended.set()
        socket.create_connection((host, port)).close()
        acceptor.join()
        for thread in threads:
            thread.join()
        listener.close()


def each(*responses: bytes) -> Serve:
    """Sends these responses to the requests of each connection, and the last one to all further requests."""

    def serve(talk: Talk, _number: int) -> None:
        index = 0
        while talk.request() is not None:
            talk.send(responses[min(index, len(responses) - 1)])
            index += 1

    return serve


def asked(
    serve: Serve,
    load: PlainLoad,
    options: ClientOptions | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    target: Callable[[str], ServerTarget] = ServerTarget.of,
) -> RunRecord:
    """The record of ``load`` sent to a server that runs ``serve``."""
    with serving(serve, tls) as authority, LoadClient(target(authority), PlainEndpoint(), options) as client:
        return client.run(load)


def only(record: RunRecord) -> RequestSample:
    (sample,) = record.samples
    return sample


def paced(talk: Talk, *gaps: float) -> None:
    """Sends a stream with these gaps between its events."""
    talk.request()
    talk.send(STREAM)
    for gap in gaps:
        time.sleep(gap)
        talk.send(chunk(b"data: x\n\n"))
    talk.send(chunk(b"data: [DONE]\n\n") + LAST)
