"""The scheduler's rules by example."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.engine.scheduler.mock import (
    END,
    answer_plan,
    finish_all,
    make_manager,
    make_scheduler,
    make_sequence,
    shape,
    turn,
)
from twofold.core.errors import ContextLengthError, ParameterError, ResourceError
from twofold.core.request import CachePin, RequestOptions
from twofold.core.step import SAMPLED_TOKEN, MoveKind, SequenceOutcome, StepOutcome, TokenEvent
from twofold.engine.scheduler.budget import StepLimits
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import SequenceState


def test_nothing_to_do() -> None:
    scheduler = make_scheduler()
    assert not scheduler.plan(0.0)
    assert not scheduler.has_work


def test_a_long_prompt_goes_in_chunks() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=19), 0.0)
    assert [shape(turn(scheduler)[0]) for _ in range(4)] == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 3)], [(0, 19, 1)]]


def test_generating_sequences_come_first() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=3, answer=9), 0.0)
    turn(scheduler)
    scheduler.add(make_sequence(1, prompt=30), 0.0)
    assert shape(turn(scheduler)[0]) == [(0, 3, 1), (1, 0, 7)]
    assert shape(turn(scheduler)[0]) == [(0, 4, 1), (1, 7, 7)]


def test_first_come_first_served_even_where_a_later_one_would_fit() -> None:
    scheduler = make_scheduler(blocks=4)
    scheduler.add(make_sequence(0, prompt=8, answer=2), 0.0)
    scheduler.add(make_sequence(1, prompt=8, answer=2), 0.0)
    scheduler.add(make_sequence(2, prompt=1, answer=1), 0.0)
    turn(scheduler)
    assert (scheduler.running, scheduler.waiting) == (1, 2)


def test_several_prompts_share_a_step() -> None:
    scheduler = make_scheduler()
    for number in range(3):
        scheduler.add(make_sequence(number, prompt=3), 0.0)
    assert shape(turn(scheduler)[0]) == [(0, 0, 3), (1, 0, 3), (2, 0, 2)]


def test_no_more_sequences_than_allowed() -> None:
    scheduler = make_scheduler(seqs=2)
    for number in range(3):
        scheduler.add(make_sequence(number, prompt=1), 0.0)
    assert len(turn(scheduler)[0].steps) == 2


def test_scoring_a_prompt_is_limited_by_logit_rows() -> None:
    scheduler = make_scheduler(seqs=1, logit_rows=3)
    scheduler.add(make_sequence(0, prompt=7, reports_prompt=True, prompt_logprobs=0), 0.0)
    assert [len(turn(scheduler)[0].steps[0].tokens) for _ in range(3)] == [3, 3, 1]


def test_a_prompt_stops_before_its_last_row_if_no_logit_row_is_left() -> None:
    scheduler = make_scheduler(seqs=2, logit_rows=2, rows=20)
    scheduler.add(make_sequence(0, prompt=9, reports_prompt=True, prompt_logprobs=0), 0.0)
    scheduler.add(make_sequence(1, prompt=4), 0.0)
    assert shape(turn(scheduler)[0]) == [(0, 0, 2), (1, 0, 3)]
    assert shape(turn(scheduler)[0]) == [(1, 3, 1), (0, 2, 1)]


def test_events_have_tokens_and_finish_reasons() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=10, answer=5), 0.0)
    assert turn(scheduler)[1] == []
    assert turn(scheduler, token=4)[1] == [TokenEvent(0, (4,), (), ())]
    assert turn(scheduler, token=END)[1] == [TokenEvent(0, (END,), (), (), "stop", END)]
    scheduler.check_idle()


class DelayedConstraint:
    """A constraint that is not ready before the test makes it so."""

    ready = True
    finished = False
    shortened = False

    forced = ()

    def masks(self) -> list[None]:
        return [None]

    def prepare(self, drafts: Iterable[int] = ()) -> None:
        """Nothing to make."""

    def wait(self) -> bool:
        return self.ready

    def advance(self, tokens: Iterable[int]) -> None:
        """Rules nothing out."""


class RecordingConstraint(DelayedConstraint):
    """A constraint that records its calls in a list of all constraints."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls

    @property
    def finished(self) -> bool:  # type: ignore[override]
        self._calls.append(f"finished {self._name}")
        return False

    def prepare(self, _drafts: Iterable[int] = ()) -> None:
        self._calls.append(f"prepare {self._name}")

    def advance(self, tokens: Iterable[int]) -> None:
        self._calls.append(f"advance {self._name} {list(tokens)}")


