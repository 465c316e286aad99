"""Which request every sequence belongs to. Requests reach the scheduler only through it: neither forgets the other."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from twofold.core.clock import Clock
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from twofold.engine.request import EngineRequest


class Roster:
    """Sequences under way and their requests. Sequence ids are given here, in ascending order."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._owners: dict[int, EngineRequest] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._owners)

    def next_id(self) -> int:
        return next(self._numbers)

    def owner(self, sequence_id: int) -> EngineRequest | None:
        """The request of a sequence; None when it is over."""
        return self._owners.get(sequence_id)

    def add(self, sequence: Sequence, owner: EngineRequest) -> None:
        """Queues a sequence. Raises what ``Scheduler.add`` raises; then nothing has changed."""
        self._scheduler.add(sequence, self._clock.now())
        self._owners[sequence.sequence_id] = owner

    def fork(self, parent: Sequence, child: Sequence, owner: EngineRequest) -> None:
        """Queues a sequence that shares what its parent has computed."""
        self._scheduler.fork(parent.sequence_id, child, self._clock.now())
        self._owners[child.sequence_id] = owner

    def forget(self, sequence: Sequence) -> None:
        """The scheduler ended the sequence itself."""
        self._owners.pop(sequence.sequence_id, None)

    def stop(self, sequence: Sequence) -> None:
        """Ends a sequence whose text stopped it."""
        self.forget(sequence)
        self._scheduler.stop(sequence.sequence_id, self._clock.now())

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence that nobody wants any more."""
        self.forget(sequence)
        self._scheduler.cancel(sequence.sequence_id, self._clock.now())
