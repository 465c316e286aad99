"""When the time of a sequence is up: its deadline, and how long it waits before it runs for the first time."""

from __future__ import annotations

from typing import Final

from twofold.core.errors import BusyError
from twofold.core.step import TokenEvent
from twofold.engine.scheduler.heap import Heap
from twofold.engine.scheduler.sequence import Sequence

MOST_RETRY_S: Final = 120.0


class TimeLimits:
    """The limits of live sequences. Who has none costs nothing."""

    def __init__(self) -> None:
        self._deadlines: Heap[int] = Heap()
        self._patience: Heap[int] = Heap()
        self._waiting: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._deadlines) + len(self._patience)

    def enter(self, sequence: Sequence) -> None:
        """A sequence lives from now on."""
        deadline_s = sequence.options.deadline_s
        if deadline_s is not None:
            self._deadlines.put(sequence.sequence_id, sequence.arrival + deadline_s)

    def wait(self, sequence: Sequence) -> None:
        """A sequence stands in the line that never ran. Where one of its prompt runs, so does its request."""
        limit_s = sequence.options.queue_limit_s
        if limit_s is not None and sequence.parent is None:
            self._waiting[sequence.sequence_id] = sequence
            self._patience.put(sequence.sequence_id, sequence.arrival + limit_s)

    def admit(self, number: int) -> None:
        """It runs."""
        if self._waiting.pop(number, None) is not None:
            self._patience.drop(number)

    def leave(self, number: int) -> None:
        """It lives no more."""
        self._deadlines.drop(number)
        self.admit(number)

    def reached(self, now: float) -> TokenEvent | None:
        """What becomes of the next sequence whose time is up by now; None where there is none."""
        number = self._deadlines.first()
        if number is not None and self._deadlines.key(number) <= now:
            return TokenEvent(number, (), (), finish="deadline")
        number = self._patience.first()
        if number is not None and self._patience.key(number) <= now:
            return _refusal(self._waiting[number])
        return None


def _refusal(sequence: Sequence) -> TokenEvent:
    limit_s = sequence.options.queue_limit_s
    assert limit_s is not None, "only who has a limit reaches it"
    error = BusyError(
        f"The request waited {limit_s:g} s and did not begin to run.",
        retry_after_s=min(limit_s, MOST_RETRY_S),
        hint="Retry later, or use a tier with a longer queue limit.",
    )
    return TokenEvent(sequence.sequence_id, (), (), finish="abort", error=error)
