"""The waiting queue of a model: no tenant fills it for the others."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold.core.errors import BusyError
from twofold.core.forecast import Forecast
from twofold.core.params import SamplingParams
from twofold.observe.metrics.requests import Objective
from twofold.server.admission import Admission, QueueLimits, Tiers


class Line:
    """An admission, and a model of which nothing ends."""

    def __init__(self, **limits: int) -> None:
        self._admission = Admission(Tiers.standard(), QueueLimits(**limits))
        self.model = SimpleNamespace(name="m", queued=0, facts=SimpleNamespace(context=4096))
        self._stack = ExitStack()

    def ask(self, tenant: str, prompts: int = 1, tokens: int = 3) -> None:
        context = SimpleNamespace(caller=SimpleNamespace(tenant=tenant), quota=None)
        job = SimpleNamespace(token_ids=(1,) * tokens, params=SamplingParams(max_tokens=1))
        admitted = self._admission.admit(cast(Any, context), cast(Any, [job] * prompts), cast(Any, self.model))
        self._stack.enter_context(admitted)
        self.model.queued += prompts

    def end(self) -> None:
        self._stack.close()
        self.model.queued = 0


def test_one_request_of_many_prompts_leaves_room_for_other_tenants() -> None:
    line = Line(requests=8)
    line.ask("bob", prompts=2_048)
    with pytest.raises(BusyError, match="2048 requests are already queued"):
        line.ask("bob")
    for _ in range(4):
        line.ask("alice")
    with pytest.raises(BusyError):
        line.ask("alice")
    line.ask("carol", prompts=2)
    with pytest.raises(BusyError):
        line.ask("carol")
    line.end()
    line.ask("bob", prompts=8)
    with pytest.raises(BusyError):
        line.ask("bob")


def test_a_request_that_would_be_late_is_refused_unless_its_tenant_has_less_than_its_part() -> None:
    """The engine says that the queue takes 20 s; of four slots, bob has all."""
    admission = Admission(Tiers.standard(), QueueLimits(), {"default": Objective(ttft_s=2.0)})
    asked = []

    async def forecast(job: object) -> Forecast:
        asked.append(job)
        return Forecast(0, 9, 4, 20.0, 0.1, 0.05, None, (20.0,))

    facts = SimpleNamespace(context=4096)
    model: Any = SimpleNamespace(name="m", queued=1, slots=4, facts=facts, forecast=forecast)
    job: Any = SimpleNamespace(token_ids=(1,), params=SamplingParams(max_tokens=1))

    def context(tenant: str, tier: str = "default") -> Any:
        caller = SimpleNamespace(tenant=tenant)
        return SimpleNamespace(caller=caller, quota=None, record=SimpleNamespace(tier=tier))

    async def ask() -> None:
        with ExitStack() as stack:
            for _ in range(4):
                await admission.check_wait(context("bob"), [job], model)
                stack.enter_context(admission.admit(context("bob"), [job], model))
            assert not asked  # there was a slot for each
            for _ in range(20):
                with pytest.raises(BusyError, match="far later than the 2 s") as caught:
                    await admission.check_wait(context("bob"), [job], model)
                assert 18.0 <= caught.value.retry_after_s <= 20.0
            assert len(asked) <= 2  # the engine is not asked for each
            await admission.check_wait(context("alice"), [job], model)
            await admission.check_wait(context("bob", "batch"), [job], model)

    asyncio.run(ask())


def test_a_single_tenant_may_use_the_whole_queue() -> None:
    line = Line(requests=8)
    for _ in range(8):
        line.ask("")
    with pytest.raises(BusyError):
        line.ask("")


def test_long_prompts_are_counted_by_their_tokens_too() -> None:
    line = Line(requests=8, tokens=80)
    line.ask("bob", tokens=75)
    line.ask("alice", tokens=10)
    with pytest.raises(BusyError):
        line.ask("alice", tokens=11)
