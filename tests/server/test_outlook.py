"""Under overload a request that would miss its objective is refused at once, and what is admitted meets it."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.engine.scheduler.mock import make_sequence
from tests.engine.scheduler.test_forecast import Clock
from twofold.server.outlook import AIM, FAR, Outlook, admitted_part

TOKENS, OBJECTIVE_S = 100, 1.0


@dataclass
class Day:
    """Traffic of one tenant to a real scheduler on a virtual clock: times to the first token, and refusals with their
    delays."""

    slots: int = 8
    prompt: int = 20
    clock: Clock = field(init=False)
    outlook: Outlook = field(default_factory=Outlook)
    arrived: dict[int, float] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    refused: list[tuple[float, float]] = field(default_factory=list)
    ended: int = 0

    def __post_init__(self) -> None:
        self.clock = Clock(slots=self.slots)

    def arrive(self, now: float) -> bool:
        """A request; returns whether it is admitted."""
        running = Counter(one=len(self.clock.scheduler._live))
        if running["one"] >= admitted_part(self.slots, running, "one"):
            if self.outlook.asks(now):
                self.outlook.learn(self.clock.scheduler.queue_ahead(0, now).forecast(self.prompt, 0, now), now)
            delay_s = self.outlook.refuses(OBJECTIVE_S, now)
            if delay_s is not None:
                self.refused.append((now, delay_s))
                return False
        number = len(self.arrived)
        self.arrived[number] = now
        self.clock.scheduler.add(make_sequence(number, self.prompt, TOKENS, arrival=now, ignore_eos=True), now)
        return True

    def run(
        self, arrivals: list[float], seconds: float, again: Callable[[float], float | None] = lambda _: None
    ) -> None:
        """Runs for so many seconds; ``again`` says when the caller of a request that ended sends the next one."""
        heapq.heapify(arrivals)
        known = 0
        while self.clock.now < seconds:
            while arrivals and arrivals[0] <= self.clock.now:
                self.arrive(heapq.heappop(arrivals))
            if not self.clock.scheduler.has_work:
                self.clock.now = arrivals[0] if arrivals else seconds
                continue
            live = set(self.clock.scheduler._live)
            for number in self.clock.step():
                self.first.setdefault(number, self.clock.now)
            gone = len(live - set(self.clock.scheduler._live))
            self.ended += gone
            for _ in range(gone):
                if (at := again(self.clock.now)) is not None:
                    heapq.heappush(arrivals, at)
            known += gone

    def in_time(self) -> int:
        return sum(self.first[number] - self.arrived[number] <= OBJECTIVE_S for number in self.first)


def poisson(rate: float, seconds: float, seed: int = 1) -> list[float]:
    random, now, found = Random(seed), 0.0, list[float]()
    while (now := now + random.expovariate(rate)) < seconds:
        found.append(now)
    return found


@pytest.fixture(scope="module", params=[(8, 20), (32, 200)], ids=["slots are short", "time is short"])
def machine(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Slots, and prompt tokens."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def capacity(machine: tuple[int, int]) -> float:
    """Requests a second of a full engine."""
    day = Day(*machine)
    day.outlook.asked_at = math.inf
    day.run([0.0] * 2 * day.slots, 30.0, again=lambda now: now)
    return day.ended / 30.0


@pytest.mark.parametrize("load", [2.0, 10.0])
def test_overload_costs_little_goodput(machine: tuple[int, int], capacity: float, load: float) -> None:
    day, seconds = Day(*machine), 60.0
    day.run(poisson(load * capacity, seconds), seconds)
    assert day.refused
    assert day.in_time() >= 0.9 * capacity * seconds
    assert day.in_time() >= 0.9 * len(day.first)
    assert all(delay > 0.0 for _, delay in day.refused)


def test_without_refusals_the_same_load_leaves_nothing(machine: tuple[int, int], capacity: float) -> None:
    day, seconds = Day(*machine), 30.0
    day.outlook.asked_at = math.inf  # nothing is learned
    day.run(poisson(2.0 * capacity, seconds), seconds)
    assert day.in_time() < 0.3 * capacity * seconds


def test_load_below_the_capacity_is_not_refused(machine: tuple[int, int], capacity: float) -> None:
    day, seconds = Day(*machine), 30.0
    day.run(poisson(0.7 * capacity, seconds), seconds)
    assert not day.refused


@pytest.mark.parametrize(("slots", "prompt", "callers"), [(8, 20, 16), (32, 200, 8)])
def test_callers_that_wait_for_their_replies_are_not_refused(slots: int, prompt: int, callers: int) -> None:
    """They may be more than the slots, and few may have more work than the objective allows."""
    day = Day(slots, prompt)
    day.run([0.0] * callers, 30.0, again=lambda now: now)
    assert not day.refused
    assert day.ended > callers


def test_a_refusal_says_when_it_would_not_be_one() -> None:
    outlook = Outlook(queues_s=(10.0,), at=0.0)
    delay_s = outlook.refuses(2.0, 0.0) or 0.0
    assert delay_s == pytest.approx(10.0 - AIM * 2.0)
    assert outlook.refuses(2.0, delay_s - 0.1) is not None
    assert outlook.refuses(2.0, delay_s + 0.1) is None
    calm = Outlook(queues_s=(FAR * 2.0,), at=0.0)
    assert calm.refuses(2.0, 0.0) is None
    assert not math.isfinite(calm.refused_at)


def test_a_tenants_part() -> None:
    """One job is always admitted, a few if it is alone; beside others, as many as each of them has on average."""
    assert [admitted_part(slots, Counter(), "a") for slots in (1, 2, 4, 16, 32, 128)] == [1, 2, 4, 4, 8, 32]
    assert admitted_part(32, Counter(a=8), "a") == 8  # the ninth needs a prediction
    assert admitted_part(32, Counter(a=20), "a") == 20
    assert admitted_part(32, Counter(b=20), "a") == 10
    assert admitted_part(32, Counter({f"{number}": 1 for number in range(99)}), "a") == 1
