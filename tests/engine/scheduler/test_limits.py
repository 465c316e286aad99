"""Requests with a queue limit or a deadline: they are refused only before they have begun."""

from __future__ import annotations

import pytest

from tests.engine.scheduler.mock import finish_all, make_scheduler, make_sequence, turn
from twofold.core.errors import BusyError
from twofold.core.request import RequestOptions
from twofold.engine.scheduler.feature import NEW
from twofold.engine.scheduler.waits import TimeLimits

PATIENT = RequestOptions(queue_limit_s=2.0)


def test_sequences_that_wait_too_long_are_refused_and_running_ones_go_on() -> None:
    scheduler = make_scheduler(seqs=1)
    for number in range(2):
        scheduler.add(make_sequence(number, answer=20, options=PATIENT, arrival=1.0), 1.0)
    turn(scheduler, now=1.0)
    assert scheduler.expire(2.9) == []
    (event,) = scheduler.expire(3.0)
    assert (event.sequence_id, event.finish, event.tokens) == (1, "abort", ())
    assert isinstance(event.error, BusyError)
    assert event.error.retry_after_s == 2.0
    assert scheduler.expire(99.0) == []
    assert (scheduler.running, scheduler.waiting) == (1, 0)
    finish_all(scheduler)
    scheduler.check_idle()


def test_preempted_sequences_are_not_refused() -> None:
    scheduler = make_scheduler(seqs=1)
    scheduler.add(make_sequence(0, answer=20, options=PATIENT), 0.0)
    turn(scheduler, now=0.0)
    scheduler.pause(0, 1.0)
    scheduler.resume(0, 1.5)
    assert scheduler.expire(50.0) == []
    finish_all(scheduler)
    scheduler.check_idle()


def test_parallel_sequences_begin_with_the_one_that_computes_the_prompt() -> None:
    scheduler = make_scheduler(seqs=1)
    first = make_sequence(0, answer=20, options=PATIENT)
    scheduler.add(first, 0.0)
    scheduler.add(make_sequence(1, answer=20, options=PATIENT, parent=first), 0.0)
    turn(scheduler, now=0.0)
    assert scheduler.expire(50.0) == []
    finish_all(scheduler)
    scheduler.check_idle()


@pytest.mark.parametrize("seconds", [0.5, 1e6])
def test_the_suggested_wait_is_at_most_two_minutes(seconds: float) -> None:
    limits = TimeLimits()
    limits.waits(make_sequence(0, options=RequestOptions(queue_limit_s=seconds)), NEW, 0.0)
    event = limits.reached(2e6)
    assert event is not None
    assert isinstance(event.error, BusyError)
    assert event.error.retry_after_s == min(seconds, 120)


def test_a_deadline_precedes_a_refusal_and_both_free_everything() -> None:
    scheduler = make_scheduler(seqs=1)
    options = RequestOptions(deadline_s=1.0, queue_limit_s=1.0)
    scheduler.add(make_sequence(0, options=options), 0.0)
    assert [event.finish for event in scheduler.expire(5.0)] == ["deadline"]
    scheduler.check_idle()


def test_a_sequence_that_is_cancelled_is_not_refused_later() -> None:
    scheduler = make_scheduler(seqs=1)
    scheduler.add(make_sequence(0, options=PATIENT), 0.0)
    assert scheduler.end(0, 1.0)
    assert scheduler.expire(9.0) == []
    scheduler.check_idle()
