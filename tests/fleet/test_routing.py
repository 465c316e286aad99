"""Two worker processes report their work and their blocks, and the hub routes by them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.fleet.conftest import ENGINE, QUICK, named, until
from twofold.core.forecast import RequestProgress
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.outputs import RequestOutput
from twofold.fleet.fleet import Fleet
from twofold.fleet.messages import Blocks
from twofold.fleet.reading import ModelReading
from twofold.fleet.routing.load import BESIDE
from twofold.fleet.routing.router import RoundRobin, Router
from twofold.fleet.streams import RequestRoute, StreamReader

FEW = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@asynccontextmanager
async def pair(reading: ModelReading, router: Router | None = None) -> AsyncIterator[Fleet]:
    model = Fleet("tiny", reading, ENGINE, policy=QUICK, replicas=2, router=router)
    await model.start()
    try:
        yield model
    finally:
        await model.close()


async def run(model: Fleet, request: EngineRequest, request_id: str) -> tuple[RequestOutput, RequestRoute]:
    stream = model.run(named(request, request_id))
    output = [delta async for delta in stream][-1].request
    assert output is not None
    return output, stream.route


def prompt(first: int, tokens: int = 100) -> EngineRequest:
    return EngineRequest(tuple((first * 31 + i * 7) % 250 for i in range(tokens)), FEW)


def test_a_session_stays_with_the_replica_that_has_its_prefix(reading: ModelReading) -> None:
    async def talk() -> None:
        async with pair(reading) as model:
            for number in range(4):  # the step-time models become ready
                await run(model, prompt(number), f"warm{number}")
            prefixes = model.requests.line.prefixes
            assert prefixes is not None
            homes: dict[int, int] = {}
            for session in (10, 11, 12):
                for turn in range(4):
                    asked = prompt(session, 100 + 40 * turn)
                    output, route = await run(model, asked, f"s{session}t{turn}")
                    assert route.choice is not None
                    assert output.metrics.cached_tokens >= (route.choice.cached or 0)
                    if turn:
                        assert route.choice.replica == homes[session]
                        assert route.choice.cached == (100 + 40 * (turn - 1)) // 16 * 16
                    homes[session] = route.choice.replica
            salted = replace(prompt(10, 220), options=RequestOptions(cache_salt="another"))
            _, route = await run(model, salted, "salted")
            assert route.choice is not None
            assert route.choice.cached == 0
            snapshots = [replica.snapshot for replica in model.replicas.values()]
            held = sum(each.blocks.cached + each.blocks.held for each in snapshots if each is not None)
            prefixes.check()
            assert held >= len(prefixes) > 20
            model.requests.check_idle()

    asyncio.run(talk())


def test_predictions_come_with_the_learned_weights(reading: ModelReading) -> None:
    async def ask() -> None:
        async with pair(reading) as model:
            for number in range(12):
                output, route = await run(model, prompt(number), f"r{number}")
            assert route.choice is not None
            assert route.choice.prediction is not None
            assert route.choice.prediction.ttft_s > 0
            sent = route.served(output)
            took_s = output.metrics.ttft_s
            assert took_s is not None
            assert sent.predicted_s is not None
            assert sent.error == pytest.approx(sent.predicted_s / took_s - 1)
            assert (sent.replica, sent.cached) == (route.choice.replica, route.choice.cached)
            load = model.replicas[route.choice.replica].load
            assert load is not None
            assert load.step_time.ready
            snapshot = model.replicas[route.choice.replica].snapshot
            assert snapshot is not None
            assert load.step_time.weights == snapshot.step_weights

    asyncio.run(ask())


def test_blocks_are_asked_for_again_after_a_missing_change_and_forgotten_with_a_process(reading: ModelReading) -> None:
    async def lose() -> None:
        async with pair(reading, RoundRobin()) as model:
            first, _ = await run(model, prompt(1), "a")
            await run(model, prompt(1), "b")
            prefixes = model.requests.line.prefixes
            assert prefixes is not None
            ids = prompt(1).token_ids
            assert prefixes.cached("", ids, 2) == [96, 96]
            assert first.metrics.cached_tokens == 0
            prefixes.report(0, 99, [b"x" * 16], [])  # as if changes were missing
            assert prefixes.cached("", ids, 2) == [0, 96]
            await run(model, prompt(2), "c")
            await run(model, prompt(3), "d")
            await until(lambda: prefixes.cached("", ids, 2) == [96, 96])
            model.on_message(model.replicas[1], Blocks(99, [b"%16d" % n for n in range(10_000)]))  # more than its pool
            assert prefixes.cached("", ids, 2) == [96, 0]
            assert model.replicas[1].listing
            pid = model.replicas[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda: model.replicas[0].state == "ready" and model.replicas[0].pid not in (None, pid))
            assert prefixes.cached("", ids, 2) == [0, 0]

    asyncio.run(lose())


def test_requests_wait_at_the_hub_and_all_are_answered(reading: ModelReading) -> None:
    async def crowd() -> None:
        async with pair(reading) as model:
            alone = [(await run(model, prompt(n, 60 + n), f"alone{n}"))[0].outputs[0].token_ids for n in range(30)]
            tasks = [asyncio.create_task(run(model, prompt(n, 60 + n), f"r{n}")) for n in range(30)]
            most, slots = 0, ENGINE["max_num_seqs"]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0.001)
                given = max(replica.requests for replica in model.replicas.values())
                assert given <= 2 * slots + BESIDE  # those that have ended are reported a little later
                most = max(most, model.requests.waiting)
            assert most >= 30 - 2 * (2 * slots + BESIDE)
            assert [task.result()[0].outputs[0].token_ids for task in tasks] == alone
            choices = [task.result()[1].choice for task in tasks]
            assert {choice.replica for choice in choices if choice is not None} == {0, 1}
            model.requests.check_idle()

    asyncio.run(crowd())


def test_a_request_that_waits_at_the_hub_is_refused_in_time(reading: ModelReading) -> None:
    async def wait() -> None:
        async with pair(reading) as model:
            long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
            streams = [model.run(named(EngineRequest((1, 2, 3), long), f"l{n}")) for n in range(16)]
            readers = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await until(lambda: sum(reader.done() for reader in readers) >= 8)
            late = replace(prompt(5), options=RequestOptions(deadline_s=0.05))
            output, _ = await run(model, late, "late")
            assert output.outputs[0].finish_reason == "deadline"
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            for stream in streams:
                await stream.aclose()
            await until(lambda: not model.requests.leaving)
            model.requests.check_idle()

    asyncio.run(wait())


def test_forecasts_and_places_count_what_waits_at_the_hub(reading: ModelReading) -> None:
    seen: list[RequestProgress] = []

    async def last(model: Fleet) -> None:
        options = RequestOptions(progress=True)
        request = replace(prompt(99), options=options, request_id="last")
        async for _ in model.run(request, StreamReader(progress=seen.append)):
            pass

    async def crowd() -> None:
        async with pair(reading, RoundRobin()) as model:
            await until(lambda: len(model.requests.usable) == 2)
            for number in range(4):
                await run(model, prompt(number), f"warm{number}")
            idle = await model.forecast(prompt(98))
            long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
            tasks = [
                asyncio.create_task(run(model, replace(prompt(n, 60 + n), params=long), f"r{n}")) for n in range(40)
            ]
            await until(lambda: len(model.requests.line.requests) > 20)
            ended = asyncio.create_task(last(model))
            busy = await model.forecast(prompt(98))
            assert idle.ahead == 0
            assert busy.ahead >= 5
            await asyncio.gather(ended, *tasks)

    asyncio.run(crowd())
    first = seen[0]
    assert (first.request_id, first.cached, first.done, first.of) == ("last", 0, 0, 100)
    assert first.ahead is not None
    assert first.ahead >= 5
    assert first.first_token_s is None
    places = [each.ahead for each in seen if each.ahead is not None]
    assert places[-1] < places[0]
