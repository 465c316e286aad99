"""Under every load the event loop, and so /health, is held only shortly; /ready succeeds only while it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.server.beats import Beats, check_held, watched_server
from tests.server.live import LiveServer, live_server
from tests.server.trust.client import CHAT, Client, Exchange, chat, endless
from tests.support.tiny import TinyModel, TinyOptions

HELD_S: Final = 0.05
"""Processor time that the server may take between two turns of its event loop."""
SEQUENCES: Final = 4
CONTEXT: Final = 8192


@pytest.fixture(scope="module")
def busy(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Client, Beats]]:
    """A server for few sequences, with a second model that is loaded on demand."""
    long, other = tiny_gguf(TinyOptions(context=CONTEXT)), tiny_gguf(TinyOptions("qwen2", vocab=20_000))
    models = (f"tiny={long.path}", f"other={other.path}")
    arguments = ("--threads", "1", "--max-num-seqs", f"{SEQUENCES}", "--max-num-queued-reqs", "8")
    with watched_server(tmp_path_factory.mktemp("busy"), *models, *arguments) as (server, beats):
        yield Client(server.url), beats


def test_health_while_clients_hammer(busy: tuple[Client, Beats]) -> None:
    """Ten times as many clients as there are sequences, each asking again as soon as it was answered or refused."""
    client, beats = busy

    async def hammer() -> set[int]:
        loop, statuses = asyncio.get_running_loop(), set()
        until = loop.time() + 2

        async def insist() -> None:
            while loop.time() < until:
                reply = await client.chat(max_tokens=100, ignore_eos=True)
                statuses.add(reply.status)

        await asyncio.gather(*(insist() for _ in range(10 * SEQUENCES)))
        return statuses

    with beats.watched() as held:
        assert asyncio.run(hammer()) == {200, 503}
    check_held(held, HELD_S)


def test_health_during_a_long_prefill(busy: tuple[Client, Beats]) -> None:
    client, beats = busy

    async def prefill() -> None:
        replies = await asyncio.gather(*(client.chat(f"{n} word" * 1200, max_tokens=1) for n in range(SEQUENCES)))
        assert [reply.status for reply in replies] == [200] * SEQUENCES
        assert replies[0].json["usage"]["prompt_tokens"] > CONTEXT / 2

    with beats.watched() as held:
        asyncio.run(prefill())
    check_held(held, HELD_S)


def test_health_while_another_model_loads(busy: tuple[Client, Beats]) -> None:
    client, beats = busy
    with beats.watched() as held:
        reply = asyncio.run(client.ask("POST", CHAT, chat(max_tokens=1) | {"model": "other"}))
    assert reply.status == 200, reply.body
    check_held(held, HELD_S)


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
def test_health_while_real_models_load(default_model: Path, model_path: Callable[[str], Path], tmp_path: Path) -> None:
    """Vocabularies of 150,000 and 262,000 tokens."""
    others = {"gemma": model_path("gemma3-270m"), "qwen": model_path("qwen2.5-coder-0.5b")}

    async def load(client: Client) -> None:
        for name in others:
            reply = await client.ask("POST", "/v1/completions", {"model": name, "prompt": "A", "max_tokens": 1})
            assert reply.status == 200, reply.body

    names = [f"{name}={path}" for name, path in others.items()]
    context = ("--threads", "1", "--max-model-len", "512")
    with (
        watched_server(tmp_path, f"tiny={default_model}", *names, *context) as (server, beats),
        beats.watched() as held,
    ):
        asyncio.run(load(Client(server.url)))
    check_held(held, HELD_S)
