"""/health responds in time under every load, and /ready succeeds only while the server is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.server.live import LiveServer, live_server
from tests.server.trust.client import CHAT, Client, Exchange, chat, endless, percentile, watched
from tests.support.tiny import TinyModel, TinyOptions

HEALTH_S: Final = 0.05
HAMMERED: Final = 6
SEQUENCES: Final = 4
CONTEXT: Final = 8192


@pytest.fixture(scope="module")
def busy(tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server for few sequences, with a second model that is loaded on demand."""
    long, other = tiny_gguf(TinyOptions(context=CONTEXT)), tiny_gguf(TinyOptions("qwen2", vocab=20_000))
    arguments = ("--threads", "1", "--max-num-seqs", f"{SEQUENCES}", "--max-num-queued-reqs", "8")
    with live_server(tmp_path_factory.mktemp("busy"), f"tiny={long.path}", f"other={other.path}", *arguments) as server:
        yield Client(server.url)


def test_health_while_clients_hammer(busy: Client, slack: float) -> None:
    """Ten times as many clients as there are sequences, each asking again as soon as it was answered or refused: as
    much as one process can refuse, so only some multiple of the promise holds. That of ten times the load is held by
    test_pressure.py."""

    async def hammer() -> tuple[list[float], set[int]]:
        loop, statuses = asyncio.get_running_loop(), set()
        until = loop.time() + 2

        async def insist() -> None:
            while loop.time() < until:
                reply = await busy.chat(max_tokens=100, ignore_eos=True)
                statuses.add(reply.status)

        async with watched(busy) as took:
            await asyncio.gather(*(insist() for _ in range(10 * SEQUENCES)))
        return took, statuses

    took, statuses = asyncio.run(hammer())
    assert statuses == {200, 503}
    assert percentile(took, 0.99) <= HAMMERED * HEALTH_S * slack, (percentile(took, 0.99), max(took), len(took))


def test_health_during_a_long_prefill(busy: Client, slack: float) -> None:
    async def prefill() -> list[float]:
        async with watched(busy) as took:
            replies = await asyncio.gather(*(busy.chat(f"{n} word" * 1200, max_tokens=1) for n in range(SEQUENCES)))
        assert [reply.status for reply in replies] == [200] * SEQUENCES
        assert replies[0].json["usage"]["prompt_tokens"] > CONTEXT / 2
        return took

    took = asyncio.run(prefill())
    assert percentile(took, 0.99) <= HEALTH_S * slack, (percentile(took, 0.99), max(took), len(took))


def test_health_while_another_model_loads(busy: Client, slack: float) -> None:
    async def load() -> list[float]:
        async with watched(busy, every_s=0.005) as took:
            reply = await busy.ask("POST", CHAT, chat(max_tokens=1) | {"model": "other"})
        assert reply.status == 200, reply.body
        return took

    took = asyncio.run(load())
    assert percentile(took, 0.99) <= HEALTH_S * slack, (percentile(took, 0.99), max(took), len(took))


class _Kept(Exchange):
    """A connection that is used for several requests."""

    @classmethod
    async def open(cls, client: Client) -> _Kept:
        return cls(client, *await asyncio.open_connection("127.0.0.1", client.port))

    def __init__(self, client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer, 0.0)
        self._client = client
        self.writer = writer

    async def get(self, path: str) -> int:
        """The status of the response."""
        self.writer.write(self._client.bytes("GET", path, Connection="keep-alive"))
        await self.head()
        assert b"".join([chunk async for chunk in self.chunks()])
        return self.status


def test_ready_only_between_its_self_test_and_its_end(tiny: TinyModel, tmp_path: Path) -> None:
    """During shutdown, /ready fails on open connections and /health succeeds."""

    async def drain(server: LiveServer) -> tuple[int, int, int]:
        client = Client(server.url)
        ready = (await client.get("/ready")).status
        streams = [await client.send("POST", CHAT, endless()) for _ in range(8)]
        await streams[0].head()
        kept = await _Kept.open(client)  # before it stops to listen
        assert await kept.get("/health") == 200
        server.process.terminate()
        while (found := await kept.get("/ready")) == 200:  # until the signal has arrived
            await asyncio.sleep(0.01)
        health = await kept.get("/health")
        kept.writer.transport.abort()
        for stream in streams:
            stream.leave()
        return ready, found, health

    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--max-num-seqs", "1") as server:
        assert asyncio.run(drain(server)) == (200, 503, 200)


@pytest.mark.model
def test_health_while_real_models_load(
    default_model: Path, model_path: Callable[[str], Path], tmp_path: Path, slack: float
) -> None:
    """Vocabularies of 150,000 and 262,000 tokens."""
    others = {"gemma": model_path("gemma3-270m"), "qwen": model_path("qwen2.5-coder-0.5b")}

    async def load(client: Client) -> list[float]:
        async with watched(client, every_s=0.005) as took:
            for name in others:
                reply = await client.ask("POST", "/v1/completions", {"model": name, "prompt": "A", "max_tokens": 1})
                assert reply.status == 200, reply.body
        return took

    names = [f"{name}={path}" for name, path in others.items()]
    context = ("--threads", "1", "--max-model-len", "512")
    with live_server(tmp_path, f"tiny={default_model}", *names, *context) as server:
        took = asyncio.run(load(Client(server.url)))
    assert percentile(took, 0.99) <= HEALTH_S * slack, (percentile(took, 0.99), max(took), len(took))