def test_all_constraints_take_their_tokens_before_one_is_waited_for() -> None:
    """Masks are requested while the next step is computed: requested earlier, they delay its start."""
    calls: list[str] = []
    scheduler = make_scheduler()
    for number, prompt, answer in ((0, 2, 9), (1, 2, 9), (2, 2, 1), (3, 60, 9)):
        constraint = RecordingConstraint(str(number), calls)
        scheduler.add(make_sequence(number, prompt=prompt, answer=answer, constraint=constraint), 0.0)
    turn(scheduler, token=4)
    assert calls[:3] == ["advance 0 [4]", "advance 1 [4]", "advance 2 [4]"]
    assert calls[3:] == ["finished 0", "finished 1", "finished 2"]


def deferring_turn(scheduler: Scheduler, late: int) -> tuple[list[tuple[int, int, int]], list[TokenEvent]]:
    """A turn in which one sequence does not sample, because its mask is not ready."""
    plan = scheduler.plan(0.0)
    outcome = answer_plan(plan)
    sequences = tuple(
        replace(each, tokens=(), deferred=True) if each.sequence_id == late else each for each in outcome.sequences
    )
    return list(shape(plan)), scheduler.commit(plan, replace(outcome, sequences=sequences), 0.0)


def test_a_sequence_whose_mask_is_late_waits_and_others_go_on() -> None:
    """Only the last row of a long prompt is computed again, and only when it can be sampled."""
    scheduler, delayed = make_scheduler(), DelayedConstraint()
    scheduler.add(make_sequence(0, prompt=10, answer=5, constraint=delayed), 0.0)
    scheduler.add(make_sequence(1, prompt=3, answer=9), 0.0)
    while scheduler.running < 2 or not scheduler.defers:
        delayed.ready = False
        deferring_turn(scheduler, late=0)
    for _ in range(3):
        rows, events = deferring_turn(scheduler, late=0)
        assert [number for number, _, _ in rows] == [1]
        assert [event.sequence_id for event in events] == [1]
    delayed.ready = True
    plan, events = turn(scheduler)
    assert (0, 9, 1) in shape(plan)
    assert TokenEvent(0, (1,), (), ()) in events
    assert not scheduler.defers


def test_an_output_found_complete_late_ends_without_a_token() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=2, answer=5, constraint=DelayedConstraint()), 0.0)
    assert turn(scheduler)[1] == [TokenEvent(0, (1,), (), ())]
    plan = scheduler.plan(0.0)
    outcome = StepOutcome((SequenceOutcome(0, complete=True),))
    assert scheduler.commit(plan, outcome, 0.0) == [TokenEvent(0, (), (), (), "stop")]
    scheduler.check_idle()


def test_cancel_while_waiting_running_and_in_flight() -> None:
    scheduler = make_scheduler(seqs=1)
    for number in range(2):
        scheduler.add(make_sequence(number, prompt=2), 0.0)
    plan = scheduler.plan(0.0)
    assert scheduler.end(1, 0.0)
    assert scheduler.end(0, 0.0)
    assert not scheduler.end(0, 0.0)
    assert scheduler.commit(plan, answer_plan(plan), 0.0) == []
    scheduler.check_idle()


def test_the_refusal_of_a_sequence_that_could_never_run_has_both_numbers() -> None:
    scheduler = make_scheduler(blocks=2)
    with pytest.raises(ContextLengthError, match=r"9 tokens of KV cache, which holds 8\."):
        scheduler.add(make_sequence(0, prompt=5, answer=5), 0.0)
    scheduler.add(make_sequence(1, prompt=5, answer=4), 0.0)


def test_limits_must_hold_every_sequence() -> None:
    with pytest.raises(ParameterError) as caught:
        StepLimits(9, 8, 16)
    assert caught.value.param == "max_num_seqs"
    with pytest.raises(ParameterError):
        StepLimits(0, 8, 8)


def test_check_idle_finds_a_leak() -> None:
    manager = make_manager(4)
    held = manager.open(make_sequence().tokens, "", 0.0, most=0)
    assert manager.grow(held, 0, 1, 0.0)
    with pytest.raises(AssertionError, match="leaked"):
        make_scheduler(1, 1, 1, manager=manager).check_idle()


