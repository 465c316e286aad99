"""Replicas that a cluster runs: they are scaled, replaced and waited for. Here the cluster is this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fleet.conftest import ENGINE, job_of, until, whole
from tests.observe.served import served
from twofold.core.errors import WorkerError
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import FleetAddress
from twofold.fleet.node import NodeSettings, serve_hubs
from twofold.fleet.ray import RayPlan, node_name
from twofold.fleet.scale import ScaleForecast, ScaleQuestion, ScaleRange
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.requests import Objective
from twofold.server.models import registry as registry_module
from twofold.server.models.autoscaler import Autoscaler
from twofold.server.models.named_models import NamedModel
from twofold.server.models.registry import ModelRegistry, RegistrySettings

STREAMS = 6
PARAMS = SamplingParams(seed=11, max_tokens=150, ignore_eos=True)
START_S = 120.0


class Machines:
    """In place of ``RayNodes``: each replica is a node in a task, as long as there is room."""

    room = 2

    def __init__(
        self,
        plan: RayPlan,
        join: str,
        models: Iterable[tuple[str, str]],
        certificates: Path | None,
        draft: str | None,
    ) -> None:
        assert (certificates, draft) == (None, None)
        ((self._model, self._source),) = models
        self._hub = FleetAddress.of(join, None, "join")
        self._wanted = frozenset(range(plan.replicas))
        self._running: dict[int, asyncio.Task[None]] = {}
        self._leaving: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.run()

    async def close(self) -> None:
        self.place(self._model, ())
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def slots(self, model: str) -> frozenset[int]:
        assert model == self._model
        return self._wanted

    def slot(self, model: str, node: str) -> int | None:
        return next((slot for slot in self.slots(model) if node == node_name(slot)), None)

    def place(self, model: str, slots: Iterable[int]) -> None:
        assert model == self._model
        self._wanted = frozenset(slots)
        self.run()

    def problems(self, model: str) -> Mapping[int, str]:
        return dict.fromkeys(self.slots(model) - self._running.keys(), "no machine is free")

    def run(self) -> None:
        for slot in self._running.keys() - self._wanted:
            self._running[slot].cancel()
            self._leaving.append(self._running.pop(slot))
        for slot in sorted(self._wanted - self._running.keys())[: self.room - len(self._running)]:
            path, name = Path(self._source), node_name(slot)
            node = NodeSettings(hubs=[self._hub], model=self._model, path=path, name=name, options={"threads": 1})
            self._running[slot] = asyncio.create_task(serve_hubs(node))


@pytest.fixture(autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "RayNodes", Machines)


@asynccontextmanager
async def opened(
    offers: tuple[NamedModel, ...], replicas: int, room: int
) -> AsyncIterator[tuple[ModelRegistry, Fleet, Machines]]:
    settings = RegistrySettings(
        engine=ENGINE,
        replicas=0,
        ray=RayPlan("auto", replicas, 1),
        nodes=FleetAddress("127.0.0.1", 0),
        autoscale=ScaleRange(1, 2),
    )
    registry = ModelRegistry(offers[:1], settings)
    Machines.room = room
    try:
        await registry.start()
        fleet, machines = registry.fleet("first"), registry.ray
        assert isinstance(machines, Machines)
        await until(lambda: ready(fleet) == list(range(min(replicas, room))), START_S)
        yield registry, fleet, machines
    finally:
        await registry.close()


def ready(fleet: Fleet) -> list[int]:
    """Slots of the replicas that are ready."""
    return sorted(each.slot for each in fleet.lifecycle.own if each.usable and each.slot is not None)


def state(fleet: Fleet) -> tuple[list[int], int, str | None]:
    """Slots of the replicas that are ready, the number that there shall be, and what the others wait for."""
    return ready(fleet), fleet.lifecycle.size, fleet.lifecycle.problem


@pytest.fixture(scope="module")
def expected(offers: tuple[NamedModel, ...]) -> list[list[int]]:
    """The tokens of each request without others."""
    with LLM(offers[0].source, **ENGINE) as llm:
        ids = [list(job_of(number).token_ids) for number in range(STREAMS)]
        alone = [llm.generate([{"prompt_token_ids": each}], PARAMS)[0] for each in ids]
    return [list(each.outputs[0].token_ids) for each in alone]


async def under_load(fleet: Fleet, change: Callable[[], Awaitable[object]], expected: list[list[int]]) -> None:
    running = [asyncio.create_task(whole(fleet, job_of(number, PARAMS), f"r{number}")) for number in range(STREAMS)]
    await until(lambda: any(stream.began for stream in fleet.requests.streams.values()))
    await change()
    outputs = await asyncio.gather(*running)
    assert [list(each.outputs[0].token_ids) for each in outputs] == expected


def test_scaling_starts_and_drains_nodes(offers: tuple[NamedModel, ...], expected: list[list[int]]) -> None:
    async def scaled() -> None:
        async with opened(offers, 1, 2) as (registry, fleet, machines):
            await under_load(fleet, lambda: registry.scale("first", 2), expected)
            assert state(fleet) == ([0, 1], 2, None)
            await under_load(fleet, lambda: registry.scale("first", 1), expected)
            assert state(fleet) == ([0], 1, None)
            await registry.scale("first", 3)
            assert state(fleet) == ([0, 1], 3, "1 of 3 replicas of first is not ready: no machine is free.")
            Machines.room = 3
            machines.run()
            await until(lambda: fleet.lifecycle.problem is None, START_S)
            assert state(fleet) == ([0, 1, 2], 3, None)
            await fleet.lifecycle.drain(fleet.lifecycle.own[1].number)
            assert state(fleet) == ([0, 2], 2, None), "a replica that is drained is given up"
            Machines.room = 0
            await registry.scale("first", 4)
            await registry.scale("first", 1)
            assert state(fleet) == ([0], 1, None)

    asyncio.run(scaled())


def test_a_request_before_the_first_node_gets_an_error(offers: tuple[NamedModel, ...]) -> None:
    """The server keeps waiting for a node, and serves requests after one has joined."""

    async def waited() -> None:
        settings = RegistrySettings(
            engine=ENGINE, replicas=0, ray=RayPlan("auto", 1, 1), nodes=FleetAddress("127.0.0.1", 0)
        )
        registry = ModelRegistry(offers[:1], settings)
        Machines.room = 0
        starting = asyncio.create_task(registry.start())
        try:
            await until(lambda: registry.models[0].fleet is not None, START_S)
            with pytest.raises(WorkerError, match="no node has joined"):
                async with registry.lease(None, absent_s=0.05):
                    pass
            assert not starting.done()
            assert isinstance(registry.ray, Machines)
            Machines.room = 1
            registry.ray.run()
            async with registry.lease(None) as fleet:
                assert ready(fleet) == [0]
            await starting
        finally:
            starting.cancel()
            await registry.close()

    asyncio.run(waited())


@pytest.mark.parametrize("room", [1, 2])
def test_a_restart_starts_another_node_first_where_one_has_room(
    offers: tuple[NamedModel, ...], expected: list[list[int]], room: int
) -> None:
    async def restarted() -> None:
        async with opened(offers, 1, room) as (registry, fleet, _):
            (before,) = fleet.lifecycle.own
            await under_load(fleet, lambda: registry.restart("first"), expected)
            assert state(fleet) == ([0 if room == 1 else 1], 1, None)
            assert before not in fleet.lifecycle.own
            assert await registry.restart("first") == (room == 2)

    asyncio.run(restarted())


def test_a_restart_ends_at_a_replica_that_does_not_come_back(
    offers: tuple[NamedModel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the cluster is lost, so no replica can be said to start."""

    async def restarted() -> None:
        async with opened(offers, 2, 2) as (registry, fleet, machines):
            (_, kept) = fleet.lifecycle.own
            monkeypatch.setattr(machines, "problems", lambda model: dict.fromkeys(machines.slots(model), "it is lost"))
            with pytest.raises(WorkerError, match="it is lost"):
                await registry.restart("first")
            assert kept.usable
            await until(lambda: ready(fleet) == [0, 1], START_S)

    asyncio.run(restarted())


