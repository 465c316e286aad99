"""Several hubs over the same workers: one copy of the model, and what happens to one hub does not reach the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet.faults import worker_pids
from tests.fleet.conftest import ENGINE, LONG, QUICK, Listener, job_of, until, until_idle, whole
from tests.fleet.test_nodes import ended
from tests.fleet.test_transfer import InTurn, prompt
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.lanes import LaneKind
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.llm import LLM
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import FleetAddress, NodeListener, check_node
from twofold.fleet.link import NodeLink
from twofold.fleet.messages import LENGTH, BlockData, Codec, Hello, LoadModel, Ping
from twofold.fleet.node import NodeSettings, serve_hubs
from twofold.fleet.reading import ModelReading
from twofold.fleet.replica import FleetReplica
from twofold.fleet.routing.router import Router
from twofold.formats.identity import file_digest


@asynccontextmanager
async def hub(
    reading: ModelReading,
    port: int = 0,
    listener: Listener | None = None,
    router: Router | None = None,
    **engine: Any,
) -> AsyncIterator[tuple[Fleet, int]]:
    """A model without replicas of its own, and the port for nodes."""
    observers = [] if listener is None else [listener]
    model = Fleet("tiny", reading, ENGINE | engine, observers, QUICK, replicas=0, router=router)
    digest = file_digest(reading.parts)

    async def admit(node: NodeLink, hello: Hello) -> None:
        check_node(hello, digest)
        model.join(node)

    nodes = NodeListener(FleetAddress("127.0.0.1", port), admit)
    await nodes.start()
    try:
        yield model, nodes.port
    finally:
        await nodes.close()
        await model.close()


def settings_of(
    reading: ModelReading, *ports: int, said: list[str] | None = None, more: tuple[str, int] | None = None
) -> NodeSettings:
    """A node of the hubs at these ports, and of one ``more`` address."""
    hubs = [FleetAddress("127.0.0.1", port) for port in ports] + ([FleetAddress(*more)] if more else [])
    say = (said if said is not None else []).append
    return NodeSettings(hubs=hubs, model="tiny", path=reading.path, name="here", options={"threads": 1}, say=say)


@asynccontextmanager
async def node(reading: ModelReading, *ports: int, **more: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(serve_hubs(settings_of(reading, *ports, **more)))
    try:
        yield
    finally:
        await ended(task)


def workers() -> list[int]:
    """The worker processes of this process's nodes."""
    return worker_pids(os.getpid())


async def ready(*models: Fleet) -> None:
    await until(lambda: all(any(each.usable for each in model.replicas.values()) for model in models))


def tokens(model: Fleet) -> int:
    """Tokens of the request that has the fewest."""
    return min((each.delivered.tokens for each in model.requests.streams.values()), default=0)


@pytest.fixture(scope="module")
def alone(reading: ModelReading) -> list[Any]:
    """The completions of the first jobs on an engine that nothing disturbs."""
    with LLM(reading.path, **ENGINE) as llm:
        return [llm.generate([{"prompt_token_ids": list(job_of(n).token_ids)}], LONG)[0].outputs for n in range(8)]


def running(model: Fleet, numbers: range, name: str = "job-{}") -> list[asyncio.Task[Any]]:
    """Jobs that have begun. Those of two hubs have the same ids."""
    return [
        asyncio.create_task(whole(model, job_of(number, LONG), name.format(place)))
        for place, number in enumerate(numbers)
    ]


async def outputs(jobs: list[asyncio.Task[Any]]) -> list[Any]:
    return [each.outputs for each in await asyncio.gather(*jobs)]


def replica_of(model: Fleet) -> FleetReplica:
    (replica,) = model.replicas.values()
    return replica


def sees_four(model: Fleet) -> bool:
    """Whether a hub knows that its replica runs four requests, two of which are its own."""
    each = replica_of(model)
    known = each.snapshot is not None and each.snapshot.running == 4
    return known and each.requests == 2 and each.ahead(0).decode.rows == 4


def test_two_hubs_share_one_worker(reading: ModelReading, alone: list[Any]) -> None:
    """Both use the same ids of requests at the same time; each sees the work of both, and gets its own answers."""

    async def serve() -> None:
        async with hub(reading) as (one, first), hub(reading) as (two, second), node(reading, first, second):
            await ready(one, two)
            pids = workers()
            assert len(pids) == 1
            jobs = running(one, range(2)), running(two, range(2, 4))
            await until(lambda: sees_four(one) and sees_four(two))
            jobs[0].extend(running(one, range(4, 6), "more-{}"))
            jobs[1].extend(running(two, range(6, 8), "more-{}"))
            assert await outputs(jobs[0]) == alone[:2] + alone[4:6]
            assert await outputs(jobs[1]) == alone[2:4] + alone[6:]
            for model in (one, two):
                await until_idle(model)
                model.requests.check_idle()
            assert workers() == pids

    asyncio.run(serve())


