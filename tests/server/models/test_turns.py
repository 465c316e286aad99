"""Models that do not fit together take turns, and tenants that want them get equal parts of the memory's time."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.fleet.conftest import until
from tests.server.models.conftest import ONE_MODEL, TWO_MODELS, settings
from tests.server.models.test_registry import answered, opened, states
from twofold.core.errors import BusyError
from twofold.core.request import RequestOptions
from twofold.server.models import turns as turns_module
from twofold.server.models.named_models import NamedModel
from twofold.server.models.registry import ModelRegistry
from twofold.server.models.turns import KEPT_S, MAX_TURN_S, PATIENCE_S, TURN_S, Claim, ModelTurns, ModelUse

STEP_S = 0.05
LOAD_S = 0.5


class Memory:
    """Memory on a virtual clock: it loads and unloads models as ``ModelTurns`` says, each in LOAD_S."""

    def __init__(self, sizes: Sequence[int], budget: int, load_s: float = LOAD_S) -> None:
        self.now, self.load_s = 0.0, load_s
        self.models = [ModelUse() for _ in sizes]
        self.sizes = dict(zip(self.models, sizes, strict=True))
        self.turns = ModelTurns(self.models, budget)
        self.loading: dict[ModelUse, float] = {}
        self.loads = Counter[ModelUse]()

    def run(self) -> None:
        """Advances by STEP_S."""
        self.now += STEP_S
        for model, ready in list(self.loading.items()):
            if self.now >= ready:
                del self.loading[model]
                model.begin_turn(self.now, self.load_s)
        for model in self.models:
            absent = model.began is None and model not in self.loading
            model.needs = self.sizes[model] if absent and self.turns.wants(model, self.now) else None
        found = self.turns.next(self.now)
        for model in found.unload:
            assert not model.leases, "a model in use was unloaded"
            model.holds, model.began = False, None
        if found.load is not None:
            model = found.load
            model.holds, model.reserved, model.needs = True, self.sizes[model], None
            self.loading[model] = self.now + self.load_s
            self.loads[model] += 1
        assert sum(model.reserved for model in self.models if model.holds) <= self.turns._budget


class Caller:
    """Sends one request after the other to a model, each of which takes ``takes_s``, after a pause of ``pause_s``."""

    def __init__(
        self, memory: Memory, tenant: str, model: int, takes_s: float, pause_s: float = 0.0, priority: int = 0
    ) -> None:
        self.memory, self.model, self.takes_s, self.pause_s = memory, memory.models[model], takes_s, pause_s
        self.options = RequestOptions(priority=priority, tenant=tenant)
        self.claim: Claim[ModelUse] | None = None
        self.lease: int | None = None
        self.due = self.asked = 0.0
        self.waits: list[float] = []

    def run(self) -> None:
        memory, turns = self.memory, self.memory.turns
        if self.lease is not None and memory.now >= self.due:
            turns.leave(self.model, self.lease, memory.now)
            self.lease, self.due = None, memory.now + self.pause_s
        if self.lease is None and memory.now >= self.due:
            if self.claim is None:
                self.asked = memory.now
            if self.model.began is not None and not self.model.closed:
                self.waits.append(memory.now - self.asked)
                self.lease, self.due = (
                    turns.enter(self.model, self.options.tenant, memory.now),
                    memory.now + self.takes_s,
                )
                if self.claim is not None:
                    turns.stop_waiting(self.claim, memory.now)
                    self.claim = None
            elif self.claim is None:
                self.claim = turns.wait(self.model, self.options, memory.now)


def simulate(memory: Memory, callers: Sequence[Caller], seconds: float) -> None:
    until_s = memory.now + seconds
    while memory.now < until_s:
        memory.run()
        for caller in callers:
            caller.run()


@pytest.mark.parametrize("crowd", [1, 8])
def test_a_tenant_that_keeps_a_model_busy_does_not_keep_another_out(crowd: int) -> None:
    memory = Memory([6, 6], 10)
    busy = [Caller(memory, "blue", 1, 0.1) for _ in range(crowd)]
    polite = Caller(memory, "red", 0, 0.1, pause_s=0.2)
    simulate(memory, [*busy, polite], 120.0)
    waits = [wait for wait in polite.waits if wait > STEP_S]
    assert len(polite.waits) > 120.0 / 0.4 / 4  # about half of what it would get alone
    assert max(waits) <= TURN_S + 2 * LOAD_S + 1.0
    assert sum(len(each.waits) for each in busy) / crowd > 120.0 / 0.1 / 4
    assert sum(memory.loads.values()) <= 2 + 2 * 120.0 / (TURN_S + LOAD_S)  # they do not thrash


def test_an_open_stream_is_use_and_its_tenant_waits_for_it_later() -> None:
    """*blue* sends requests of 20 s that overlap, *red* short ones: their models get equal time, however long the
    requests of one are."""
    memory = Memory([6, 6], 10)
    streams = [Caller(memory, "blue", 1, 20.0, pause_s=pause) for pause in (0.0, 3.0, 7.0)]
    streams[1].due, streams[2].due = 7.0, 13.0
    short = [Caller(memory, "red", 0, 0.2) for _ in range(2)]
    simulate(memory, [*streams, *short], 600.0)
    assert min(len(each.waits) for each in streams) >= 5
    assert max(wait for each in short for wait in each.waits) <= 20.0 + TURN_S + PATIENCE_S + 2 * LOAD_S
    held = {tenant: memory.turns.held(tenant) for tenant in ("red", "blue")}
    assert held["red"] > held["blue"] / 4


def test_tenants_share_the_time_of_the_memory_not_their_models() -> None:
    """Four tenants use one model, one uses another: each gets a fifth."""
    memory = Memory([6, 6], 10)
    callers = [Caller(memory, tenant, 1, 0.3) for tenant in "abcd"] + [Caller(memory, "e", 0, 0.3)]
    simulate(memory, callers, 400.0)
    held = [memory.turns.held(tenant) for tenant in "abcde"]
    assert max(held) < 1.5 * min(held)


def test_a_more_urgent_class_goes_first_and_ageing_ends_its_precedence() -> None:
    memory = Memory([6, 6, 6], 10)
    first = Caller(memory, "a", 0, 3.0)
    simulate(memory, [first], 2.0)
    patient, urgent = Caller(memory, "b", 1, 3.0, priority=1), Caller(memory, "c", 2, 3.0)
    for caller, other in ((patient, urgent), (urgent, patient)):
        caller.due, other.due = memory.now, memory.now + 1.0
    simulate(memory, [first, patient, urgent], 12.0)
    assert urgent.waits
    assert not patient.waits
    simulate(memory, [first, patient, urgent], 60.0)
    assert len(patient.waits) >= 2


def test_a_turn_lasts_as_long_as_its_loading_deserves() -> None:
    for load_s, turn_s in ((0.1, TURN_S), (4.0, 8.0), (60.0, MAX_TURN_S)):
        memory = Memory([6, 6], 10, load_s)
        blue, red = Caller(memory, "blue", 0, 0.1), Caller(memory, "red", 1, 0.1)
        simulate(memory, [blue], load_s + 0.1)
        simulate(memory, [blue, red], turn_s + 0.5)
        began = memory.models[0].began
        assert began is None
        assert blue.memory.loads[memory.models[0]] == 1


def test_an_idle_model_makes_room_at_once_for_its_own_tenant_and_soon_for_others() -> None:
    for tenant, waited in (("blue", 0.0), ("red", turns_module.GAP_S)):
        memory = Memory([6, 6], 10)
        once = Caller(memory, "blue", 0, 0.1, pause_s=math.inf)
        simulate(memory, [once], LOAD_S + 0.2)
        other = Caller(memory, tenant, 1, 0.1, pause_s=math.inf)
        other.due = memory.now
        simulate(memory, [once, other], 2.0)
        assert other.waits == [pytest.approx(waited + LOAD_S, abs=0.15)]


def test_a_claim_that_is_kept_goes_on_and_one_whose_client_left_ends() -> None:
    memory = Memory([6, 6], 10)
    held = Caller(memory, "blue", 0, 50.0)
    simulate(memory, [held], 6.0)
    claim = memory.turns.wait(memory.models[1], RequestOptions(tenant="red"), memory.now)
    simulate(memory, [held], 1.0)
    assert memory.models[0].closed
    assert memory.turns.retry_after_s(memory.now) == pytest.approx(memory.now - LOAD_S, abs=1.0)
    memory.turns.stop_waiting(claim, memory.now, 10.0 + KEPT_S)
    simulate(memory, [held], 14.0)
    assert memory.models[0].closed
    simulate(memory, [held], 2.0)
    assert not memory.models[0].closed
    gone = memory.turns.wait(memory.models[1], RequestOptions(tenant="red"), memory.now)
    simulate(memory, [held], 1.0)
    assert memory.models[0].closed
    memory.turns.stop_waiting(gone, memory.now)
    simulate(memory, [held], 2 * STEP_S)
    assert not memory.models[0].closed
    assert not memory.turns._claims


# -- with worker processes -------------------------------------------------------------------------------------------


def test_a_model_in_use_is_closed_and_both_tenants_are_served(
    offers: tuple[NamedModel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.5)
    monkeypatch.setattr(turns_module, "LOADS", 0.0)
    served = Counter[str]()

    async def keep_busy(registry: ModelRegistry) -> None:
        while True:
            await answered(registry, "second", f"blue{served.total()}", "blue")
            served["blue"] += 1

    async def both() -> None:
        async with opened(offers, settings(ONE_MODEL)) as registry:
            busy = [asyncio.create_task(keep_busy(registry))]
            await until(lambda: served["blue"] >= 2)
            for number in range(3):
                before = served["blue"]
                assert await answered(registry, "first", f"red{number}", "red")
                await until(lambda before=before: served["blue"] > before)  # type: ignore[misc]
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

    asyncio.run(both())


def test_a_request_that_waits_ends_with_its_limit_or_its_client(
    offers: tuple[NamedModel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.2)
    monkeypatch.setattr(turns_module, "LOADS", 0.0)

    async def wait() -> None:
        async with opened(offers, settings(ONE_MODEL)) as registry:
            async with registry.lease("first", RequestOptions(tenant="blue")):
                leaving = asyncio.create_task(answered(registry, "second", "left", "red"))
                await until(lambda: registry.models[0].closed)
                late = asyncio.create_task(answered(registry, "first", "late", "green"))
                await asyncio.sleep(0.3)
                assert not late.done()  # it waits for its next turn
                leaving.cancel()
                assert await late  # the model is open again
                with pytest.raises(BusyError, match="waited for memory") as caught:
                    async with registry.lease("second", RequestOptions(tenant="red", queue_limit_s=0.5)):
                        pass
                assert 1.0 <= caught.value.retry_after_s <= 120.0
                assert registry.models[0].closed  # its claim is kept until it is sent again
            await until(lambda: states(registry) == ["unloaded", "ready"])
            assert await answered(registry, "second", "again", "red")

    asyncio.run(wait())


def test_what_fits_together_takes_no_turns(offers: tuple[NamedModel, ...]) -> None:
    async def together() -> None:
        async with opened(offers, settings(TWO_MODELS)) as registry, registry.lease("first"):
            assert await answered(registry, "second", "r", "red")
            assert states(registry) == ["ready", "ready"]

    asyncio.run(together())
