"""The autoscaler: a real fleet under load, and the decisions that it makes of records."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.fleet.conftest import ENGINE, job_of, until, until_idle, whole
from tests.observe.served import served
from tests.support.basis import BASIS, PRIOR
from twofold.core.errors import BusyError
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.fleet.fleet import Fleet
from twofold.fleet.scale import ScaleForecast, ScaleQuestion, ScaleRange, forecast
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.requests import Objective
from twofold.server.models.autoscaler import Autoscaler, on_process
from twofold.server.models.named_models import NamedModel
from twofold.server.models.registry import ModelRegistry, RegistrySettings
from twofold.server.planning.process import PlannerProcess

STREAMS = 12
PARAMS = SamplingParams(seed=11, max_tokens=400, ignore_eos=True)
BOUNDS = ScaleRange(1, 2)
ROOMY = 64 << 20


async def here(question: ScaleQuestion) -> ScaleForecast:
    return forecast(question)


def settings(budget: int = ROOMY) -> RegistrySettings:
    return RegistrySettings(engine=ENGINE, memory_budget=budget, autoscale=BOUNDS)


def decode_s(fleet: Fleet) -> float:
    """Predicted seconds of a step with one row."""
    load = fleet.lifecycle.own[0].load
    assert load is not None
    return load.step_time.predict(StepShape(1, 1, 100, 100)) or 0.0


def expected_of(path: Path) -> list[list[int]]:
    """The tokens of each request without others."""
    with LLM(str(path), **ENGINE) as llm:
        ids = [list(job_of(number).token_ids) for number in range(STREAMS)]
        alone = [llm.generate([{"prompt_token_ids": each}], PARAMS)[0] for each in ids]
    return [list(each.outputs[0].token_ids) for each in alone]


def test_a_second_replica_comes_with_load_and_goes_without(offers: tuple[NamedModel, ...]) -> None:
    """An engine runs 4 of the requests at once, so some wait for 400 steps of others; the objective allows 100."""
    expected = expected_of(Path(offers[0].source))

    async def scaled() -> None:
        registry = ModelRegistry(offers[:1], settings())
        planner = PlannerProcess()
        try:
            async with registry.lease(None) as fleet:
                await asyncio.gather(*(whole(fleet, job_of(number, PARAMS), f"w{number}") for number in range(4)))
                await until(
                    lambda: fleet.lifecycle.own[0].load is not None and fleet.lifecycle.own[0].load.step_time.ready
                )
                objectives = {"default": Objective(ttft_s=100 * decode_s(fleet))}
                scaler = Autoscaler(
                    registry,
                    BOUNDS,
                    objectives,
                    on_process(planner),
                    Instruments(),
                    check_s=0.05,
                    window_s=3.0,
                    quiet_s=0.2,
                )
                requests = [
                    asyncio.create_task(whole(fleet, job_of(number, PARAMS), f"r{number}")) for number in range(STREAMS)
                ]
                await until(lambda: fleet.requests.streams)
                running = asyncio.create_task(scaler.run())
                await until(lambda: len(fleet.lifecycle.own) == 2, 30.0)
                up = fleet.decision
                outputs = await asyncio.gather(*requests)
                assert [list(each.outputs[0].token_ids) for each in outputs] == expected
                assert up is not None
                assert (up.wanted, up.present) == (2, 1)
                assert up.forecast is not None
                assert up.forecast.attainment[1] < BOUNDS.attainment
                await until(lambda: len(fleet.lifecycle.own) == 1, 30.0)
                assert fleet.decision is not None
                await until_idle(fleet)
                running.cancel()
                assert (fleet.lifecycle.own[0].number, fleet.lifecycle.own[0].restarts) == (0, 0)
        finally:
            planner.close()
            await registry.close()

    asyncio.run(scaled())


def test_records_become_a_question_and_a_decision(
    offers: tuple[NamedModel, ...], caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[ScaleQuestion] = []

    async def two(question: ScaleQuestion) -> ScaleForecast:
        asked.append(question)
        if len(asked) == 3:
            raise BusyError("Too many calculations are waiting.", retry_after_s=1)
        return ScaleForecast(2, {1: 0.5, 2: 1.0}, spare=False, requests=len(question.requests), seconds=0.0)

    async def decided() -> None:
        registry, instruments = ModelRegistry(offers[:1], settings(14 << 20)), Instruments()
        scaler = Autoscaler(registry, BOUNDS, {"default": Objective(ttft_s=0.3)}, two, instruments)
        model = registry.models[0]
        try:
            await scaler.check(model)  # not loaded
            async with registry.lease(None) as fleet:
                await scaler.check(model)
                assert fleet.decision is not None
                assert (fleet.decision.wanted, fleet.decision.reason) == (1, "no request in the last minutes")
                for tier in ("default", "batch"):
                    scaler.on_served(served(model=model.names[0], tier=tier))
                load = fleet.lifecycle.own[0].load
                assert load is not None
                load.step_time = StepTimeModel(BASIS)
                await scaler.check(model)
                assert fleet.decision.reason == "the times of steps are not known yet"
                load.learn(PRIOR)
                await scaler.check(model)
                (question,) = asked
                assert [each[1:] for each in question.requests] == [(20, 16, 21, "default"), (20, 16, 21, "batch")]
                assert (question.present, question.engine.weights) == (1, PRIOR)
                last = fleet.decision
                assert (last.wanted, last.measured) == (2, 0.0)
                assert last.problem is not None
                assert "bytes of memory" in last.problem, "there is no room for the second replica"
                assert len(fleet.lifecycle.own) == 1
                await scaler.check(model)
                await scaler.check(model)
                assert fleet.decision.problem == "Too many calculations are waiting."
                assert fleet.decision.wanted == 1
                families = {family.name: family for each in instruments.snapshots() if (family := each.family())}
                assert {sample.value for sample in families["twofold:autoscale_replicas"].samples} == {1.0}
                assert not families["twofold:autoscale_attainment"].samples
        finally:
            await registry.close()

    with caplog.at_level(logging.INFO, "twofold.serve"):
        asyncio.run(decided())
    found = [each.getMessage() for each in caplog.records if "autoscale of first" in each.getMessage()]
    assert [each.removeprefix("autoscale of first")[:20] for each in found] == [
        ": 1 replica wanted: ",
        ": 2 replicas wanted:",
        " is not done: 2 repl",
        ": 1 replica wanted: ",
        " is not done: Too ma",
    ]


def test_a_change_during_a_simulation_stays(offers: tuple[NamedModel, ...]) -> None:
    """The simulation was about another number of replicas, whether it fails or not."""
    fails = False

    async def decided() -> None:
        registry = ModelRegistry(offers[:1], settings())

        async def changed(_: ScaleQuestion) -> ScaleForecast:
            await registry.scale("first", 3 - len(fleet.lifecycle.own))
            if fails:
                raise BusyError("Too many calculations are waiting.", retry_after_s=1)
            return ScaleForecast(1, {1: 1.0}, spare=True, seconds=0.0)

        try:
            async with registry.lease(None) as fleet:
                load = fleet.lifecycle.own[0].load
                assert load is not None
                load.learn(PRIOR)
                scaler = Autoscaler(registry, BOUNDS, {}, changed, Instruments())
                scaler.on_served(served(model="first"))
                for fails_now, replicas in ((False, 2), (True, 1)):
                    nonlocal fails
                    fails = fails_now
                    await scaler.check(registry.models[0])
                    assert (len(fleet.lifecycle.own), fleet.decision) == (replicas, None)
        finally:
            await registry.close()

    asyncio.run(decided())


def test_an_unexpected_fault_ends_no_later_decision(
    offers: tuple[NamedModel, ...], caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    async def broken(_: ScaleQuestion) -> ScaleForecast:
        nonlocal asked
        asked += 1
        raise RuntimeError("a fault of the simulation")

    async def scaled() -> None:
        registry = ModelRegistry(offers[:1], settings())
        try:
            async with registry.lease(None) as fleet:
                load = fleet.lifecycle.own[0].load
                assert load is not None
                load.learn(PRIOR)
                scaler = Autoscaler(registry, BOUNDS, {}, broken, Instruments(), check_s=0.01)
                scaler.on_served(served(model=offers[0].names[0]))
                running = asyncio.create_task(scaler.run())
                await until(lambda: asked >= 2)
                running.cancel()
        finally:
            await registry.close()

    with caplog.at_level(logging.ERROR, "twofold.serve"):
        asyncio.run(scaled())
    assert "a fault of the simulation" in caplog.text
