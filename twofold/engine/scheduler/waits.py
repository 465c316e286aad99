"""Waits of sequences: for another one that computes their prompt, how long they may be, and how long they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twofold.core.errors import BusyError
from twofold.core.record import WaitReason
from twofold.core.step import TokenEvent
from twofold.engine.scheduler.queue import Heap
from twofold.engine.scheduler.sequence import Sequence, SequenceState

MAX_RETRY_S: Final = 120.0


class TimeLimits:
    """Deadlines of sequences, and how long each may wait before it runs for the first time."""

    def __init__(self) -> None:
        self._deadlines: Heap[int] = Heap()
        self._patience: Heap[int] = Heap()
        self._waiting: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._deadlines) + len(self._patience)

    def enter(self, sequence: Sequence) -> None:
        """Watches the deadline of a new sequence."""
        deadline_s = sequence.options.deadline_s
        if deadline_s is not None:
            self._deadlines.put(sequence.sequence_id, sequence.arrival + deadline_s)

    def wait(self, sequence: Sequence) -> None:
        """Limits how long a new sequence waits. Sequences with a parent have no own limit: they run with the parent."""
        limit_s = sequence.options.queue_limit_s
        if limit_s is not None and sequence.parent is None:
            self._waiting[sequence.sequence_id] = sequence
            self._patience.put(sequence.sequence_id, sequence.arrival + limit_s)

    def admit(self, number: int) -> None:
        """Forgets the queue limit of a sequence, which runs now."""
        if self._waiting.pop(number, None) is not None:
            self._patience.drop(number)

    def leave(self, number: int) -> None:
        """Forgets a sequence that ended."""
        self._deadlines.drop(number)
        self.admit(number)

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


class ParallelGroups:
    """Sequences of one prompt: the others wait until the first, their parent, has computed the shared blocks."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, sequence: Sequence, parent: Sequence) -> None:
        """Makes the sequence wait until ``release`` is called for its parent."""
        self._waiting.setdefault(parent.sequence_id, []).append(sequence)

    def release(self, parent: Sequence) -> list[Sequence]:
        """Removes the sequences that waited for this parent, and returns them."""
        return self._waiting.pop(parent.sequence_id, [])

    def leave(self, sequence: Sequence) -> None:
        """Removes a sequence, if it waits for its parent."""
        parent = sequence.parent
        if parent is None or sequence not in self._waiting.get(parent.sequence_id, ()):
            return
        self._waiting[parent.sequence_id].remove(sequence)
        if not self._waiting[parent.sequence_id]:
            del self._waiting[parent.sequence_id]


@dataclass(slots=True)
class _Mark:
    """When a sequence began to wait in the queue, and the value of the ``blocked`` counter at that time."""

    since: float
    blocked_s: float
    cause: WaitReason | None


class WaitTimes:
    """How long sequences waited, and why, at a cost that does not depend on the number of steps.

    Two counters run for the whole loop: the seconds in which a lack of blocks blocked the queue, and the seconds of
    steps that were spent on prompts. They are noted when a sequence's wait begins, and subtracted when it ends. Each
    plan calls ``set_blocked`` to say whether a lack of blocks blocks the queue from now on.
    """

    def __init__(self) -> None:
        self._blocked_s = 0.0
        self._blocked_since: float | None = None
        self._prefill_s = 0.0
        self._queued: dict[int, _Mark] = {}
        self._decoding: dict[int, float] = {}

    @property
    def blocked(self) -> bool:
        """Whether a lack of blocks blocks the queue since the last plan."""
        return self._blocked_since is not None

    def set_blocked(self, blocked: bool, now: float) -> None:
        self._blocked_s = self._blocked(now)
        self._blocked_since = now if blocked else None

    def enter_queue(self, sequence: Sequence, now: float, cause: WaitReason | None = None) -> None:
        """Starts a wait: for ``cause``, or for blocks and its turn."""
        self._queued[sequence.sequence_id] = _Mark(now, self._blocked(now), cause)

    def leave_queue(self, sequence: Sequence, now: float) -> None:
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

    def begin_decode(self, sequence: Sequence) -> None:
        """Starts the decode phase of a sequence, in which prompt rows of others delay it."""
        self._decoding[sequence.sequence_id] = self._prefill_s

    def end_decode(self, sequence: Sequence) -> None:
        """Ends the decode phase of a sequence, if it was in it."""
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
