"""Drain, restart and scale: sequences move to other replicas, and readers see a pause."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from tests.fleet.conftest import ENGINE, LONG, QUICK, job_of, named, until, until_idle, whole
from twofold.core.errors import NotFoundError, ParameterError, ResourceError
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.fleet.fleet import Fleet
from twofold.fleet.reading import ModelReading
from twofold.observe.served import MoveCause, ServedMove

PARAMS = SamplingParams(seed=11, max_tokens=150, ignore_eos=True)
STREAMS = 12


def kill(fleet: Fleet) -> None:
    pid = fleet.replicas[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def fleet_of(reading: ModelReading, replicas: int) -> Fleet:
    fleet = Fleet("tiny", reading, ENGINE, policy=QUICK, replicas=replicas)
    await fleet.start()
    return fleet


@pytest.fixture(scope="module")
def expected(reading: ModelReading) -> list[list[int]]:
    """The tokens of each request without others."""
    with LLM(str(reading.path), **ENGINE) as llm:
        ids = [list(job_of(number).token_ids) for number in range(STREAMS)]
        alone = [llm.generate([{"prompt_token_ids": each}], PARAMS)[0] for each in ids]
    return [list(each.outputs[0].token_ids) for each in alone]


async def under_load(fleet: Fleet, change: Callable[[], Awaitable[None]], expected: list[list[int]]) -> None:
    """Changes a fleet while requests run; their tokens must not differ from those ``expected``."""
    running = [asyncio.create_task(whole(fleet, job_of(number, PARAMS), f"r{number}")) for number in range(STREAMS)]
    await until(lambda: any(stream.began for stream in fleet.requests.streams.values()))
    await change()
    outputs = await asyncio.gather(*running)
    assert [list(each.outputs[0].token_ids) for each in outputs] == expected
    await until_idle(fleet)


def test_the_requests_of_a_drained_replica_go_on_elsewhere(
    runner: asyncio.Runner, reading: ModelReading, expected: list[list[int]]
) -> None:
    async def drained() -> None:
        fleet = await fleet_of(reading, 2)
        try:
            gone = fleet.replicas[0]
            await under_load(fleet, lambda: fleet.lifecycle.drain(0), expected)
            assert list(fleet.replicas) == [1]
            assert (gone.state, gone.pid) == ("closed", None)
            with pytest.raises(ParameterError, match="the only one"):
                await fleet.lifecycle.drain(1)
            with pytest.raises(NotFoundError, match="no replica 0"):
                await fleet.lifecycle.drain(0)
        finally:
            await fleet.close()

    runner.run(drained())


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_restart_replaces_every_process(
    runner: asyncio.Runner, reading: ModelReading, expected: list[list[int]], replicas: int, room: bool
) -> None:
    """With room for one more there is never one fewer."""
    usable: list[int] = []

    async def watch(fleet: Fleet) -> None:
        while True:
            there = [each for each in fleet.lifecycle.own if each.state in ("ready", "silent")]
            usable.append(sum(not each.draining for each in there))
            await asyncio.sleep(0)

    async def restart(fleet: Fleet) -> None:
        watching = asyncio.create_task(watch(fleet))
        try:
            assert await fleet.lifecycle.restart(room=room) == room
        finally:
            watching.cancel()

    async def restarted() -> None:
        fleet = await fleet_of(reading, replicas)
        try:
            before = {each.pid for each in fleet.lifecycle.own}
            await under_load(fleet, lambda: restart(fleet), expected)
            assert len(before | {each.pid for each in fleet.lifecycle.own}) == 2 * replicas
            assert [(each.state, each.restarts) for each in fleet.lifecycle.own] == [("ready", 0)] * replicas
            assert min(usable) == (replicas if room else replicas - 1)
        finally:
            await fleet.close()

    runner.run(restarted())


@pytest.mark.parametrize("cause", ["drained", "ended"])
def test_a_route_says_where_its_request_continued_and_why(
    runner: asyncio.Runner, reading: ModelReading, cause: MoveCause
) -> None:
    async def moved() -> None:
        fleet = await fleet_of(reading, 2)
        try:
            for number in range(2):  # one of them goes to replica 0
                stream = fleet.run(named(job_of(number, LONG), f"r{number}"))
                await anext(stream)
                if stream.route.choice is not None and stream.route.choice.replica == 0:
                    break
                async for _delta in stream:
                    pass
            assert stream.route.served(None).replica == 0
            await fleet.lifecycle.drain(0) if cause == "drained" else kill(fleet)
            async for _delta in stream:
                pass
            assert stream.route.served(None).moves == (ServedMove(1, cause),)
        finally:
            await fleet.close()

    runner.run(moved())


def test_scaling_starts_and_drains_replicas(
    runner: asyncio.Runner, reading: ModelReading, expected: list[list[int]]
) -> None:
    async def scaled() -> None:
        fleet = await fleet_of(reading, 2)
        try:
            await under_load(fleet, lambda: fleet.lifecycle.scale(3), expected)
            assert [each.state for each in fleet.lifecycle.own] == ["ready"] * 3
            await under_load(fleet, lambda: fleet.lifecycle.scale(1), expected)
            assert [each.number for each in fleet.lifecycle.own] == [0]
            for wrong in (0, 65):
                with pytest.raises(ParameterError, match="from 1 to 64"):
                    await fleet.lifecycle.scale(wrong)
        finally:
            await fleet.close()

    runner.run(scaled())


def test_a_new_replica_that_cannot_load_leaves_the_others(runner: asyncio.Runner, reading: ModelReading) -> None:
    async def scaled() -> None:
        fleet = await fleet_of(reading, 2)
        try:
            fleet._load.options["kv_cache_memory_bytes"] = 1
            with pytest.raises(ResourceError, match="1 B may be used"):
                await fleet.lifecycle.scale(3)
            assert [each.state for each in fleet.lifecycle.own] == ["ready"] * 2
        finally:
            await fleet.close()

    runner.run(scaled())