def test_the_autoscaler_says_that_it_waits_for_a_machine(
    offers: tuple[NamedModel, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def two(question: ScaleQuestion) -> ScaleForecast:
        return ScaleForecast(2, {1: 0.5, 2: 1.0}, spare=False, requests=len(question.requests), seconds=0.0)

    async def decided() -> None:
        async with opened(offers, 1, 1) as (registry, fleet, machines):
            scaler = Autoscaler(registry, ScaleRange(1, 2), {"default": Objective(ttft_s=0.3)}, two, Instruments())
            await asyncio.gather(*(whole(fleet, job_of(number, PARAMS), f"w{number}") for number in range(4)))
            scaler.on_served(served(model="first"))
            for _ in range(2):
                await scaler.check(registry.models[0])
                last = fleet.decision
                assert last is not None
                assert (last.wanted, last.problem) == (2, fleet.lifecycle.problem)
                assert "1 of 2 replicas of first is not ready: no machine is free" in str(last.problem)
            Machines.room = 2
            machines.run()
            await until(lambda: fleet.lifecycle.problem is None, START_S)
            await scaler.check(registry.models[0])
            assert fleet.decision is not None
            assert (fleet.decision.wanted, fleet.decision.present, fleet.decision.problem) == (2, 2, None)

    with caplog.at_level(logging.INFO, "twofold.serve"):
        asyncio.run(decided())
    assert caplog.text.count("autoscale of first is not done: 1 of 2 replicas") == 1
