"""Where the time of a request went, as lines for a terminal.

queue         0.4 ms
prefill      61.2 ms  38 rows in 1 step; at least 45.1 ms (arithmetic), 74% of the limit
decode      318.0 ms  63 rows in 63 steps; at least 250.3 ms (memory), 79% of the limit
stalled      12.0 ms  preempted 1 time, 38 tokens computed again
stalled       3.1 ms  waiting behind others' prefill
drafted               28 of 35 tokens were right; 28 steps and 102 ms saved
work                  prefill 8.2 GFLOP, 96.6 MB; decode 17 GFLOP, 6.1 GB, 24% of its steps
predicted   371.0 ms  for 379.2 ms of steps: 2% too short
"""

from __future__ import annotations

from typing import Final

from twofold.core.record import PhaseWork, SequenceRecord, WaitReason
from twofold.core.report import RequestMetrics
from twofold.core.units import count, limit_share
from twofold.planner.count.step import StepCost
from twofold.planner.explain.words import EXACT, drafts_note, scaled, verdict
from twofold.planner.predict.phase import PhaseCost, phase_floor
from twofold.planner.predict.steps import StepPredictor

LABEL: Final = 9
MIN_STALL: Final = 0.01
"""Stalls below this share of a request's time are not shown."""


def explain_request(report: RequestMetrics, steps: StepPredictor) -> list[str]:
    """Lines about an ended request: seconds by phase with the machine's floor, stalls by cause, and its work."""
    record = report.record
    lines = [_line("queue", report.queue_s)]
    for name, work, seconds in (
        ("prefill", record.prefill, report.prefill_s),
        ("decode", record.decode, report.decode_s),
    ):
        if work.rows:
            floor = phase_floor(work, steps, report.completions)
            share = floor.share(seconds)
            note = f"{_steps(work)}; at least {duration(floor.seconds)} ({floor.bound})"
            lines.append(_line(name, seconds, note + ("" if share is None else f", {limit_share(share)}")))
    noticeable = MIN_STALL * (report.finished - report.arrival)
    stalls = [(cause, seconds) for cause, seconds in record.stalls.items() if seconds >= noticeable]
    lines += [_line("stalled", seconds, _stall(cause, record)) for cause, seconds in stalls]
    if record.prefill.rows or record.decode.rows:
        if record.drafted:
            lines.append(_line("drafted", None, drafts_note(record.drafted, record.accepted, record.saved_s)))
        lines += [_work(record, steps.cost), *_prediction(record)]
    return lines


def duration(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 10 else f"{seconds * 1000:,.1f} ms"


def _line(label: str, seconds: float | None, note: str = "") -> str:
    return f"{label:<{LABEL}} {'' if seconds is None else duration(seconds):>11}  {note}".rstrip()


def _steps(work: PhaseWork) -> str:
    return f"{count(work.rows, 'row')} in {count(work.steps, 'step')}"


def _stall(cause: WaitReason, record: SequenceRecord) -> str:
    note = str(cause.value)
    if cause is WaitReason.LOADING:
        return f"{note}, {count(record.loaded, 'token')}"
    if cause is not WaitReason.PREEMPTED:
        return note
    note += f" {count(record.preemptions, 'time')}"
    if record.recomputed:
        note += f", {count(record.recomputed, 'token')} computed again"
    return note + (f", {count(record.swapped, 'block')} swapped" if record.swapped else "")


def _work(record: SequenceRecord, cost: StepCost) -> str:
    phases = (("prefill", record.prefill), ("decode", record.decode))
    done = (f"{name} {_phase_work(work, PhaseCost.of(work, cost))}" for name, work in phases if work.rows)
    return _line("work", None, "; ".join(done))


def _phase_work(work: PhaseWork, done: PhaseCost) -> str:
    """FLOPs and bytes, and the share of the rows if other requests ran in the same steps."""
    text = f"{scaled(done.flops)}FLOP, {scaled(done.bytes)}B"
    own = work.share / work.steps
    return text if own > 1 - EXACT else f"{text}, {own:.0%} of its steps"


def _prediction(record: SequenceRecord) -> list[str]:
    """The error of the step-time model; nothing where it predicted nothing."""
    phases = (record.prefill, record.decode)
    took = sum(work.seconds - work.unpredicted_s for work in phases)
    predicted = sum(work.predicted_s for work in phases)
    if predicted <= 0 or took <= 0:
        return []
    return [_line("predicted", predicted, f"for {duration(took)} of steps: {verdict(predicted / took - 1)}")]
