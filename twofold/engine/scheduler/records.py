"""Fills the records of sequences: what they computed and when, and what was computed for nothing."""

from __future__ import annotations

from twofold.core.record import WaitReason
from twofold.core.report import DraftCounts
from twofold.core.step import StepOutcome, StepPlan
from twofold.engine.kv.manager import BlockManager
from twofold.engine.scheduler.feature import Gain, StepFeature, Wait
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepTimeModel, StepWork


class WorkRecords(StepFeature):
    """Writes to ``Sequence.record`` and ``Sequence.trace``. ``drafts`` are those of all sequences."""

    def __init__(self, manager: BlockManager, step_time: StepTimeModel) -> None:
        self._step = -1
        self.drafts = DraftCounts()
        self._windows = [window.positions for window in manager.windows if window.positions is not None]
        self._step_time = step_time

    def computed(self, plan: StepPlan, outcome: StepOutcome, work: StepWork) -> None:
        self._step += 1

    def started(self, sequence: Sequence, now: float, *, first: bool) -> None:
        if first:
            record = sequence.record
            record.cached = min(sequence.cached, sequence.prompt_length)
            record.fresh = sequence.prompt_length - record.cached

    def waits(self, sequence: Sequence, wait: Wait, now: float) -> None:
        sequence.record.preemptions += wait.reason is WaitReason.PREEMPTED

    def advanced(self, gain: Gain) -> None:
        sequence, step, work = gain.sequence, gain.step, gain.work
        record = sequence.record
        phase = record.decode if step.start >= sequence.prompt_length else record.prefill
        phase.add_step(
            step.start,
            len(step.tokens),
            step_rows=work.shape.rows,
            logit_rows=step.logit_rows,
            seconds=work.seconds,
            predicted_s=work.predicted_s,
            windows=self._windows,
        )
        if sequence.trace is not None:
            at_s, prompt = gain.now - sequence.arrival, sequence.prompt_length
            sequence.trace.add(self._step, at_s, step, work, self._step_time, prompt)
        if gain.tokens:
            accepted = len(gain.tokens) - 1
            record.speculate(step.drafts, accepted, work.plain_s * len(gain.tokens) - work.seconds)
            self.drafts.add(step.drafts, accepted)
