"""Several hubs over the same workers: one copy of the model, and what happens to one hub does not reach the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.conftest import ENGINE, LONG, QUICK, job_of, until, whole
from tests.fleet.test_nodes import ended
from twofold.core.errors import ParameterError
from twofold.core.request import RequestOptions
from twofold.engine.llm import LLM
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import FleetAddress, NodeListener, check_node
from twofold.fleet.link import NodeLink
from twofold.fleet.messages import Hello
from twofold.fleet.node import NodeSettings, serve_hubs
from twofold.fleet.reading import ModelReading, file_digest


@asynccontextmanager
async def hub(reading: ModelReading, port: int = 0, **engine: Any) -> AsyncIterator[tuple[Fleet, int]]:
    """A model without replicas of its own, and the port for nodes."""
    model = Fleet("tiny", reading, ENGINE | engine, policy=QUICK, replicas=0)
    digest = file_digest(reading.path)

    async def admit(node: NodeLink, hello: Hello) -> None:
        check_node(hello, digest)
        model.join(node)

    listener = NodeListener(FleetAddress("127.0.0.1", port), admit)
    await listener.start()
    try:
        yield model, listener.port
    finally:
        await listener.close()
        await model.close()


@asynccontextmanager
async def node(reading: ModelReading, *ports: int, said: list[str] | None = None) -> AsyncIterator[asyncio.Task[None]]:
    """A node of the hubs at these ports."""
    hubs = [FleetAddress("127.0.0.1", port) for port in ports]
    say = (said if said is not None else []).append
    settings = NodeSettings(hubs=hubs, model="tiny", path=reading.path, name="here", options={"threads": 1}, say=say)
    task = asyncio.create_task(serve_hubs(settings))
    try:
        yield task
    finally:
        await ended(task)


def workers() -> list[int]:
    """The worker processes of this process's nodes."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"twofold.fleet" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def ready(*models: Fleet) -> None:
    await until(lambda: all(any(each.usable for each in model.replicas.values()) for model in models), 30)


def tokens(model: Fleet) -> int:
    """Tokens of the request that has the fewest."""
    return min((each.told.tokens for each in model.requests.streams.values()), default=0)


@pytest.fixture(scope="module")
def alone(reading: ModelReading) -> list[Any]:
    """The completions of the first jobs on an engine that nothing disturbs."""
    with LLM(reading.path, **ENGINE) as llm:
        return [llm.generate([{"prompt_token_ids": list(job_of(n).token_ids)}], LONG)[0].outputs for n in range(8)]


def test_two_hubs_share_one_worker(reading: ModelReading, alone: list[Any]) -> None:
    """Both use the same ids of requests at the same time; each sees the work of both, and gets its own answers."""

    async def serve() -> None:
        async with hub(reading) as (one, first), hub(reading) as (two, second), node(reading, first, second):
            await ready(one, two)
            pids = workers()
            assert len(pids) == 1
            running = [
                asyncio.create_task(whole(model, job_of(number, LONG), f"job-{number % 4}"))
                for number, model in enumerate([one] * 4 + [two] * 4)
            ]
            await until(lambda: min(tokens(one), tokens(two)) > 5, 20)
            for model in (one, two):
                (replica,) = model.replicas.values()
                await until(lambda each=replica: each.snapshot and each.snapshot.waiting >= 1)  # type: ignore[misc]
                assert replica.snapshot is not None
                assert replica.snapshot.running + replica.snapshot.waiting > 4, "the other hub's requests count, too"
                assert replica.requests <= 4
            outputs = await asyncio.gather(*running)
            assert [output.outputs for output in outputs] == alone
            assert [output.request_id for output in outputs] == [f"job-{number % 4}" for number in range(8)]
            for model in (one, two):
                model.requests.check_idle()
            assert workers() == pids

    asyncio.run(serve())


def test_a_hub_that_dies_takes_only_its_own_requests(reading: ModelReading, alone: list[Any]) -> None:
    """It comes back at its address, gets its replica again, and knows what the worker has cached."""

    async def serve() -> None:
        async with hub(reading) as (two, second):
            async with hub(reading) as (one, first), node(reading, first, second) as joined:
                await ready(one, two)
                pids = workers()
                lost = [asyncio.create_task(whole(one, job_of(n, LONG), f"job-{n}")) for n in range(2)]
                kept = [asyncio.create_task(whole(two, job_of(n, LONG), f"job-{n}")) for n in range(2, 4)]
                await until(lambda: min(tokens(one), tokens(two)) > 5, 20)
                (link,) = (each.node for each in one.replicas.values())
                assert link is not None
                link.kill()  # its requests wait until it has joined again
                assert [each.outputs for each in await asyncio.gather(*kept)] == alone[2:4]
                assert [each.outputs for each in await asyncio.gather(*lost)] == alone[:2]
                assert workers() == pids
                gone = asyncio.create_task(whole(one, job_of(4, LONG), "gone"))
                kept = [asyncio.create_task(whole(two, job_of(5, LONG), "gone"))]
                await until(lambda: min(tokens(one), tokens(two)) > 5, 20)
                await ended(gone)  # type: ignore[arg-type]
                await one.close()
                listening = one
                assert listening.state == "closed"
                assert (await kept[0]).outputs == alone[5]
                assert not joined.done()
                (replica,) = two.replicas.values()
                await until(lambda: replica.snapshot is not None and replica.snapshot.running == 0)
                assert workers() == pids

    asyncio.run(serve())


