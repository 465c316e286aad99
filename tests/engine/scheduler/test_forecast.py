"""What a request would meet: forecasts beside what then happens, on steps that take what the model predicts."""

from __future__ import annotations

import pytest

from tests.engine.scheduler.mock import answer_plan, make_scheduler, make_sequence
from tests.support.basis import BASIS
from twofold.engine.scheduler.budget import LiveBudget
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

WEIGHTS = (4e-3, 3e-4, 8e-5, 1e-4, 4e-7, 1e-6)


class ExactTimes(StepTimeModel):
    """Predicts with these weights, and learns nothing."""

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Every step takes what was predicted."""


class Clock:
    """A scheduler whose steps take what its model predicts, without error."""

    def __init__(self, tpot_target_s: float = 0.05, slots: int = 8) -> None:
        self.model = ExactTimes.of_weights(BASIS, WEIGHTS)
        budget = LiveBudget(self.model, tpot_target_s)
        self.scheduler: Scheduler = make_scheduler(slots, 64, 64, 2048, model=self.model, budget=budget)
        self.now = 0.0

    def step(self) -> set[int]:
        """One step; the sequences that sampled in it."""
        plan = self.scheduler.plan(self.now)
        shape = StepShape()
        for step in plan.steps:
            shape = shape.plus(step.start, len(step.tokens), step.logit_rows)
        seconds = self.model.predict(shape)
        assert seconds is not None
        self.now += seconds
        events = self.scheduler.commit(plan, answer_plan(plan, seconds=seconds), self.now)
        return {event.sequence_id for event in events if event.tokens}


@pytest.mark.parametrize("decoding", [0, 2])
@pytest.mark.parametrize("waiting", [0, 1, 3])
@pytest.mark.parametrize("rows", [10, 200])
def test_the_forecast_is_near_what_happens(decoding: int, waiting: int, rows: int) -> None:
    clock = Clock()
    for number in range(decoding):
        clock.scheduler.add(make_sequence(number, 5, 400), clock.now)
    while decoding and clock.step() != set(range(decoding)):
        pass
    for number in range(10, 10 + waiting):
        clock.scheduler.add(make_sequence(number, 100, 200, arrival=clock.now), clock.now)
    before = clock.scheduler.waiting
    forecast = clock.scheduler.queue_ahead(0, clock.now).forecast(rows, 0, clock.now)
    assert (forecast.ahead, forecast.running) == (waiting, decoding)
    assert clock.scheduler.waiting == before
    assert forecast.queue_s is not None
    assert forecast.prefill_s is not None
    started = clock.now
    clock.scheduler.add(make_sequence(99, rows, 4, arrival=clock.now), clock.now)
    while 99 not in clock.step():
        pass
    assert forecast.queue_s + forecast.prefill_s == pytest.approx(clock.now - started, rel=0.35)


@pytest.mark.parametrize("target_s", [0.005, 0.0065, 0.008, 0.02])
@pytest.mark.parametrize("decoding", [0, 2, 5])
@pytest.mark.parametrize("crowd", [6, 20])
def test_the_forecast_behind_a_crowd_is_near_what_happens(target_s: float, decoding: int, crowd: int) -> None:
    """Prompts that end generate beside the others, and the target leaves them rows on average, not as many as now."""
    clock = Clock(target_s, slots=32)
    for number in range(decoding):
        clock.scheduler.add(make_sequence(number, 5, 100), clock.now)
    for _ in range(10 if decoding else 0):
        clock.step()
    for number in range(10, 10 + crowd):
        clock.scheduler.add(make_sequence(number, 100, 40, arrival=clock.now), clock.now)
    forecast = clock.scheduler.queue_ahead(0, clock.now).forecast(100, 0, clock.now)
    started = clock.now
    clock.scheduler.add(make_sequence(99, 100, 4, arrival=clock.now), clock.now)
    while 99 not in clock.step():
        pass
    assert forecast.queue_s is not None
    assert forecast.prefill_s is not None
    assert 0.6 < (forecast.queue_s + forecast.prefill_s) / (clock.now - started) < 1.6


def test_without_a_free_slot_the_queue_takes_the_tokens_until_one_is_free() -> None:
    clock = Clock()
    for number in range(8):
        clock.scheduler.add(make_sequence(number, 5, 400), clock.now)
    while clock.step() != set(range(8)):
        pass
    full = clock.scheduler.queue_ahead(0, clock.now).forecast(10, 0, clock.now)
    clock.scheduler.end(0, clock.now)
    free = clock.scheduler.queue_ahead(0, clock.now).forecast(10, 0, clock.now)
    assert full.queue_s is not None
    assert free.queue_s == 0.0
    assert full.queue_s > 10 * (full.tpot_s or 0.0)


def test_less_urgent_sequences_are_not_ahead_and_nothing_is_predicted_at_first() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, 5, 4), 0.0)
    assert scheduler.queue_ahead(0, 1.0).forecast(10, 0, 1.0).ahead == 1
    assert scheduler.queue_ahead(-100, 1.0).forecast(10, 0, 1.0).ahead == 0
    assert scheduler.queue_ahead(0, 1.0).forecast(10, 4, 1.0).queue_s is None


def test_tpot_counts_the_positions_that_every_sequence_reads() -> None:
    clock = Clock()
    clock.scheduler.add(make_sequence(0, 500, 400), clock.now)
    while not clock.step():
        pass
    forecast = clock.scheduler.queue_ahead(0, clock.now).forecast(300, 0, clock.now)
    assert forecast.tpot_s == clock.model.predict(StepShape().plus(500, 1, 1).plus(300, 1, 1))


def test_the_chunk_beside_generating_sequences_is_that_of_the_budget_also_before_a_prompt_arrives() -> None:
    clock = Clock(tpot_target_s=5.5e-3)
    clock.scheduler.add(make_sequence(0, 5, 400), clock.now)
    while not clock.step():
        pass
    chunk = clock.scheduler.queue_ahead(0, clock.now).work(lambda _: 0, clock.now).chunk
    clock.scheduler.add(make_sequence(1, 200, 4, arrival=clock.now), clock.now)
    steps = {step.sequence_id: len(step.tokens) for step in clock.scheduler.plan(clock.now).steps}
    assert chunk == steps[1] < 63