def test_a_cut_connection_ends_only_its_own_requests(reading: ModelReading, alone: list[Any]) -> None:
    """Its hub gets the replica again, and continues them there."""

    async def serve() -> None:
        async with hub(reading) as (one, first), hub(reading) as (two, second), node(reading, first, second):
            await ready(one, two)
            pids = workers()
            jobs = running(one, range(2)), running(two, range(2, 4))
            await until(lambda: min(tokens(one), tokens(two)) > 5)
            cut, kept, others = replica_of(one).node, replica_of(two).node, list(two.requests.streams.values())
            assert cut is not None
            cut.kill()
            assert await outputs(jobs[1]) == alone[2:4]
            assert await outputs(jobs[0]) == alone[:2]
            assert (replica_of(two).node, workers()) == (kept, pids)
            assert replica_of(one).node is not cut
            assert [each.route.retries for each in others] == [0, 0]

    asyncio.run(serve())


def test_a_hub_comes_back(reading: ModelReading, alone: list[Any]) -> None:
    """A second server at the address of one that has ended is joined, and learns which blocks the worker has cached.
    What the first one had left is aborted."""
    prompt = EngineRequest(tuple(range(100)), LONG, RequestOptions(cache_salt="one"))

    async def serve() -> None:
        async with hub(reading) as (two, second), AsyncExitStack() as until_end:
            async with hub(reading) as (one, first):
                await until_end.enter_async_context(node(reading, first, second))
                await ready(one, two)
                pids = workers()
                before = await whole(one, prompt, "cached")
                kept = running(two, range(1, 2))
                left = running(one, range(2))
                await until(lambda: min(tokens(one), tokens(two)) > 5)
            for each in left:
                with pytest.raises(ResourceError, match="unloaded"):
                    await each
            async with hub(reading, first) as (again, _):
                await ready(again)
                prefixes = again.requests.line.prefixes
                await until(lambda: prefixes is not None and len(prefixes) > 5)
                after = await whole(again, prompt, "cached")
                assert (after.outputs, after.metrics.cached_tokens >= 96) == (before.outputs, True)
                assert await outputs(kept) == alone[1:2]
                await until_idle(two)
                assert workers() == pids

    asyncio.run(serve())


