"""Waits of sequences: for another one that computes their prompt, how long they may be, and how long they were."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from twofold.core.errors import BusyError
from twofold.core.record import WaitReason
from twofold.core.step import BlockMove, StepOutcome, StepPlan, TokenEvent
from twofold.engine.scheduler.budget import StepBuilder
from twofold.engine.scheduler.feature import FORKED, NEW, Gain, StepFeature, Wait
from twofold.engine.scheduler.queue import Heap, WaitingQueue
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.step_time import StepWork

MAX_RETRY_S: Final = 120.0


class TimeLimits(StepFeature):
    """Deadlines of sequences, and how long each may wait before it runs for the first time."""

    def __init__(self) -> None:
        self._deadlines: Heap[int] = Heap()
        self._patience: Heap[int] = Heap()
        self._waiting: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._deadlines) + len(self._patience)

    def waits(self, sequence: Sequence, wait: Wait, now: float) -> None:
        """Only a sequence that is new and has no parent has a queue limit: others run with the parent, or continue."""
        number, options = sequence.sequence_id, sequence.options
        if wait in {NEW, FORKED} and options.deadline_s is not None:
            self._deadlines.put(number, sequence.arrival + options.deadline_s)
        if wait is NEW and options.queue_limit_s is not None and sequence.parent is None:
            self._waiting[number] = sequence
            self._patience.put(number, sequence.arrival + options.queue_limit_s)

    def started(self, sequence: Sequence, now: float, *, first: bool) -> None:
        if self._waiting.pop(sequence.sequence_id, None) is not None:
            self._patience.drop(sequence.sequence_id)

    def left(self, sequence: Sequence, now: float) -> None:
        if sequence.finish_reason is not None:
            self._deadlines.drop(sequence.sequence_id)
            self.started(sequence, now, first=False)

    def reached(self, now: float) -> TokenEvent | None:
        """Returns the event that ends the next sequence whose time is up; None if no sequence has reached its limit."""
        number = self._deadlines.first()
        if number is not None and self._deadlines.key(number) <= now:
            return TokenEvent(number, (), (), finish="deadline")
        number = self._patience.first()
        if number is not None and self._patience.key(number) <= now:
            return _refusal(self._waiting[number])
        return None


def _refusal(sequence: Sequence) -> TokenEvent:
    limit_s = sequence.options.queue_limit_s
    assert limit_s is not None, "a sequence without a limit never reaches it"
    error = BusyError(
        f"The request waited {limit_s:g} s in the queue.",
        retry_after_s=min(limit_s, MAX_RETRY_S),
        hint="Retry later, or use a tier with a longer queue limit.",
    )
    return TokenEvent(sequence.sequence_id, (), (), finish="abort", error=error)


def will_compute_prompt(parent: Sequence) -> bool:
    """Whether the parent has not computed the prompt's blocks yet but will soon, so that waiting for them pays."""
    if parent.state is SequenceState.RUNNING:
        return parent.computed < parent.prompt_length - 1
    return parent.state is SequenceState.WAITING and parent.admitted_at is None


class ParallelGroups(StepFeature):
    """Sequences of one prompt: the others wait until the first, their parent, has computed the shared blocks, and then
    join the ``queue``."""

    def __init__(self, queue: WaitingQueue[Sequence]) -> None:
        self._queue = queue
        self._waiting: dict[int, list[Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence, or lets it wait for its parent, if that will compute the prompt."""
        parent = sequence.parent
        if parent is not None and will_compute_prompt(parent):
            self._waiting.setdefault(parent.sequence_id, []).append(sequence)
        else:
            self._queue.add(sequence)

    def advanced(self, gain: Gain) -> None:
        if gain.step.start < gain.sequence.prompt_length:
            self._release(gain.sequence)

    def left(self, sequence: Sequence, now: float) -> None:
        siblings = [] if sequence.parent is None else self._waiting.get(sequence.parent.sequence_id, [])
        if sequence in siblings:
            siblings.remove(sequence)
        self._release(sequence)

    def _release(self, parent: Sequence) -> None:
        if not will_compute_prompt(parent):
            for sibling in self._waiting.pop(parent.sequence_id, ()):
                self._queue.add(sibling)


@dataclass(slots=True)
class _Mark:
    """When a sequence began to wait in the queue, and the value of the ``blocked`` counter at that time."""

    since: float
    blocked_s: float
    cause: WaitReason | None


class WaitTimes(StepFeature):
    """How long sequences waited, and why, at a cost that does not depend on the number of steps.

    Two counters run for the whole loop: the seconds in which a lack of blocks blocked the queue, and the seconds of
    steps that were spent on prompts while others generated. They are noted when a sequence's wait begins, and
    subtracted when it ends.
    """

    def __init__(self) -> None:
        self._blocked_s = 0.0
        self._blocked_since: float | None = None
        self._prefill_s = 0.0
        self._queued: dict[int, _Mark] = {}
        self._decoding: dict[int, float] = {}

    def planned(self, step: StepBuilder, moves: Iterable[BlockMove], now: float) -> None:
        self._blocked_s = self._blocked(now)
        self._blocked_since = now if step.blocked else None

    def computed(self, plan: StepPlan, outcome: StepOutcome, work: StepWork) -> None:
        self._prefill_s += work.prefill_s

    def waits(self, sequence: Sequence, wait: Wait, now: float) -> None:
        self._end(sequence, now)
        self._queued[sequence.sequence_id] = _Mark(now, self._blocked(now), wait.reason)

    def started(self, sequence: Sequence, now: float, *, first: bool) -> None:
        self._end(sequence, now)
        if sequence.first_token_at is not None:
            self._decoding[sequence.sequence_id] = self._prefill_s

    def advanced(self, gain: Gain) -> None:
        if gain.first:
            self._decoding[gain.sequence.sequence_id] = self._prefill_s

    def left(self, sequence: Sequence, now: float) -> None:
        self._end(sequence, now)
        mark = self._decoding.pop(sequence.sequence_id, None)
        if mark is not None:
            sequence.record.stall(WaitReason.PREFILL, self._prefill_s - mark)

    def _end(self, sequence: Sequence, now: float) -> None:
        """Ends the wait of a sequence, if it waited."""
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

    def cause(self, sequence: Sequence) -> tuple[float, WaitReason] | None:
        """When the wait of a sequence for a cause began, and the cause; None without such a wait."""
        mark = self._queued.get(sequence.sequence_id)
        return None if mark is None or mark.cause is None else (mark.since, mark.cause)

    def idle(self) -> bool:
        """Whether no sequence is counted as waiting or generating."""
        return not (self._queued or self._decoding)

    def _blocked(self, now: float) -> float:
        return self._blocked_s + (0.0 if self._blocked_since is None else now - self._blocked_since)
