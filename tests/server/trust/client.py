"""A simple client: raw HTTP/1.1 on asyncio, with one connection for each request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from twofold.core.ranks import nearest_rank

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
PATIENCE_S: Final = 60.0
"""Whatever a server does, a test ends."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete response; ``seconds`` from the connection to its last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """What stands after ``data:`` in each event."""
        return [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]


class Exchange:
    """A request that was sent. Bytes of its answer come as chunks; ``leave`` cuts the connection.

    ``bodiless`` is set where an answer has no body, whatever its headers say: after HEAD.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, began: float) -> None:
        self._reader = reader
        self._writer = writer
        self._began = began
        self.bodiless = False
        self.status = 0
        self.headers: dict[str, str] = {}

    async def head(self) -> None:
        """Reads the status and the headers."""
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        pairs = (line.partition(":") for line in lines[1:] if line)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises IncompleteReadError if the connection ends before the body."""
        if self.bodiless:
            return
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            yield await self._reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readline() or b"x", 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    async def rest(self) -> Reply:
        """All bytes after the head; then closes the connection."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                body = b"".join([chunk async for chunk in self.chunks()])
        finally:
            await self.close()
        return Reply(self.status, self.headers, body, time.monotonic() - self._began)

    def leave(self) -> None:
        """Goes away at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@dataclass(frozen=True, slots=True)
class Client:
    """Asks the server at ``url``, with these headers in each request."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()

    def using(self, key: str) -> Client:
        """The same with an API key."""
        return Client(self.url, (*self.headers, ("Authorization", f"Bearer {key}")))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Exchange:
        """Sends a request; nothing is read yet."""
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        writer.write(self.bytes(method, path, body, **headers))
        return Exchange(reader, writer, began)

    def bytes(self, method: str, path: str, body: Any = None, **headers: str) -> bytes:
        """The bytes of a request."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", "Content-Length": str(len(data))}
        if data:
            named["Content-Type"] = "application/json"
        named |= dict(self.headers) | {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Sends a request and reads the answer."""
        exchange = await self.send(method, path, body, **headers)
        exchange.bodiless = method == "HEAD"
        try:
            await exchange.head()
        except BaseException:
            exchange.leave()
            raise
        return await exchange.rest()

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.ask("GET", path, **headers)

    async def chat(self, text: str = "hello", **more: Any) -> Reply:
        """A chat of one message."""
        return await self.ask("POST", CHAT, chat(text, **more))

    async def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name with labels; the page may be a second old."""
        page = await self.get("/metrics")
        lines = (line for line in page.body.decode().splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    """A body for chat completions."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}


def message(text: str = "hello", **more: Any) -> dict[str, Any]:
    """A body for messages."""
    return {"model": "tiny", "max_tokens": 16, "messages": [{"role": "user", "content": text}], **more}


def endless(**more: Any) -> dict[str, Any]:
    """A stream as long as the model's context."""
    return chat(stream=True, ignore_eos=True, temperature=0, **more)


def percentile(values: Sequence[float], share: float) -> float:
    return nearest_rank(sorted(values), share)


@asynccontextmanager
async def watched(client: Client, path: str = "/health", every_s: float = 0.02) -> AsyncIterator[list[float]]:
    """Asks for ``path`` again and again meanwhile; how long each answer took."""
    took: list[float] = []

    async def watch() -> None:
        while True:
            reply = await client.get(path)
            assert reply.status == 200, reply.body
            took.append(reply.seconds)
            await asyncio.sleep(every_s)

    watching = asyncio.create_task(watch())
    try:
        yield took
    finally:
        watching.cancel()
        ended = (await asyncio.gather(watching, return_exceptions=True))[0]
    assert isinstance(ended, asyncio.CancelledError), ended