def test_a_hub_comes_back(reading: ModelReading, alone: list[Any]) -> None:
    """A second server at the same address is joined, and learns which blocks the worker has cached."""

    async def serve() -> None:
        async with hub(reading) as (two, second):
            async with hub(reading) as (one, first):
                joined = node(reading, first, second)
                await joined.__aenter__()
                await ready(one, two)
                pids = workers()
                prompt = job_of(8)
                long = prompt.__class__(tuple(range(100)), LONG, RequestOptions(cache_salt="one"))
                before = await whole(one, long, "cached")
                kept = asyncio.create_task(whole(two, job_of(1, LONG), "kept"))
                await until(lambda: tokens(two) > 5, 20)
            async with hub(reading, first) as (again, _):
                await ready(again)
                prefixes = again.requests.line.prefixes
                await until(lambda: prefixes is not None and len(prefixes) > 0)
                after = await whole(again, long, "cached")
                assert after.outputs == before.outputs
                assert after.metrics.cached_tokens >= 80
                assert (await kept).outputs == alone[1]
                assert workers() == pids
                await joined.__aexit__(None, None, None)

    asyncio.run(serve())


def test_a_hub_with_other_options_is_refused(
    reading: ModelReading, alone: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides say which option it is. It is taken when the other hub has left."""
    monkeypatch.setattr("twofold.fleet.node.REFUSED_PAUSE_S", 0.1)
    said: list[str] = []

    async def serve() -> None:
        async with hub(reading, block_size=32, seed=7) as (other, second):
            async with hub(reading) as (one, first), node(reading, first, said=said) as only:
                await ready(one)
                await ended(only)
            async with hub(reading, first) as (one, _), node(reading, first, second, said=said):
                await until(lambda: one.replicas or other.replicas, 10)
                await until(lambda: any("Not serving" in each for each in said), 20)
                taken, refused = (one, other) if f"Not serving 127.0.0.1:{second}" in said[-1] else (other, one)
                await ready(taken)
                assert (await whole(taken, job_of(1, LONG), "one")).finished
                assert not any(each.usable for each in refused.replicas.values())
                await until(lambda: len([each for each in caplog.messages if "cannot be used" in each]) > 1)
                assert sum("Not serving" in each for each in said) == 1, "it is asked again, and said once"
                assert len(workers()) == 1
                (link,) = (each.node for each in taken.replicas.values())
                assert link is not None
                await taken.drain_last() if hasattr(taken, "drain_last") else link.dismiss()
                await ready(refused)
                assert (await whole(refused, job_of(1, LONG), "two")).finished

    asyncio.run(serve())
    (message,) = [each for each in said if "Not serving" in each]
    assert "block_size=" in message
    assert "seed=" in message
    assert "threads" not in message


def test_a_node_that_all_hubs_refuse_ends(reading: ModelReading, tiny_gguf: Any) -> None:
    """With the error of the last one; and one server under two addresses is noticed."""

    async def join() -> None:
        async with hub(reading) as (one, first), node(reading, first) as only:
            await ready(one)
            hubs = [FleetAddress("127.0.0.1", first), FleetAddress("localhost", first)]
            said: list[str] = []
            settings = NodeSettings(hubs=hubs, model="tiny", path=reading.path, name="twice", say=said.append)
            twice = asyncio.create_task(serve_hubs(settings))
            await until(lambda: any("addresses of one server" in each for each in said), 20)
            await ended(twice)
            await ended(only)
        path = reading.path.with_name("other.gguf")
        path.write_bytes(reading.path.read_bytes()[:-1] + b"x")
        async with hub(reading) as (_, first), hub(reading) as (_, second):
            hubs = [FleetAddress("127.0.0.1", port) for port in (first, second)]
            await serve_hubs(NodeSettings(hubs=hubs, model="tiny", path=path, name="other"))

    with pytest.raises(ParameterError, match="another one than the hub"):
        asyncio.run(join())


def test_a_drained_node_leaves_one_hub(reading: ModelReading, alone: list[Any]) -> None:
    """Requests of the other hub notice nothing; the node ends when all have drained it."""

    async def serve() -> None:
        async with hub(reading) as (one, first), hub(reading) as (two, second):
            async with node(reading, first, second) as shared, node(reading, first) as spare:
                await until(lambda: sum(each.usable for each in one.replicas.values()) == 2, 30)
                await ready(two)
                pids = workers()
                assert len(pids) == 2
                moved = [asyncio.create_task(whole(one, job_of(n, LONG), f"job-{n}")) for n in range(3)]
                kept = asyncio.create_task(whole(two, job_of(3, LONG), "job-1"))
                await until(lambda: min(tokens(one), tokens(two)) > 5, 20)
                for number in list(one.replicas):
                    with_spare = len(one.replicas) == 2
                    if with_spare:
                        await one.drain(number)
                assert [each.outputs for each in await asyncio.gather(*moved)] == alone[:3]
                assert (await kept).outputs == alone[3]
                assert shared.done() + spare.done() <= 1
                await ready(two)
                assert (await whole(two, job_of(4, LONG), "after")).outputs == alone[4]

    asyncio.run(serve())
