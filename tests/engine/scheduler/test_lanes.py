"""Lanes: the events of sequences, and what limited the prompt rows of a step. Random traffic is in ``test_traffic``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.scheduler.mock import answer_plan, finish_all, make_scheduler, make_sequence, turn
from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.request import RequestOptions
from twofold.engine.scheduler.budget import FixedBudget
from twofold.engine.scheduler.scheduler import Scheduler


def watched(**options: Any) -> Scheduler:
    scheduler = make_scheduler(**options)
    scheduler.watch(0.0)
    return scheduler


def kinds(events: list[LaneEvent]) -> str:
    return "".join(event.kind for event in events)


def test_nobody_watches_so_nothing_is_kept() -> None:
    scheduler = make_scheduler()
    for number in range(6):
        scheduler.add(make_sequence(number), 0.0)
    finish_all(scheduler)
    assert scheduler.lanes.take() == []


def test_a_plain_life_costs_six_events_however_long_it_is() -> None:
    scheduler = watched(blocks=64)
    scheduler.add(make_sequence(0, answer=100), 0.0)
    finish_all(scheduler, now=0.05)  # all steps at one time: one event for the tokens
    events = scheduler.lanes.take()
    assert kinds(events) == "+apfoo."
    assert events[0].values == (5,)
    assert events[1].values == (0, 0, 0)
    assert events[-2].values == (100,)
    assert (events[-1].values, events[-1].text) == ((100,), "length")


def test_tokens_are_reported_at_most_ten_times_a_second() -> None:
    scheduler = watched(blocks=64)
    scheduler.add(make_sequence(0, answer=100), 0.0)
    for step in range(50):
        turn(scheduler, now=step * 0.01)
    events = [event for event in scheduler.lanes.take() if event.kind is LaneKind.TOKENS]
    assert len(events) <= 6
    assert events[-1].values[0] > 40


def test_slots_are_the_lowest_free_numbers_and_are_kept() -> None:
    scheduler = watched(seqs=3)
    for number in range(3):
        scheduler.add(make_sequence(number, answer=9), 0.0)
    turn(scheduler)
    turn(scheduler)
    assert scheduler.lanes.slots == {0: 0, 1: 1, 2: 2}
    scheduler.end(0, 0.0)
    scheduler.add(make_sequence(9), 0.0)
    turn(scheduler)
    assert scheduler.lanes.slots == {1: 1, 2: 2, 9: 0}


def test_a_preempted_sequence_says_why_and_returns() -> None:
    scheduler = watched(seqs=2)
    for number, tenant in enumerate("aab"):
        scheduler.add(make_sequence(number, answer=6, options=RequestOptions(tenant=tenant)), 0.0)
        turn(scheduler)
    finish_all(scheduler)
    events = scheduler.lanes.take()
    (preempted,) = (event for event in events if event.kind is LaneKind.PREEMPT)
    assert preempted.text == "tenant"
    own = [event for event in events if event.number == preempted.number]
    assert kinds(own).replace("o", "").replace("p", "") == "+afxr."
    assert sum(event.number == 2 and event.kind is LaneKind.ADMIT for event in events) == 1


def test_a_paused_sequence_is_held_and_queued_again() -> None:
    scheduler = watched()
    scheduler.add(make_sequence(0, answer=9), 0.0)
    turn(scheduler)
    scheduler.pause(0, 1.0)
    scheduler.resume(0, 2.0)
    turn(scheduler, now=3.0)
    events = [event for event in scheduler.lanes.take() if event.kind not in {LaneKind.TOKENS, LaneKind.COMPUTE}]
    assert kinds(events) == "+afhur"
    assert [event.at for event in events[-3:]] == [1.0, 2.0, 3.0]


def test_watching_begins_with_what_runs_and_waits() -> None:
    scheduler = make_scheduler(seqs=1)
    for number in range(2):
        scheduler.add(make_sequence(number, answer=9, arrival=0.5 * number), 1.0)
    turn(scheduler, now=1.0, seconds=0.25)
    scheduler.watch(2.0)
    scheduler.watch(2.0)
    events = scheduler.lanes.take()
    assert [(event.number, event.kind, event.at) for event in events] == [
        (0, LaneKind.ARRIVE, 0.0),
        (0, LaneKind.ADMIT, 1.0),
        (0, LaneKind.FIRST, 1.25),
        (1, LaneKind.ARRIVE, 0.5),
    ]
    scheduler.lanes.unwatch()
    finish_all(scheduler)
    assert scheduler.lanes.take() == []


@pytest.mark.parametrize(
    ("limits", "prompts", "held"),
    [
        ({"rows": 20}, [5], "nothing"),
        ({"rows": 20}, [5, 40], "rows"),
        ({"rows": 20, "seqs": 2}, [5, 5, 5], "slots"),
        ({"rows": 20, "blocks": 4}, [5, 12], "blocks"),
    ],
)
def test_a_step_says_what_held_prompts_back(limits: dict[str, Any], prompts: list[int], held: str) -> None:
    scheduler = make_scheduler(**limits)
    for number, prompt in enumerate(prompts):
        scheduler.add(make_sequence(number, prompt, 3), 0.0)
    assert scheduler.plan(0.0).held_by == held


def test_a_step_says_how_many_rows_the_budget_allowed() -> None:
    scheduler = make_scheduler(rows=32, logit_rows=8, blocks=64, budget=FixedBudget(10))
    scheduler.watch(0.0)
    scheduler.add(make_sequence(0, answer=9), 0.0)
    assert turn(scheduler)[0].budget is None  # nothing generated
    scheduler.add(make_sequence(1, 40), 0.0)
    plan = scheduler.plan(0.0)
    assert (plan.budget, plan.held_by, plan.rows - plan.decode_rows) == (9, "budget", 9)
    scheduler.commit(plan, answer_plan(plan), 0.0)
    scheduler.lanes.unwatch()
    assert scheduler.plan(0.0).budget is None


def test_a_plan_counts_the_positions_that_its_rows_see() -> None:
    scheduler = make_scheduler(rows=20)
    scheduler.add(make_sequence(0, 5, options=RequestOptions(tenant="a")), 0.0)
    plan, _ = turn(scheduler)
    assert (plan.attended, plan.read) == (1 + 2 + 3 + 4 + 5, 5)
    plan = scheduler.plan(0.0)
    assert (plan.attended, plan.read) == (6, 6)
