"""The scheduler's rules by example, and its laws under random traffic."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.sched.mock import END, answer_plan, make_sequence
from twofold.core.errors import ContextLengthError, ParameterError
from twofold.core.step import Logits, StepPlan, TokenEvent
from twofold.kv.pool import BlockPool
from twofold.sched.scheduler import Scheduler, StepLimits
from twofold.sched.sequence import Sequence, State


def make_scheduler(seqs: int = 4, rows: int = 8, logit_rows: int = 8, blocks: int = 32) -> Scheduler:
    return Scheduler(BlockPool(blocks, 4), StepLimits(seqs, rows, logit_rows))


def turn(scheduler: Scheduler, token: int = 1) -> tuple[StepPlan, list[TokenEvent]]:
    plan = scheduler.plan(0.0)
    return plan, scheduler.commit(plan, answer_plan(plan, lambda _: token))


def shape(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(step.sequence_id, step.start, len(step.tokens)) for step in plan.steps]


def test_nothing_to_do() -> None:
    scheduler = make_scheduler()
    assert not scheduler.plan(0.0)
    assert not scheduler.has_work


def test_a_long_prompt_goes_in_chunks() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=19))
    assert [shape(turn(scheduler)[0]) for _ in range(4)] == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 3)], [(0, 19, 1)]]


def test_generating_sequences_come_first() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=3, answer=9))
    turn(scheduler)
    scheduler.add(make_sequence(1, prompt=30))
    assert shape(turn(scheduler)[0]) == [(0, 3, 1), (1, 0, 7)]
    assert shape(turn(scheduler)[0]) == [(0, 4, 1), (1, 7, 7)]


def test_first_come_first_served_even_where_a_later_one_would_fit() -> None:
    scheduler = make_scheduler(blocks=4)
    scheduler.add(make_sequence(0, prompt=8, answer=2))
    scheduler.add(make_sequence(1, prompt=8, answer=2))
    scheduler.add(make_sequence(2, prompt=1, answer=1))
    turn(scheduler)
    assert (scheduler.running, scheduler.waiting) == (1, 2)


def test_several_prompts_share_a_step() -> None:
    scheduler = make_scheduler()
    for number in range(3):
        scheduler.add(make_sequence(number, prompt=3))
    assert shape(turn(scheduler)[0]) == [(0, 0, 3), (1, 0, 3), (2, 0, 2)]


def test_no_more_sequences_than_allowed() -> None:
    scheduler = make_scheduler(seqs=2)
    for number in range(3):
        scheduler.add(make_sequence(number, prompt=1))
    assert len(turn(scheduler)[0].steps) == 2


def test_scoring_a_prompt_is_limited_by_logit_rows() -> None:
    scheduler = make_scheduler(seqs=1, logit_rows=3)
    scheduler.add(make_sequence(0, prompt=7, scores_prompt=True, prompt_logprobs=0))
    assert [len(turn(scheduler)[0].steps[0].tokens) for _ in range(3)] == [3, 3, 1]


def test_a_prompt_stops_short_of_its_draw_when_logit_rows_are_gone() -> None:
    scheduler = make_scheduler(seqs=2, logit_rows=2, rows=20)
    scheduler.add(make_sequence(0, prompt=9, scores_prompt=True, prompt_logprobs=0))
    scheduler.add(make_sequence(1, prompt=4))
    assert shape(turn(scheduler)[0]) == [(0, 0, 2), (1, 0, 3)]
    assert shape(turn(scheduler)[0]) == [(1, 3, 1), (0, 2, 1)]


def test_events_say_what_happened() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, prompt=10, answer=5))
    assert turn(scheduler)[1] == []
    assert turn(scheduler, token=4)[1] == [TokenEvent(0, (4,), (), ())]
    assert turn(scheduler, token=END)[1] == [TokenEvent(0, (END,), (), (), "stop", END)]
    scheduler.check_idle()


def test_cancel_while_waiting_running_and_in_flight() -> None:
    scheduler = make_scheduler(seqs=1)
    for number in range(2):
        scheduler.add(make_sequence(number, prompt=2))
    plan = scheduler.plan(0.0)
    assert scheduler.cancel(1)
    assert scheduler.cancel(0)
    assert not scheduler.cancel(0)
    assert scheduler.commit(plan, answer_plan(plan)) == []
    scheduler.check_idle()


def test_what_could_never_run_is_refused_with_both_numbers() -> None:
    scheduler = make_scheduler(blocks=2)
    with pytest.raises(ContextLengthError, match=r"9 tokens of KV cache, which holds 8\."):
        scheduler.add(make_sequence(0, prompt=5, answer=5))
    scheduler.add(make_sequence(1, prompt=5, answer=4))


def test_limits_must_hold_every_sequence() -> None:
    with pytest.raises(ParameterError) as caught:
        StepLimits(9, 8, 16)
    assert caught.value.param == "max_num_seqs"
    with pytest.raises(ParameterError):
        StepLimits(0, 8, 8)


def test_check_idle_sees_a_leak() -> None:
    pool = BlockPool(4, 4)
    pool.take(1)
    with pytest.raises(AssertionError, match="leaked"):
        Scheduler(pool, StepLimits(1, 1, 1)).check_idle()


class SchedulerMachine(RuleBasedStateMachine):
    """Random traffic. Laws: limits hold, rows are exactly the next ones, work always moves, order of arrival is kept,
    nothing leaks, and every sequence ends with an honest reason.
    """

    @initialize(
        seqs=st.integers(1, 4), rows=st.integers(4, 12), logit_rows=st.integers(4, 6), blocks=st.integers(8, 20)
    )
    def start(self, seqs: int, rows: int, logit_rows: int, blocks: int) -> None:
        self.limits = StepLimits(seqs, rows, logit_rows)
        self.pool = BlockPool(blocks, 4)
        self.scheduler = Scheduler(self.pool, self.limits)
        self.sequences: dict[int, Sequence] = {}
        self.admitted: list[int] = []

    @rule(prompt=st.integers(1, 20), answer=st.integers(1, 8), scores=st.booleans())
    def add(self, prompt: int, answer: int, scores: bool) -> None:
        number = len(self.sequences)
        sequence = make_sequence(number, prompt, answer, scores_prompt=scores, prompt_logprobs=1 if scores else None)
        self.scheduler.add(sequence)
        self.sequences[number] = sequence

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.sequences:
            number = data.draw(st.sampled_from(sorted(self.sequences)))
            live = self.sequences[number].state is not State.FINISHED
            assert self.scheduler.cancel(number) is live

    @rule(token=st.sampled_from([1, 1, 1, END]), lost=st.integers(0, 30))
    def step(self, token: int, lost: int) -> None:
        plan = self.scheduler.plan(float(len(self.admitted)))
        assert bool(plan) is self.scheduler.has_work
        self._check_plan(plan)
        if lost in self.sequences:
            self.scheduler.cancel(lost)
        for event in self.scheduler.commit(plan, answer_plan(plan, lambda _: token)):
            assert self.sequences[event.sequence_id].finish_reason == event.finish

    def _check_plan(self, plan: StepPlan) -> None:
        wanted = {Logits.NONE: 0, Logits.LAST: 1}
        logit_rows = sum(wanted.get(step.logits, len(step.tokens)) for step in plan.steps)
        assert plan.rows <= self.limits.rows
        assert logit_rows <= self.limits.logit_rows
        assert len(plan.steps) <= self.limits.sequences
        assert len({step.sequence_id for step in plan.steps}) == len(plan.steps)
        for step in plan.steps:
            sequence = self.sequences[step.sequence_id]
            assert step.start == sequence.computed
            assert step.tokens == sequence.tokens[step.start : step.start + len(step.tokens)]
            assert (step.draw is not None) is (step.start + len(step.tokens) == sequence.known)
            assert len(step.tables[0]) * 4 >= step.start + len(step.tokens)

    @invariant()
    def laws(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.scheduler.check_idle()
        assert self.pool.free + self.pool.held == self.pool.blocks
        for sequence in self.sequences.values():
            assert 0 <= sequence.cached <= sequence.computed <= sequence.known <= sequence.limit
            assert (sequence.finish_reason is not None) is (sequence.state is State.FINISHED)
        waiting = [n for n, sequence in self.sequences.items() if sequence.state is State.WAITING]
        never_ran_before = [n for n in self.sequences if waiting and n < waiting[0]]
        assert all(self.sequences[n].state is not State.WAITING for n in never_ran_before)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for _ in range(2000):
            if not self.scheduler.has_work:
                break
            self.step(1, -1)
        assert not self.scheduler.has_work
        assert self.pool.held == 0


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
