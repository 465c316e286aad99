"""Clients that send large bodies delay no other client and do not fill the server's memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from tests.server.beats import Beats, check_held, watched_server
from tests.server.live import LiveServer
from tests.server.trust.client import CHAT, Client, Reply, chat
from tests.server.trust.state import memory_of
from tests.support.tiny import TinyModel
from twofold.core.errors import BusyError
from twofold.server.edge.body import ClientGoneError, read_body
from twofold.server.edge.limits import MIB, BodyLimits
from twofold.server.pool import ByteBudget

SIZE: Final = 2_000_000
ATTACKERS: Final = 8
HELD_S: Final = 0.05
"""Processor time that the server may take between two turns of its event loop beside large bodies; it was up to 5 s."""
KEPT: Final = 150 << 20
COMPLETIONS: Final = "/v1/completions"
FLOODS: Final[dict[str, tuple[str, bytes]]] = {
    "digits": (COMPLETIONS, json.dumps({"model": "tiny", "prompt": "1" * SIZE}).encode()),
    "brackets": (CHAT, json.dumps(chat("<" * SIZE)).encode()),
    "choice": (CHAT, b'{"reasoning_effort":[%b],' % b",".join([b"9e15"] * 260_000) + json.dumps(chat()).encode()[1:]),
    "field": (COMPLETIONS, json.dumps({"x" * SIZE: 1}).encode()),
    "messages": (CHAT, json.dumps(chat() | {"messages": [{"role": "user", "content": "x"}] * 4096}).encode()),
}


@pytest.fixture(scope="module")
def flooded(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, Beats]]:
    with watched_server(tmp_path_factory.mktemp("flood"), f"tiny={tiny.path}", "--threads", "1") as watched:
        yield watched


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_large_bodies_delays_no_other_client(flooded: tuple[LiveServer, Beats], kind: str) -> None:
    path, body = FLOODS[kind]
    server, beats = flooded
    client = Client(server.url)

    async def flood() -> tuple[list[Reply], list[Reply]]:
        attack = [asyncio.create_task(client.ask("POST", path, body)) for _ in range(ATTACKERS)]
        short = [await client.chat("hello " * 80, max_tokens=1) for _ in range(3)]
        return await asyncio.gather(*attack), short

    before = memory_of([server.process.pid])
    with beats.watched() as held:
        attacks, short = asyncio.run(flood())
    assert {reply.status for reply in attacks} <= {400, 503}
    assert 400 in {reply.status for reply in attacks}
    assert all(len(reply.body) < 2048 for reply in attacks)
    assert [reply.status for reply in short] == [200] * 3
    check_held(held, HELD_S)
    until_quiet(lambda: memory_of([server.process.pid]) - before <= KEPT)


def until_quiet(true: Callable[[], bool]) -> None:
    """Memory goes back a moment after the last answer."""

    async def wait() -> None:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.1)

    asyncio.run(wait())


def test_bodies_are_bounded_together() -> None:
    """Of many unfinished bodies, some are refused; a small one is read meanwhile. All bytes are given back."""
    limits, shares, gone = BodyLimits(), ByteBudget(8 * MIB), asyncio.Event()
    waiting: list[int] = []

    async def read(size: int, held: list[int]) -> bytes:
        left = [b"x" * 65536] * (size // 65536)

        async def receive() -> Message:
            if not left and size > MIB:
                waiting.append(size)
                await gone.wait()
                raise ClientGoneError
            return {"type": "http.request", "body": left.pop() if left else b"", "more_body": bool(left) or size > MIB}

        def hold(size: int) -> None:
            shares.take("caller", size)
            held.append(size)

        try:
            return await read_body(Headers({}), receive, limits, hold)
        finally:
            for size_held in held:
                shares.give("caller", size_held)

    async def flood() -> list[bytes | BaseException]:
        large = [asyncio.create_task(read(SIZE, [])) for _ in range(24)]
        while len(waiting) + sum(task.done() for task in large) < len(large):
            await asyncio.sleep(0)
        assert 2 * MIB < shares.total <= 8 * MIB
        assert len(await read(65536, [])) == 65536
        gone.set()
        return await asyncio.gather(*large, return_exceptions=True)

    ended = asyncio.run(flood())
    assert {type(end) for end in ended} == {BusyError, ClientGoneError}
    assert shares.total == 0
