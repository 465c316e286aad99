"""How long sequences waited, and for what, counted at no cost for each step.

Two counters run for the whole loop: the seconds in which a lack of blocks blocked the queue, and the seconds of steps
that went to prompts. A sequence notes the counters when its wait begins, and takes the difference when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twofold.core.model import visible
from twofold.core.record import PhaseWork, WaitReason
from twofold.core.step import SequenceStep, StepOutcome, StepPlan
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel


@dataclass(slots=True)
class _Mark:
    """When a sequence began to wait in the queue, and the value of the blocks counter then."""

    since: float
    blocked_s: float
    cause: WaitReason | None


class WaitTimes:
    """The counters. Each plan calls ``set_blocked``: whether a lack of blocks blocks the queue from now on."""

    def __init__(self) -> None:
        self._blocked_s = 0.0
        self._blocked_since: float | None = None
        self._prefill_s = 0.0
        self._queued: dict[int, _Mark] = {}
        self._decoding: dict[int, float] = {}

    def set_blocked(self, blocked: bool, now: float) -> None:
        self._blocked_s = self._blocked(now)
        self._blocked_since = now if blocked else None

    def enter_queue(self, sequence: Sequence, now: float, cause: WaitReason | None = None) -> None:
        """The sequence waits from now on: for ``cause``, or for blocks and its turn."""
        self._queued[sequence.sequence_id] = _Mark(now, self._blocked(now), cause)

    def leave_queue(self, sequence: Sequence, now: float) -> None:
        """The wait of a sequence ends, if it waited."""
        mark = self._queued.pop(sequence.sequence_id, None)
        if mark is None:
            return
        waited = now - mark.since
        if mark.cause is not None:
            sequence.record.stall(mark.cause, waited, until=now)
            return
        blocked = self._blocked(now) - mark.blocked_s
        sequence.record.stall(WaitReason.BLOCKS, blocked)
        sequence.record.stall(WaitReason.TURN, waited - blocked)

    def begin_decode(self, sequence: Sequence) -> None:
        """The sequence generates from now on, and prompt rows of others delay it."""
        self._decoding[sequence.sequence_id] = self._prefill_s

    def end_decode(self, sequence: Sequence) -> None:
        """The sequence stops generating, if it did."""
        mark = self._decoding.pop(sequence.sequence_id, None)
        if mark is not None:
            sequence.record.stall(WaitReason.PREFILL, self._prefill_s - mark)

    def add_prefill(self, seconds: float) -> None:
        """Counts seconds of a step that went to prompt rows while others generated."""
        self._prefill_s += seconds

    def idle(self) -> bool:
        """Whether no sequence is counted as waiting or generating."""
        return not (self._queued or self._decoding)

    def _blocked(self, now: float) -> float:
        return self._blocked_s + (0.0 if self._blocked_since is None else now - self._blocked_since)


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step that ran: shape, seconds, predicted seconds, and those that prompt rows cost generating sequences."""

    shape: StepShape
    seconds: float
    predicted_s: float | None
    prefill_s: float

    @classmethod
    def measure(cls, plan: StepPlan, outcome: StepOutcome, model: StepTimeModel) -> StepWork:
        rows = logit_rows = pairs = read = 0
        decode = [0, 0, 0, 0]
        for step in plan.steps:
            count, start = len(step.tokens), step.start
            logits = step.logit_rows
            if step.decode and step.samples:
                decode[0] += count
                decode[1] += logits
                decode[2] += visible(start, count)
                decode[3] += start + count
            rows += count
            logit_rows += logits
            pairs += visible(start, count)
            read += start + count
        shape = StepShape(rows, logit_rows, pairs, read)
        return cls(shape, outcome.seconds, plan.predicted_s, _lost(shape, StepShape(*decode), outcome, model))

    def note(self, work: PhaseWork, step: SequenceStep, windows: Iterable[int]) -> None:
        """Adds one sequence's part of the step to the work of its phase."""
        rows = len(step.tokens)
        work.add_step(
            step.start,
            rows,
            step_rows=self.shape.rows,
            logit_rows=step.logit_rows,
            seconds=self.seconds,
            predicted_s=self.predicted_s,
            windows=windows,
        )


def _lost(shape: StepShape, decode: StepShape, outcome: StepOutcome, model: StepTimeModel) -> float:
    """Seconds that generating sequences lost to prompt rows: actual · (1 − predicted without them / predicted)."""
    if not decode.rows or decode.rows == shape.rows:
        return 0.0
    alone, together = model.predict(decode), model.predict(shape)
    if alone is None or not together:
        return 0.0
    return outcome.seconds * max(1 - alone / together, 0.0)
