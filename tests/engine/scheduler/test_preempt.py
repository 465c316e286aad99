"""Running out of blocks: which sequence is preempted, how, and that no output changes."""

from __future__ import annotations

import pytest

from tests.engine.scheduler.memory import BlockMemory
from tests.engine.scheduler.mock import (
    answer_plan,
    finish_all,
    make_manager,
    make_scheduler,
    make_sequence,
    shape,
    turn,
)
from tests.engine.scheduler.test_step_time import taught
from tests.support.basis import BASIS
from twofold.core.record import WaitReason
from twofold.core.request import RequestOptions
from twofold.core.step import BlockMove, MoveKind, SequenceStep, StepOutcome, StepPlan
from twofold.engine.scheduler.blocks import PreemptionCost
from twofold.engine.scheduler.budget import FixedBudget
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.step_time import StepTimeModel, StepWork


def crowd(scheduler: Scheduler, count: int = 4, answer: int = 24) -> list[Sequence]:
    sequences = [make_sequence(number, 6, answer, arrival=float(number)) for number in range(count)]
    for sequence in sequences:
        scheduler.add(sequence, sequence.arrival)
    return sequences


def squeezed(host: int = 0, model: StepTimeModel | None = None) -> tuple[Scheduler, list[Sequence]]:
    """Two sequences that were admitted while blocks were expected to last, and then did not."""
    scheduler = make_scheduler(rows=16, blocks=13, host=host, model=model)
    scheduler._look_ahead.share = 0.0
    return scheduler, crowd(scheduler, count=2)


def until_preempted(scheduler: Scheduler) -> StepPlan:
    """Turns until one preempts; that turn's plan."""
    for _ in range(100):
        plan, _ = turn(scheduler, now=3.0)
        if scheduler.preemptions:
            return plan
    raise AssertionError("nobody was preempted")


def play(scheduler: Scheduler, sequences: list[Sequence], moves_s: float = 0.0) -> dict[int, list[int]]:
    """Turns to the end with checked contents; sampled tokens depend only on sequence and position."""
    memory, now = BlockMemory((None,), 4), 5.0
    drawn: dict[int, list[int]] = {sequence.sequence_id: [] for sequence in sequences}
    while scheduler.has_work:
        plan = scheduler.plan(now)
        memory.run(plan, {sequence.sequence_id: sequence for sequence in sequences})
        outcome = answer_plan(plan, _token, seconds=0.5, moves_s=moves_s * len(plan.moves))
        now += 0.5
        for event in scheduler.commit(plan, outcome, now):
            drawn[event.sequence_id] += event.tokens
        scheduler.check_idle()
    return drawn


def _token(step: SequenceStep) -> int:
    assert step.samples, "nothing else is drawn"
    return 1000 + 100 * step.sequence_id + step.end


def test_the_latest_is_preempted_and_returns_first() -> None:
    scheduler, (first, second) = squeezed()
    until_preempted(scheduler)
    assert (first.state, second.state) == (SequenceState.RUNNING, SequenceState.WAITING)
    scheduler.add(make_sequence(7, 1, 1, arrival=0.5), 3.0)
    assert scheduler.queue.head() is second


def test_the_least_urgent_class_is_preempted_even_if_it_came_first() -> None:
    scheduler = make_scheduler(rows=16, blocks=13)
    scheduler._look_ahead.share = 0.0
    patient = make_sequence(0, 6, 24, options=RequestOptions(priority=1))
    urgent = make_sequence(1, 6, 24, arrival=1.0)
    for sequence in (patient, urgent):
        scheduler.add(sequence, 1.0)
    until_preempted(scheduler)
    assert (patient.state, urgent.state) == (SequenceState.WAITING, SequenceState.RUNNING)


@pytest.mark.parametrize("host", [0, 20])
def test_preemption_shows_in_the_record_and_not_in_the_output(host: int) -> None:
    alone = [make_sequence(0, 6, 24), make_sequence(1, 6, 24)]
    expected: dict[int, list[int]] = {}
    for sequence in alone:
        scheduler = make_scheduler(rows=16, blocks=20)
        scheduler.add(sequence, 0.0)
        expected |= play(scheduler, [sequence])
    scheduler, sequences = squeezed(host, taught(100, noise=0.02))
    scheduler._cost._block_s = 1e-6
    assert play(scheduler, sequences, moves_s=1e-6) == expected
    record = sequences[1].record
    assert record.preemptions >= 1
    assert record.stalls[WaitReason.PREEMPTED] > 0
    assert (scheduler.swaps > 0, record.swapped > 0, record.recomputed > 0) == (host > 0, host > 0, host == 0)