def test_a_flood_is_refused_without_effect_on_queued_requests() -> None:
    scheduler = make_scheduler(max_waiting=2)
    for number in range(2):
        scheduler.add(make_sequence(number), 0.0)
    with pytest.raises(ResourceError) as caught:
        scheduler.add(make_sequence(2), 0.0)
    assert (caught.value.status, caught.value.hint is not None) == (503, True)
    finish_all(scheduler)
    scheduler.check_idle()


def test_a_deadline_ends_waiting_and_running_sequences() -> None:
    scheduler = make_scheduler(seqs=1)
    for number in range(2):
        options = RequestOptions(deadline_s=2.0)
        scheduler.add(make_sequence(number, answer=20, options=options, arrival=1.0), 1.0)
    turn(scheduler, now=1.0)
    assert scheduler.expire(2.9) == []
    assert scheduler.expire(3.0) == [TokenEvent(n, (), (), finish="deadline") for n in range(2)]
    assert not scheduler.has_work
    scheduler.check_idle()


def test_an_urgent_request_goes_before_an_earlier_one() -> None:
    scheduler = make_scheduler(seqs=1)
    scheduler.add(make_sequence(0), 0.0)
    scheduler.add(make_sequence(1, options=RequestOptions(priority=-1)), 0.0)
    assert scheduler.waiting == 2
    assert shape(turn(scheduler)[0]) == [(1, 0, 5)]


def test_a_prompt_that_was_computed_is_found() -> None:
    scheduler = make_scheduler()
    first = make_sequence(0, prompt=[1] * 14)
    scheduler.add(first, 0.0)
    finish_all(scheduler)
    second = make_sequence(1, prompt=[1] * 14)
    scheduler.add(second, 0.0)
    assert shape(turn(scheduler)[0]) == [(1, 13, 1)]
    assert (first.record.cached, first.record.fresh) == (0, 14)
    assert (second.record.cached, second.record.fresh) == (13, 1)


def test_parallel_completions_share_the_prompt_of_the_first() -> None:
    manager = make_manager(blocks=8)
    scheduler = make_scheduler(manager=manager)
    first = make_sequence(0, prompt=14, answer=2)
    scheduler.add(first, 0.0)
    for number in (1, 2):
        scheduler.add(make_sequence(number, prompt=first.tokens, answer=2, parent=first), 0.0)
    assert shape(turn(scheduler)[0]) == [(0, 0, 8)]
    assert shape(turn(scheduler)[0]) == [(0, 8, 6)]
    plan = scheduler.plan(0.0)
    assert shape(plan) == [(0, 14, 1), (1, 13, 1), (2, 13, 1)]
    assert [move.kind for move in plan.moves] == [MoveKind.COPY, MoveKind.COPY]
    assert manager.held == (6,)
    scheduler.commit(plan, answer_plan(plan), 0.0)
    finish_all(scheduler)
    scheduler.check_idle()


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_siblings_go_on_without_a_cancelled_parent(state: str) -> None:
    scheduler = make_scheduler()
    parent = make_sequence(0, prompt=14)
    scheduler.add(parent, 0.0)
    child = make_sequence(1, prompt=parent.tokens, parent=parent)
    scheduler.add(child, 0.0)
    if state == "running":
        turn(scheduler)
    scheduler.end(0, 0.0)
    finish_all(scheduler)
    assert child.finish_reason == "length"
    scheduler.check_idle()


def test_a_beam_branches_at_once_and_in_place() -> None:
    scheduler = make_scheduler()
    beam = make_sequence(0, prompt=6, answer=4, candidates=2)
    scheduler.add(beam, 0.0)
    (event,) = turn(scheduler)[1]
    assert (event.tokens, len(event.candidates), event.finish) == ((), 2, None)
    assert not scheduler.plan(0.0)
    scheduler.fork(0, make_sequence(1, prompt=[*beam.tokens, 50], answer=3, candidates=2), 0.0)
    beam.extend(51)
    assert shape(turn(scheduler)[0]) == [(0, 6, 1), (1, 6, 1)]
    assert all(scheduler.end(number, 0.0) for number in (0, 1))
    scheduler.check_idle()


