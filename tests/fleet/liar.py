"""A node that joins a hub as usual and then sends the messages that a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.fleet.conftest import ENGINE, QUICK
from twofold.core.request import EngineRequest
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import FleetAddress, NodeListener, check_node
from twofold.fleet.link import NodeLink
from twofold.fleet.messages import LENGTH, Beat, Codec, FromHub, Hello, ToService, ToTransfer
from twofold.fleet.reading import ModelReading
from twofold.fleet.routing.router import RoundRobin
from twofold.formats.identity import file_digest
from twofold.host.versions import NUMERICS, twofold_version

BEAT_S = 0.1
Answer = Callable[[Any], Iterator[Any]]


@asynccontextmanager
async def hub(reading: ModelReading, replicas: int = 1) -> AsyncIterator[tuple[Fleet, int]]:
    """A model with replicas of its own, ready, and the port for nodes."""
    model = Fleet("tiny", reading, ENGINE, policy=QUICK, replicas=replicas, router=RoundRobin(), routes=True)
    digest = file_digest(reading.parts)

    async def admit(node: NodeLink, hello: Hello) -> None:
        check_node(hello, digest)
        model.join(node)

    listener = NodeListener(FleetAddress("127.0.0.1", 0, None), admit)
    await listener.start()
    try:
        await model.start()
        yield model, listener.port
    finally:
        await model.close()
        await listener.close()


class Liar:
    """``answer`` gives the messages that it sends after each of the hub's. ``asked`` are the requests that it got, and
    ``gone`` is set when the hub has ended the connection."""

    def __init__(self, reading: ModelReading, answer: Answer = lambda _: iter(())) -> None:
        self.asked: list[EngineRequest] = []
        self.gone = asyncio.Event()
        self._reading, self._answer = reading, answer
        self._codec = Codec(FromHub | ToService | ToTransfer)
        self._writer: asyncio.StreamWriter | None = None

    def say(self, *messages: Any) -> None:
        assert self._writer is not None
        for message in messages:
            self._writer.write(message if isinstance(message, bytes) else self._codec.frame(message))

    @asynccontextmanager
    async def joined(self, port: int, *first: Any) -> AsyncIterator[Liar]:
        """It has joined, and said the messages ``first``."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self.say(Hello(twofold_version(), NUMERICS, "liar", "tiny", file_digest(self._reading.parts)))
        tasks = [asyncio.create_task(self._hear(reader, first)), asyncio.create_task(self._beat())]
        try:
            yield self
        finally:
            self._writer.transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self, reader: asyncio.StreamReader, first: tuple[Any, ...]) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                message = self._codec.message(await reader.readexactly(length))
                said, first = first, ()
                self.say(*said)
                if isinstance(message, EngineRequest):
                    self.asked.append(message)
                self.say(*self._answer(message))
        self.gone.set()

    async def _beat(self) -> None:
        while not self.gone.is_set():
            await asyncio.sleep(BEAT_S)
            self.say(Beat())