def test_the_cheaper_of_swapping_and_recomputing_is_chosen() -> None:
    model, manager = taught(600, noise=0.02), make_manager(blocks=200)
    cost = PreemptionCost(manager, model)
    scheduler = make_scheduler(rows=400, logit_rows=400, manager=manager, model=model, budget=FixedBudget(400))
    sequence = make_sequence(0, 300, 20)
    scheduler.add(sequence, 0.0)
    turn(scheduler)
    again = cost.recompute_s(sequence)
    assert again is not None
    assert cost.blocks(sequence) == 75
    for block_s, prefers in ((again / 151, True), (again / 149, False)):
        cost._block_s = block_s
        assert cost.prefers_swap(sequence) is prefers


def test_without_knowledge_of_step_times_tokens_are_computed_again() -> None:
    manager = make_manager()
    cost, sequence = PreemptionCost(manager, StepTimeModel(BASIS)), make_sequence(0, 6)
    scheduler = make_scheduler(manager=manager)
    scheduler.add(sequence, 0.0)
    turn(scheduler)
    assert not cost.prefers_swap(sequence)


def test_the_time_of_moves_is_learned() -> None:
    cost = PreemptionCost(make_manager(), StepTimeModel(BASIS))
    plan, outcome = StepPlan((), (BlockMove(MoveKind.OUT, 0, 1, 2),) * 4), StepOutcome((), 0.0, 0.04)
    for _ in range(100):
        cost.computed(plan, outcome, StepWork.measure(plan, outcome, StepTimeModel(BASIS)))
    assert cost._block_s == pytest.approx(0.01, rel=0.01)


def test_admission_looks_ahead_to_avoid_preemption() -> None:
    scheduler = make_scheduler(rows=16, blocks=9)
    sequences = crowd(scheduler)
    finish_all(scheduler)
    assert scheduler.preemptions == 0
    assert all(sequence.generated == 24 for sequence in sequences)


def test_completions_shorter_than_their_limit_raise_admission() -> None:
    scheduler = make_scheduler(seqs=8, rows=16, blocks=24)
    for number in range(60):
        scheduler.add(make_sequence(number, 6, 50), 0.0)
    together = []
    while scheduler.has_work:
        plan, _ = turn(scheduler, token=9 if scheduler.running else 1)
        together.append(len(plan.steps))
    assert together[0] == 1
    assert max(together) > 2


def test_a_sequence_that_fits_alone_always_finishes() -> None:
    scheduler = make_scheduler(seqs=4, rows=32, blocks=10)
    scheduler._look_ahead.share = 0.0
    sequences = [make_sequence(number, 30, 10, arrival=float(number)) for number in range(6)]
    for sequence in sequences:
        scheduler.add(sequence, 0.0)
    finish_all(scheduler)
    assert all(sequence.finish_reason == "length" for sequence in sequences)
    scheduler.check_idle()


def test_rows_of_a_preempted_sequence_are_removed_from_the_step() -> None:
    scheduler = make_scheduler(rows=16, blocks=13)
    scheduler._look_ahead.share = 0.0
    late = make_sequence(0, 6, 24, options=RequestOptions(priority=5))
    early = make_sequence(1, 6, 24)
    for sequence in (late, early):
        scheduler.add(sequence, 0.0)
    plan = until_preempted(scheduler)
    assert [number for number, _, _ in shape(plan)] == [1]


def test_a_prompt_takes_a_smaller_chunk_before_it_preempts() -> None:
    scheduler = make_scheduler(rows=32, blocks=40, window=8, manager=make_manager(blocks=6, window=8))
    sequence = make_sequence(0, 20, 2)
    scheduler.add(sequence, 0.0)
    finish_all(scheduler)
    assert (sequence.finish_reason, scheduler.preemptions) == ("length", 0)