def test_resting_beams_are_preempted_for_a_waiting_one() -> None:
    scheduler = make_scheduler(seqs=1)
    beams = [make_sequence(number, prompt=6, answer=4, candidates=2) for number in range(2)]
    for beam in beams:
        scheduler.add(beam, 0.0)
    assert [turn(scheduler)[1][0].sequence_id for _ in range(2)] == [0, 1]
    assert (beams[0].state, beams[1].state) == (SequenceState.WAITING, SequenceState.RUNNING)
    for beam in beams:
        beam.extend(50)
    events = [event for _ in range(3) for event in turn(scheduler)[1]]
    assert sorted(event.sequence_id for event in events) == [0, 1]


def test_pooling_and_scoring_end_with_their_prompt() -> None:
    scheduler = make_scheduler(logit_rows=16)
    scheduler.add(make_sequence(0, prompt=10, answer=0, pooling="mean"), 0.0)
    events = finish_all(scheduler)
    assert [(list(event.hidden or ()), event.finish) for event in events] == [([8.0], None), ([2.0], "stop")]
    scheduler.add(make_sequence(1, prompt=10, answer=0, samples=False, reports_prompt=True, prompt_logprobs=0), 0.0)
    events = finish_all(scheduler)
    assert [(len(event.prompt_logprobs), event.finish) for event in events] == [(8, None), (1, "length")]
    scheduler.check_idle()


def test_plans_have_predicted_times_after_enough_steps() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=1, answer=20), 0.0)
    plans = [turn(scheduler, seconds=0.01)[0] for _ in range(12)]
    assert plans[0].predicted_s is None
    assert plans[-1].predicted_s == pytest.approx(0.01, rel=0.1)


def test_blocks_that_a_window_has_passed_are_released() -> None:
    manager = make_manager(blocks=60, window=8)
    scheduler = make_scheduler(manager=manager, window=8)
    scheduler.add(make_sequence(0, prompt=100, answer=20), 0.0)
    most = 0
    while scheduler.has_work:
        turn(scheduler)
        most = max(most, manager.held[1])
    assert most <= 6
    scheduler.check_idle()


def test_pins_end_for_a_sequence_that_could_not_run_otherwise() -> None:
    manager = make_manager(blocks=8)
    scheduler = make_scheduler(manager=manager)
    scheduler.add(make_sequence(0, prompt=17, answer=1, options=RequestOptions(cache_pins=(CachePin(tokens=16),))), 0.0)
    finish_all(scheduler)
    assert manager.pinned == (4,)
    scheduler.add(make_sequence(1, prompt=28, answer=4), 0.0)
    finish_all(scheduler)
    assert manager.pinned == (0,)
    scheduler.check_idle()


def test_rows_are_planned_before_their_tokens_are_known() -> None:
    scheduler = make_scheduler()
    for number in range(3):
        scheduler.add(make_sequence(number, prompt=2, answer=4 + number), 0.0)
    turn(scheduler)
    ahead = []
    for _ in range(6):
        plan = scheduler.plan(0.0)
        ahead.append([step.tokens == SAMPLED_TOKEN for step in plan.steps])
        scheduler.plan_ahead(plan)
        scheduler.commit(plan, answer_plan(plan), 0.0)
    # A fourth position fills the block of 4: the fifth needs another one, which only ``plan`` takes.
    assert ahead == [[False] * 3, [True] * 3, [False] * 3, [True] * 2, [True], []]
    scheduler.check_idle()


def test_rows_planned_ahead_are_dropped_with_their_sequence() -> None:
    scheduler = make_scheduler()
    for number in range(3):
        scheduler.add(make_sequence(number, prompt=1, answer=9), 0.0)
    turn(scheduler)
    plan = scheduler.plan(0.0)
    scheduler.plan_ahead(plan)
    scheduler.end(1, 0.0)
    scheduler.commit(plan, answer_plan(plan, lambda step: END if step.sequence_id == 2 else 1), 0.0)
    plan = scheduler.plan(0.0)
    assert shape(plan) == [(0, 2, 1)]
    assert plan.steps[0].tokens == SAMPLED_TOKEN
    scheduler.end(0, 0.0)
    scheduler.check_idle()


def test_rows_planned_ahead_are_dropped_when_their_sequence_is_paused() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=1, answer=9), 0.0)
    turn(scheduler)
    plan = scheduler.plan(0.0)
    scheduler.plan_ahead(plan)
    scheduler.commit(plan, answer_plan(plan), 0.0)
    scheduler.pause(0, 0.0)
    scheduler.resume(0, 0.0)
    (step,) = scheduler.plan(0.0).steps
    assert step.begin is not None
    assert SAMPLED_TOKEN[0] not in step.tokens
    scheduler.end(0, 0.0)
