"""Under overload a request that would miss its objective is refused at once, and what is admitted meets it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.engine.scheduler.mock import make_sequence
from tests.engine.scheduler.test_forecast import Clock
from twofold.server.outlook import AIM, FAR, Outlook

SLOTS, TOKENS, PROMPT, OBJECTIVE_S = 8, 100, 20, 1.0


@dataclass
class Day:
    """Traffic to a real scheduler on a virtual clock: times to the first token, and refusals with their delays."""

    clock: Clock = field(default_factory=Clock)
    outlook: Outlook = field(default_factory=Outlook)
    arrived: dict[int, float] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    refused: list[tuple[float, float]] = field(default_factory=list)
    ended: int = 0

    def arrive(self, now: float) -> bool:
        """A request; returns whether it is admitted."""
        if self.outlook.asks(now):
            self.outlook.learn(self.clock.scheduler.queue_ahead(0, now).forecast(PROMPT, 0, now), now)
        delay_s = self.outlook.refuses(OBJECTIVE_S, now)
        if delay_s is not None:
            self.refused.append((now, delay_s))
            return False
        number = len(self.arrived)
        self.arrived[number] = now
        self.clock.scheduler.add(make_sequence(number, PROMPT, TOKENS, arrival=now, ignore_eos=True), now)
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


@pytest.fixture(scope="module")
def capacity() -> float:
    """Requests a second of a full engine."""
    day = Day()
    day.run([0.0] * (2 * SLOTS), 30.0, again=lambda now: now)
    return day.ended / 30.0


@pytest.mark.parametrize("load", [2.0, 10.0])
def test_overload_costs_little_goodput(capacity: float, load: float) -> None:
    day, seconds = Day(), 30.0
    day.run(poisson(load * capacity, seconds), seconds)
    assert day.refused
    assert day.in_time() >= 0.9 * capacity * seconds
    assert day.in_time() >= 0.9 * len(day.first)
    assert all(delay > 0.0 for _, delay in day.refused)


def test_without_refusals_the_same_load_leaves_nothing(capacity: float) -> None:
    day, seconds = Day(), 30.0
    day.outlook.at = math.inf  # nothing is learned
    day.run(poisson(2.0 * capacity, seconds), seconds)
    assert day.in_time() < 0.3 * capacity * seconds


def test_load_below_the_capacity_is_not_refused(capacity: float) -> None:
    day, seconds = Day(), 30.0
    day.run(poisson(0.7 * capacity, seconds), seconds)
    assert not day.refused


def test_callers_that_wait_for_their_replies_may_be_more_than_the_slots() -> None:
    day = Day()
    day.run([0.0] * (2 * SLOTS), 30.0, again=lambda now: now)
    assert not day.refused
    assert day.ended > SLOTS


def test_a_refusal_says_when_it_would_not_be_one() -> None:
    outlook = Outlook(queues_s=(10.0,), at=0.0)
    delay_s = outlook.refuses(2.0, 0.0) or 0.0
    assert delay_s == pytest.approx(10.0 - AIM * 2.0)
    assert outlook.refuses(2.0, delay_s - 0.1) is not None
    assert outlook.refuses(2.0, delay_s + 0.1) is None
    calm = Outlook(queues_s=(FAR * 2.0,), at=0.0)
    assert calm.refuses(2.0, 0.0) is None
    assert not math.isfinite(calm.refused_at)
