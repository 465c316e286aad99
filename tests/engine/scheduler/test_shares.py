"""Slots are shared evenly among the tenants that want them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.scheduler.mock import finish_all, make_scheduler, make_sequence, turn
from tests.engine.scheduler.test_speculation import TEXT, FixedTimes
from tests.support.basis import BASIS
from twofold.core.request import RequestOptions
from twofold.core.step import SequenceOutcome, SequenceStep, StepOutcome
from twofold.engine.scheduler.budget import MIN_PREFILL_ROWS, LiveBudget
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.speculation import Speculator
from twofold.engine.scheduler.step_time import StepTimeModel

PLACES = 4
"""Of ``make_scheduler``'s steps."""


def add(scheduler: Scheduler, tenant: str, numbers: range, answer: int = 40, priority: int = 0) -> None:
    for number in numbers:
        options = RequestOptions(tenant=tenant, priority=priority)
        scheduler.add(make_sequence(number, prompt=3, answer=answer, options=options, arrival=float(number)), 0.0)


def places(scheduler: Scheduler) -> Counter[str]:
    return Counter(runner.options.tenant for runner in scheduler._running.values())


def full(blocks: int = 400) -> Scheduler:
    """A tenant holds every slot with long completions, and has more of them waiting."""
    scheduler = make_scheduler(blocks=blocks)
    add(scheduler, "bob", range(60))
    for _ in range(6):
        turn(scheduler)
    assert places(scheduler) == {"bob": PLACES}
    assert scheduler.preemptions == 0
    return scheduler


def test_a_second_tenant_is_served_within_a_few_steps() -> None:
    scheduler = full()
    add(scheduler, "alice", range(100, 101), answer=1)
    events = [event for _ in range(5) for event in turn(scheduler)[1]]
    assert [event.finish for event in events if event.sequence_id == 100] == ["length"]
    ended = [event for event in finish_all(scheduler) if event.finish]
    assert len({event.sequence_id for event in ended}) == 60
    scheduler.check_idle()


