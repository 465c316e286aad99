"""Clients that disconnect at any time: their resources are freed, and their completed work is counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, Final

from tests.server.beats import pace
from tests.server.live import LiveServer
from tests.server.trust.client import CHAT, MESSAGES, Client, chat, endless, message, percentile
from tests.server.trust.state import memory_of, processor_s, quiet

FREED_S: Final = 0.1
"""Processor time of the worker between a client's leaving and the request's end, besides the running step."""
PAGE_S: Final = 1.1
"""So old may the page of metrics be."""
BODIES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (CHAT, endless()),
    (CHAT, chat(ignore_eos=True)),
    (CHAT, endless(n=3)),
    (CHAT, chat("choose", stream=True, response_format={"type": "json_object"})),
    (MESSAGES, message(max_tokens=400, stream=True)),
    ("/v1/completions", {"model": "tiny", "prompt": ["a", "b", "c"], "stream": True, "ignore_eos": True}),
    ("/v1/responses", {"model": "tiny", "input": "hello", "stream": True}),
    ("/v1/embeddings", {"model": "tiny", "input": ["a", "b"]}),
)


async def _leave_before_the_body(client: Client, path: str, body: Any, name: str) -> None:
    data = client.bytes("POST", path, body, x_request_id=name)
    _, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(data[: random.Random(name).randrange(1, len(data))])
    await writer.drain()
    writer.transport.abort()


async def _leave_soon(client: Client, path: str, body: Any, name: str) -> None:
    exchange = await client.send("POST", path, body, x_request_id=name)
    await asyncio.sleep(random.Random(name).uniform(0, 0.05))
    exchange.leave()


async def _leave_while_reading(client: Client, path: str, body: Any, name: str) -> None:
    exchange = await client.send("POST", path, body, x_request_id=name)
    await exchange.head()
    most = random.Random(name).randrange(1, 60)
    async for _ in exchange.chunks():
        most -= 1
        if not most:
            break
    exchange.leave()


LEAVING: Final[tuple[Callable[[Client, str, Any, str], Awaitable[None]], ...]] = (
    _leave_before_the_body,
    _leave_soon,
    _leave_while_reading,
)


def test_two_hundred_disconnects_at_any_time_leave_nothing(client: Client) -> None:
    count = 200

    async def leave(number: int, limit: asyncio.Semaphore) -> None:
        path, body = BODIES[number % len(BODIES)]
        async with limit:
            await LEAVING[number % len(LEAVING)](client, path, body, f"leaving-{number}")

    async def crowd() -> list[dict[str, Any]]:
        limit = asyncio.Semaphore(32)
        await asyncio.gather(*(leave(number, limit) for number in range(count)))
        assert not any((await quiet(client)).values())
        assert (await client.chat(max_tokens=3)).status == 200
        records = [await client.get(f"/v1/twofold/requests/leaving-{number}") for number in range(count)]
        return [record.json for record in records if record.status == 200]

    records = asyncio.run(crowd())
    gone = [record for record in records if record["status"] == 499]
    assert len(gone) > count // 4
    assert sum(record["tokens"]["output"] for record in gone) > 0


def test_blocks_are_free_again_within_a_step(server: LiveServer) -> None:
    """A request is recorded after the engine has freed its resources."""
    client = Client(server.url)
    (worker,) = server.worker_pids()

    async def leave(number: int) -> float:
        name = f"prompt-{number}"
        exchange = await client.send("POST", CHAT, endless(), x_request_id=name)
        await exchange.head()
        await anext(aiter(exchange.chunks()))
        left = processor_s(worker)
        exchange.leave()
        while (await client.get(f"/v1/twofold/requests/{name}")).status != 200:
            await asyncio.sleep(0.002)
        return processor_s(worker) - left

    async def all_of_them() -> list[float]:
        return [await leave(number) for number in range(40)]

    took = asyncio.run(all_of_them())
    assert percentile(took, 0.9) <= FREED_S * pace(), took


async def settled(client: Client) -> float:
    """How many tokens were generated, once the engine holds nothing and two pages of metrics in a row say the same."""
    name, found = 'vllm:generation_tokens_total{engine="0",model_name="tiny"}', [-1.0]
    while found[-1:] != found[-2:-1]:
        assert not any((await quiet(client)).values())
        await asyncio.sleep(PAGE_S)
        found.append((await client.metrics()).get(name, 0.0))
    return found[-1]


def test_work_for_a_disconnected_client_is_counted(client: Client) -> None:
    async def leave() -> tuple[int, dict[str, Any], float, float]:
        before = await settled(client)
        exchange = await client.send("POST", CHAT, endless(), x_request_id="left-early")
        await exchange.head()
        read = 0
        async for chunk in exchange.chunks():
            read += chunk.count(b"data: ")
            if read > 20:
                break
        exchange.leave()
        after = await settled(client)
        record = await client.get("/v1/twofold/requests/left-early")
        return read, record.json, before, after

    read, record, before, after = asyncio.run(leave())
    assert record["status"] == 499
    assert record["prompts"][0]["finish_reasons"] == ["abort"]
    assert read - 2 <= record["tokens"]["output"] < 500
    assert record["prompts"][0]["decode"]["machine_s"] > 0
    assert after - before == record["tokens"]["output"]


def test_memory_does_not_grow(server: LiveServer) -> None:
    """By how much further requests make all processes grow, once there are as many records as are kept: by at most
    1 KiB each, and a piece of 1 MiB that the allocator takes. ``benchmarks.soak`` holds 1 KiB over 10,000 requests."""
    rounds = 400

    async def growth() -> list[int]:
        memory = [await _many(server, 1_100, leaves=True)]
        memory += [await _many(server, rounds, leaves=leaves) for leaves in (False, True)]
        return [after - before for before, after in pairwise(memory)]

    grown = asyncio.run(growth())
    assert max(grown) <= 1024 * rounds + (1 << 20), f"{[size / rounds for size in grown]} bytes a request"


async def _many(server: LiveServer, count: int, *, leaves: bool) -> int:
    """Sends so many requests; the memory of all processes afterwards."""
    client, limit = Client(server.url), asyncio.Semaphore(16)

    async def one() -> None:
        async with limit:
            exchange = await client.send("POST", CHAT, endless(max_tokens=300 if leaves else 4))
            await exchange.head()
            if leaves:
                exchange.leave()
            else:
                await exchange.rest()

    await asyncio.gather(*(one() for _ in range(count)))
    assert not any((await quiet(client)).values())
    return memory_of([server.process.pid, *server.worker_pids()])
