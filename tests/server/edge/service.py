"""A small application behind the edge, served on loopback, and a client that sends any bytes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.base import Dialect
from twofold.api.openai.errors import OpenAIDialect
from twofold.core.errors import NotFoundError, TwofoldError
from twofold.server.edge.body import ClientGoneError, check_json_type, decode_json, read_body
from twofold.server.edge.keys import KeyRing
from twofold.server.edge.limits import BodyLimits, ConnectionLimits
from twofold.server.edge.middleware import EdgeMiddleware
from twofold.server.edge.protocol import EdgeServer
from twofold.server.edge.refusals import RawResponse, error_response

PATIENCE_S = 60.0
CHUNK = b"x" * 16384


def dialect_of(path: str) -> Dialect:
    return AnthropicDialect() if path.startswith("/v1/messages") else OpenAIDialect()


@dataclass
class Service:
    """An application that records its requests; its paths are the branches of ``__call__``."""

    body: BodyLimits = field(default_factory=BodyLimits)
    left: int = 0
    sent_bytes: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await serve_lifespan(receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except ClientGoneError:
            self.left += 1
        except TwofoldError as error:
            await error_response(dialect_of(scope["path"]), error, scope["state"]["request_id"]).send(send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/health":
                await reply({"ok": True}, send)
            case "/echo" | "/v1/messages":
                headers = Headers(scope=scope)
                check_json_type(headers)
                await reply({"got": decode_json(await read_body(headers, receive, self.body), self.body)}, send)
            case "/refuse":
                raise NotFoundError("Nothing is here.")
            case "/wait":
                await self._wait(receive)
            case "/flood":
                flood = asyncio.create_task(self._flood(send))
                await self._wait(receive)
                flood.cancel()
            case "/large":
                await RawResponse(200, (), b"y" * 3_000_000).send(send)
            case _:
                raise NotFoundError("There is no such path.")

    async def _wait(self, receive: Receive) -> None:
        """Waits until the client leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left += 1

    async def _flood(self, send: Send) -> None:
        """Sends without end."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            self.sent_bytes += len(CHUNK)
            await asyncio.sleep(0)


async def serve_lifespan(receive: Receive, send: Send) -> None:
    for word in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{word}.complete"})


async def reply(content: Any, send: Send) -> None:
    body = orjson.dumps(content)
    headers = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
    await RawResponse(200, headers, body).send(send)


@dataclass(frozen=True)
class Running:
    """A server that runs in a thread."""

    port: int
    service: Service
    server: EdgeServer

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", self.port))
        return client

    def exchange(self, *parts: bytes, pause_s: float = 0.0) -> bytes:
        """Sends parts; returns all bytes until the server closes the connection."""
        with self.connect() as client:
            for part in parts:
                try:
                    client.sendall(part)
                except OSError:
                    break
                time.sleep(pause_s)
            return read_all(client)

    @property
    def open_connections(self) -> int:
        return len(self.server.server_state.connections)


@contextmanager
def running(
    limits: ConnectionLimits, *, keys: Callable[[], KeyRing] = lambda: KeyRing(required=False), **rest: Any
) -> Iterator[Running]:
    """Serves the application; ``rest`` are fields of Service."""
    service = Service(**rest)
    app = EdgeMiddleware(service, keys, dialect_of)
    listener = socket.create_server(("127.0.0.1", 0))
    server = EdgeServer(app, limits, dialect_of)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield Running(listener.getsockname()[1], service, server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def read_all(client: socket.socket) -> bytes:
    """All bytes until the other side closes or resets. Raises socket.timeout if it does neither."""
    data = bytearray()
    try:
        while piece := client.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return bytes(data)


def wait_for(true: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request that asks the server to close afterwards."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str, close: bool = True) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: localhost", *headers, *(["connection: close"] if close else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def status_of(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def body_of(response: bytes) -> Any:
    return orjson.loads(response.partition(b"\r\n\r\n")[2])


def headers_of(response: bytes) -> dict[str, str]:
    lines = response.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