def test_two_tenants_that_want_all_slots_get_half_each() -> None:
    scheduler = full()
    add(scheduler, "alice", range(100, 160))
    for _ in range(12):
        turn(scheduler)
    assert places(scheduler) == {"bob": PLACES // 2, "alice": PLACES // 2}
    preempted = scheduler.preemptions
    for _ in range(10):
        turn(scheduler)
    assert scheduler.preemptions == preempted == PLACES // 2
    add(scheduler, "carol", range(200, 201), answer=1)
    events = [event for _ in range(60) for event in turn(scheduler)[1]]
    assert [event.finish for event in events if event.sequence_id == 200] == ["length"]


def test_a_less_urgent_tenant_takes_no_slot_of_a_more_urgent_one() -> None:
    scheduler = full()
    add(scheduler, "alice", range(100, 101), answer=1, priority=3)
    for _ in range(10):
        turn(scheduler)
    assert places(scheduler) == {"bob": PLACES}


def test_a_tenant_that_holds_all_blocks_loses_some_to_another() -> None:
    scheduler = make_scheduler(blocks=22)
    add(scheduler, "bob", range(10), answer=30)
    for _ in range(6):
        turn(scheduler)
    held = places(scheduler)["bob"]
    assert held >= 2
    add(scheduler, "alice", range(100, 101), answer=1)
    events = [event for _ in range(12) for event in turn(scheduler)[1]]
    assert [event.finish for event in events if event.sequence_id == 100] == ["length"]
    assert finish_all(scheduler)
    scheduler.check_idle()


def test_slots_of_paused_sequences_go_to_others_of_their_tenant() -> None:
    scheduler = full()
    for number in range(60):
        scheduler.pause(number, 0.0)
    assert (scheduler.running, scheduler.waiting) == (0, 60)
    add(scheduler, "bob", range(100, 101), answer=1)
    assert [event.finish for event in turn(scheduler)[1] if event.sequence_id == 100] == ["length"]
    for number in range(60):
        scheduler.resume(number, 0.0)
    ended = [event for event in finish_all(scheduler) if event.finish]
    assert len({event.sequence_id for event in ended}) == 60
    scheduler.check_idle()


def test_resumed_sequences_wait_for_their_tenants_turn() -> None:
    """Streams that pause and resume repeatedly delay another tenant by a few steps only."""
    scheduler = full()
    add(scheduler, "alice", range(100, 101), answer=1)
    events = []
    for _ in range(6):
        for number in range(60):
            scheduler.pause(number, 0.0)
            scheduler.resume(number, 0.0)
        events += turn(scheduler)[1]
    assert [event.finish for event in events if event.sequence_id == 100] == ["length"]


def test_a_resumed_sequence_goes_before_later_ones_of_its_tenant() -> None:
    scheduler = make_scheduler(seqs=1)
    add(scheduler, "bob", range(1))
    turn(scheduler)
    scheduler.pause(0, 0.0)
    add(scheduler, "bob", range(1, 3), answer=2)
    turn(scheduler)
    scheduler.resume(0, 0.0)
    ended = [event.sequence_id for event in finish_all(scheduler) if event.finish]
    assert ended == [1, 0, 2]
    scheduler.check_idle()


def test_the_time_that_a_preempted_sequence_waited_does_not_hold_up_prompts() -> None:
    """Its TPOT is far above the target when it runs again; prompts beside it get their rows all the same."""
    model = StepTimeModel(BASIS)
    budget = LiveBudget(model, tpot_target_s=0.04)
    scheduler = make_scheduler(rows=64, logit_rows=4, blocks=400, budget=budget, model=model)
    add(scheduler, "bob", range(PLACES), answer=300)
    now = 0.0

    def turns(count: int) -> None:
        nonlocal now
        for _ in range(count):
            turn(scheduler, now=now, seconds=0.02)
            now += 0.02

    turns(50)
    add(scheduler, "alice", range(100, 102), answer=200)
    turns(50)
    assert places(scheduler) == {"bob": 2, "alice": 2}
    turns(180)
    assert places(scheduler) == {"bob": PLACES}
    add(scheduler, "carol", range(200, 201))
    scheduler.add(make_sequence(300, prompt=50, answer=2, options=RequestOptions(tenant="carol"), arrival=now), now)
    rows = []
    for _ in range(12):
        plan, _ = turn(scheduler, now=now, seconds=0.02)
        rows += [len(step.tokens) for step in plan.steps if step.sequence_id == 300]
        now += 0.02
    assert rows[0] > MIN_PREFILL_ROWS


@pytest.mark.parametrize("slots", [4, 8])
def test_drafts_leave_rows_to_a_second_tenant(slots: int) -> None:
    """All of a tenant's sequences repeat themselves, so drafts would fill the step, and the slot that was freed for
    another tenant would get no row."""
    model = FixedTimes(0.001)
    scheduler = make_scheduler(slots, 16, 8, blocks=400, model=model, features=[Speculator(model, 8)])
    for number in range(40):
        options = RequestOptions(tenant="bob")
        scheduler.add(make_sequence(number, TEXT, 400, options=options, arrival=float(number)), 0.0)

    def repeated(step: SequenceStep) -> SequenceOutcome:
        tokens = (*step.tokens, step.tokens[-1] % 8 + 1)
        return SequenceOutcome(step.sequence_id, tokens[1:] if step.drafts else tokens[-1:] if step.samples else ())

    def turns(count: int) -> list[int]:
        served = []
        for _ in range(count):
            plan = scheduler.plan(0.0)
            outcome = StepOutcome(tuple(map(repeated, plan.steps)), 0.01)
            served += [event.sequence_id for event in scheduler.commit(plan, outcome, 0.0)]
        return served

    turns(30)
    drafted = scheduler.drafts.drafted
    for number in range(100, 105):
        options = RequestOptions(tenant="alice")
        scheduler.add(make_sequence(number, 1, 1, options=options, arrival=float(number)), 0.0)
        assert number in turns(4)
    assert turns(30)
    assert scheduler.drafts.drafted > drafted or slots == 8  # which fills the step without drafts
