"""The record of a sequence: its work in each phase, and the reasons of its waits."""

from __future__ import annotations

import pytest

from tests.engine.scheduler.mock import finish_all, make_scheduler, make_sequence, turn
from tests.engine.scheduler.test_step_time import taught
from twofold.core.model import visible
from twofold.core.record import WaitReason


def test_work_is_counted_by_phase() -> None:
    scheduler = make_scheduler(rows=8)
    sequence = make_sequence(0, 12, 3)
    scheduler.add(sequence, 0.0)
    for _ in range(4):
        turn(scheduler, seconds=0.25)
    prefill, decode = sequence.record.prefill, sequence.record.decode
    assert (prefill.rows, prefill.steps, prefill.attended, prefill.read) == (12, 2, visible(0, 12), 8 + 12)
    assert (decode.rows, decode.steps, decode.attended, decode.read) == (2, 2, 13 + 14, 13 + 14)
    assert (prefill.seconds, decode.seconds, prefill.share, decode.share) == (0.5, 0.5, 2.0, 2.0)


def test_a_step_is_shared_by_rows() -> None:
    scheduler = make_scheduler(rows=8)
    sequences = [make_sequence(0, 2, 1), make_sequence(1, 6, 1)]
    for sequence in sequences:
        scheduler.add(sequence, 0.0)
    turn(scheduler)
    assert [sequence.record.prefill.share for sequence in sequences] == [0.25, 0.75]


def test_waiting_for_a_slot_counts_as_waiting_for_a_turn() -> None:
    scheduler = make_scheduler(seqs=1)
    first, second = make_sequence(0, 4, 2), make_sequence(1, 4, 2)
    for sequence in (first, second):
        scheduler.add(sequence, 0.0)
    for now in (0.0, 1.0, 2.0):
        turn(scheduler, now=now)
    assert first.record.stalls == {}
    assert second.record.stalls == {WaitReason.TURN: pytest.approx(2.0)}


def test_waiting_for_blocks_has_its_own_reason() -> None:
    scheduler = make_scheduler(blocks=4)
    sequences = [make_sequence(number, 10, 2) for number in range(2)]
    scheduler.add(sequences[0], 0.0)
    turn(scheduler, now=0.0)
    scheduler.add(sequences[1], 0.5)
    for now in (1.0, 2.0, 3.0, 4.0):
        turn(scheduler, now=now)
    stalls = sequences[1].record.stalls
    assert stalls[WaitReason.TURN] == pytest.approx(0.5)
    assert stalls[WaitReason.BLOCKS] > 0
    assert sum(stalls.values()) == pytest.approx((sequences[1].admitted_at or 0.0) - 0.5)


def test_prompt_rows_delay_those_that_generate() -> None:
    model = taught(600, noise=0.02)
    scheduler = make_scheduler(rows=128, logit_rows=128, blocks=200, model=model)
    sequence = make_sequence(0, 4, 5)
    scheduler.add(sequence, 0.0)
    turn(scheduler, seconds=0.005)
    scheduler.add(make_sequence(1, 100, 1), 0.0)
    turn(scheduler, seconds=0.05)
    finish_all(scheduler)
    assert 0.03 < sequence.record.stalls[WaitReason.PREFILL] < 0.05


def test_a_single_sequence_is_not_delayed() -> None:
    scheduler = make_scheduler(model=taught(100))
    sequence = make_sequence(0, 4, 5)
    scheduler.add(sequence, 0.0)
    finish_all(scheduler)
    assert sequence.record.stalls == {}


def test_a_sequence_that_ends_in_the_queue_keeps_its_stall() -> None:
    scheduler = make_scheduler(seqs=1)
    sequences = [make_sequence(number) for number in range(2)]
    for sequence in sequences:
        scheduler.add(sequence, 0.0)
    turn(scheduler)
    scheduler.end(1, 7.0)
    assert sequences[1].record.stalls == {WaitReason.TURN: 7.0}
    finish_all(scheduler)
    scheduler.check_idle()
