"""Counts of a sequence's work against counting one position after the other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.core.record import MAX_PAUSES, AttendedPositions, Pause, PhaseWork, SequenceRecord, WaitReason

chunks = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=6)


def counted(steps: list[tuple[int, int]], window: int | None) -> AttendedPositions:
    """Looks at every position that every row sees."""
    seen = AttendedPositions()
    for start, rows in steps:
        sights = [range(max(0, i + 1 - (window or i + 1)), i + 1) for i in range(start, start + rows)]
        seen.attended += sum(map(len, sights))
        seen.read += len(set().union(*sights))
    return seen


@settings(max_examples=60)
@given(steps=chunks, window=st.integers(1, 50))
def test_rows_see_the_positions_of_their_window(steps: list[tuple[int, int]], window: int) -> None:
    work = PhaseWork()
    for start, rows in steps:
        work.add_step(start, rows, step_rows=rows, logit_rows=1, seconds=1.0, windows=(window,))
    assert AttendedPositions(work.attended, work.read) == counted(steps, None)
    assert work.windowed.get(window, AttendedPositions()) == counted(steps, window)
    assert (work.rows, work.steps, work.share) == (sum(rows for _, rows in steps), len(steps), len(steps))


def test_steps_are_shared_by_rows() -> None:
    work = PhaseWork()
    work.add_step(0, 3, step_rows=4, logit_rows=0, seconds=0.5, predicted_s=0.4)
    work.add_step(3, 1, step_rows=4, logit_rows=1, seconds=0.25)
    assert (work.share, work.logit_rows) == (1.0, 1)
    assert work.machine_s == 0.5 * 3 / 4 + 0.25 / 4
    assert (work.seconds, work.predicted_s, work.unpredicted_s) == (0.75, 0.4, 0.25)


def test_stalls_add_up_by_cause() -> None:
    record = SequenceRecord()
    record.stall(WaitReason.PREEMPTED, 2.0, until=5.0)
    record.stall(WaitReason.PREFILL, 0.25)
    record.stall(WaitReason.PREEMPTED, 1.0, until=9.0)
    record.stall(WaitReason.TURN, 0.0, until=9.0)
    assert record.stalls == {WaitReason.PREEMPTED: 3.0, WaitReason.PREFILL: 0.25}
    assert record.pauses == [Pause(WaitReason.PREEMPTED, 3.0, 5.0), Pause(WaitReason.PREEMPTED, 8.0, 9.0)]


def test_pauses_are_few_and_seconds_all() -> None:
    record = SequenceRecord()
    for i in range(MAX_PAUSES + 9):
        record.stall(WaitReason.TURN, 0.5, until=float(i))
    assert len(record.pauses) == MAX_PAUSES
    assert record.stalls[WaitReason.TURN] == (MAX_PAUSES + 9) / 2


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_work_of_a_request_is_the_sum_over_its_sequences(count: int) -> None:
    def one(start: int) -> SequenceRecord:
        record = SequenceRecord(preemptions=1, recomputed=2, swapped=3, cached=4, fresh=5)
        record.prefill.add_step(start, 5, step_rows=10, logit_rows=1, seconds=1.0, predicted_s=2.0, windows=(4,))
        record.decode.add_step(start + 5, 1, step_rows=1, logit_rows=1, seconds=0.5, windows=(4,))
        record.stall(WaitReason.BLOCKS, 1.0, until=10.0 - start)
        return record

    records = [one(start) for start in range(count)]
    whole = SequenceRecord.merged(records)
    assert (whole.preemptions, whole.recomputed, whole.swapped) == (count, 2 * count, 3 * count)
    assert (whole.cached, whole.fresh) == (4 * count, 5 * count)
    assert whole.stalls == ({WaitReason.BLOCKS: float(count)} if count else {})
    assert [pause.end for pause in whole.pauses] == sorted(10.0 - start for start in range(count))
    for name in ("prefill", "decode"):
        parts: list[PhaseWork] = [getattr(record, name) for record in records]
        total: PhaseWork = getattr(whole, name)
        for field in ("rows", "attended", "read", "steps", "share", "seconds", "predicted_s", "machine_s"):
            assert getattr(total, field) == sum(getattr(part, field) for part in parts)
        assert total.unpredicted_s == sum(part.unpredicted_s for part in parts)
        windows = [part.windowed[4] for part in parts]
        if windows:
            assert total.windowed[4] == AttendedPositions(
                sum(w.attended for w in windows), sum(w.read for w in windows)
            )
    assert all(record.prefill.windowed[4] is not whole.prefill.windowed[4] for record in records)