def test_a_hub_with_other_options_is_refused(
    reading: ModelReading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides say which options these are. It is taken when the other hub has gone."""
    monkeypatch.setattr("twofold.fleet.node.REFUSED_PAUSE_S", 0.1)
    said: list[str] = []

    async def serve() -> None:
        async with hub(reading, block_size=32, seed=7) as (other, second), hub(reading) as (one, first):
            joined = asyncio.create_task(serve_hubs(settings_of(reading, first, second, said=said)))
            await until(lambda: any("Not serving" in each for each in said))
            taken, refused = (one, other) if f"Not serving 127.0.0.1:{second}" in " ".join(said) else (other, one)
            await ready(taken)
            assert (await whole(taken, job_of(1, LONG), "one")).finished
            await until(lambda: len([each for each in caplog.messages if "cannot be used" in each]) > 1)
            assert sum("Not serving" in each for each in said) == 1, "it is asked again, and said once"
            assert (len(workers()), refused.state) == (1, "loading")
            replica = replica_of(taken)
            replica.draining = True
            await replica.leave()
            await ready(refused)
            assert (await whole(refused, job_of(1, LONG), "two")).finished
            await ended(joined)

    asyncio.run(serve())
    (message,) = [each for each in said if "Not serving" in each]
    assert all(each in message for each in ("block_size=32", "block_size=16", "seed=7", "seed=0", "same options"))
    assert "threads" not in message


def test_a_hub_that_refuses_a_loaded_worker_is_asked_seldom(
    reading: ModelReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses what the worker reports when it is ready, while another hub uses the worker."""
    said: list[str] = []
    refusing: list[Fleet] = []
    asked, on_ready = 0, Fleet.on_ready

    def refuse(self: Fleet, replica: FleetReplica) -> None:
        nonlocal asked
        if self not in refusing:
            on_ready(self, replica)
            return
        asked += 1
        replica.reject(ParameterError("The context is too short.", param="max_model_len"))

    monkeypatch.setattr(Fleet, "on_ready", refuse)

    async def serve() -> None:
        async with hub(reading) as (one, first), hub(reading) as (two, second):
            refusing.append(two)
            async with node(reading, first, second, said=said):
                await ready(one)
                await until(lambda: any("Not serving" in each for each in said))
                await asyncio.sleep(1.5)  # without a pause it is asked four times a second
                assert (await whole(one, job_of(1, LONG), "one")).finished

    asyncio.run(serve())
    assert asked == 1
    assert sum("Not serving" in each for each in said) == 1


def test_one_server_under_two_addresses_is_noticed(reading: ModelReading) -> None:
    said: list[str] = []

    async def join() -> None:
        async with hub(reading) as (one, port), node(reading, port, said=said, more=("localhost", port)):
            await ready(one)
            await until(lambda: any("addresses of one server" in each for each in said))
            assert sum(each.usable for each in one.replicas.values()) == 1

    asyncio.run(join())


def test_a_node_that_all_hubs_refuse_ends(reading: ModelReading, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(reading.path.read_bytes()[:-1] + b"x")

    async def join() -> None:
        async with hub(reading) as (_, first), hub(reading) as (_, second):
            await serve_hubs(replace(settings_of(reading, first, second), path=other))

    with pytest.raises(ParameterError, match="another one than the hub"):
        asyncio.run(join())


def test_a_drained_node_leaves_one_hub(reading: ModelReading, alone: list[Any]) -> None:
    """Requests of the other hub notice nothing. A node that shall end leaves all."""

    async def serve() -> None:
        leaving = asyncio.Event()
        async with hub(reading) as (one, first), hub(reading) as (two, second):
            shared = asyncio.create_task(serve_hubs(settings_of(reading, first, second), leaving))
            await ready(one, two)
            (number,) = one.replicas
            async with node(reading, first):
                await until(lambda: sum(each.usable for each in one.replicas.values()) == 2)
                jobs = running(one, range(3)), running(two, range(3, 4))
                await until(lambda: min(tokens(one), tokens(two)) > 5)
                await one.lifecycle.drain(number)
                assert await outputs(jobs[0]) == alone[:3]
                assert await outputs(jobs[1]) == alone[3:4]
                assert (number in one.replicas, shared.done()) == (False, False)
                jobs = running(one, range(3)), running(two, range(4, 5))
                await until(lambda: tokens(two) > 5)
                leaving.set()  # it finishes what no other replica takes
                assert await outputs(jobs[1]) == alone[4:5]
                await shared
                assert (len(two.replicas), len(one.replicas)) == (0, 1)
                await asyncio.gather(*jobs[0])

    asyncio.run(serve())


def test_garbage_of_one_hub_harms_no_other(reading: ModelReading, alone: list[Any]) -> None:
    """A hub that sends what is no message, or no message that a worker takes then, loses its connection only."""
    sent = [b"\x04\x00\x00\x00junk", bytes(Codec(LoadModel).frame(LoadModel("", dict(ENGINE))))]
    codec, connections = Codec(LoadModel), list[int]()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        await reader.readexactly(length)
        writer.write(codec.frame(LoadModel("", dict(ENGINE), shares_clock=False)))
        await asyncio.sleep(0.2)
        writer.write(sent[len(connections) % 2])
        await reader.read()
        connections.append(1)
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, hub(reading) as (one, first), node(reading, first, port):
            await ready(one)
            pids = workers()
            jobs = running(one, range(4))
            assert await outputs(jobs) == alone[:4]
            await until(lambda: len(connections) >= 2)
            assert workers() == pids

    asyncio.run(serve())


def test_each_hub_watches_its_own_requests(reading: ModelReading) -> None:
    """Both see all lanes, but the ids of their own requests only."""
    listeners = Listener(), Listener()

    async def serve() -> None:
        async with (
            hub(reading, listener=listeners[0]) as (one, first),
            hub(reading, listener=listeners[1]) as (two, second),
            node(reading, first, second),
        ):
            await ready(one, two)
            one.watch(on=True)
            jobs = running(one, range(1), "first")
            await until(lambda: tokens(one) > 5)
            two.watch(on=True)
            jobs += running(two, range(1, 2), "second")
            await asyncio.gather(*jobs)
            await until_idle(one)
            await until_idle(two)

    asyncio.run(serve())
    for listener, names in zip(listeners, (["first", ""], ["", "second"]), strict=True):
        arrived = [event.text for event in listener.lanes if event.kind is LaneKind.ARRIVE]
        assert arrived == names
        assert sum(event.kind is LaneKind.END for event in listener.lanes) == 2


def test_a_hub_that_dies_in_a_transfer_leaves_no_block(reading: ModelReading) -> None:
    """The hub ends while one worker fetches from another. Both free the blocks; the other hub continues."""

    async def serve() -> None:
        async with hub(reading) as (two, second), AsyncExitStack() as until_end:
            async with hub(reading, router=InTurn()) as (one, first):
                for _ in range(2):
                    await until_end.enter_async_context(node(reading, first, second))
                await until(lambda: all(sum(r.usable for r in each.replicas.values()) == 2 for each in (one, two)))
                heard, reached = one.on_message, asyncio.Event()

                def hear(replica: FleetReplica, message: Any) -> None:
                    if isinstance(message, BlockData) and message.place == 5:
                        reached.set()  # and never arrives
                    else:
                        heard(replica, message)

                one.on_message = hear  # type: ignore[method-assign]
                before = await whole(one, prompt(), "a")
                waiting = asyncio.create_task(whole(one, prompt(), "b"))
                await reached.wait()
            with pytest.raises(ResourceError):
                await waiting
            replicas = list(two.replicas.values())

            def free() -> bool:
                for replica in replicas:
                    replica.send(Ping())
                return all(each.snapshot is not None and each.snapshot.blocks.held == 0 for each in replicas)

            await until(free)
            after = await whole(two, prompt(), "a")
            assert [each.token_ids for each in after.outputs] == [each.token_ids for each in before.outputs]

    asyncio.run(serve())
