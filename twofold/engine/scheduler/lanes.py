"""The slots of running sequences, and the events of their lanes while they are watched."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.record import WaitReason
from twofold.engine.scheduler.feature import FORKED, NEW, Gain, StepFeature, Wait
from twofold.engine.scheduler.sequence import Sequence

TOKENS_S: Final = 0.1
"""Minimum seconds between two events with the tokens of a sequence."""
WAITS: Final = {
    None: LaneKind.QUEUE,
    WaitReason.PREEMPTED: LaneKind.PREEMPT,
    WaitReason.READER: LaneKind.HOLD,
    WaitReason.LOADING: LaneKind.LOAD,
}
"""The events that begin these waits."""


class Lanes(StepFeature):
    """Slots, always; events, only while ``watched``: without, a step costs one look at that flag.

    Laws:
        1. Every running sequence has a slot, no two have the same, and it changes only while the sequence does not run.
        2. A slot is the lowest number that was free, so slots stay below the maximum of running sequences.
    """

    def __init__(self) -> None:
        self.watched = False
        self.slots: dict[int, int] = {}
        self._free: list[int] = []
        self._events: list[LaneEvent] = []
        self._added: dict[int, tuple[int, int]] = {}
        self._added_at = -math.inf

    def take(self) -> list[LaneEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def watch(self, live: Iterable[tuple[Sequence, tuple[float, WaitReason] | None]], now: float) -> None:
        """Starts to keep events. The first ones show what the ``live`` sequences do, each given with its wait for a
        cause: when it began, and the cause."""
        if self.watched:
            return
        self.watched = True
        for sequence, wait in live:
            self._wait(sequence, NEW, sequence.arrival)
            if sequence.sequence_id in self.slots:
                self._add(
                    LaneKind.ADMIT,
                    sequence,
                    now if sequence.admitted_at is None else sequence.admitted_at,
                    self._admission(sequence),
                )
                if sequence.first_token_at is None:
                    self._add(LaneKind.COMPUTE, sequence, now, (sequence.computed,))
                else:
                    self._add(LaneKind.FIRST, sequence, sequence.first_token_at)
            elif wait is not None:
                self._wait(sequence, Wait(wait[1]), wait[0])
        self._added_at = -math.inf
        self._added.clear()

    def unwatch(self) -> None:
        """Ends that; events that were not taken are dropped."""
        self.watched = False
        self._events.clear()
        self._added.clear()

    def waits(self, sequence: Sequence, wait: Wait, now: float) -> None:
        if self.watched:
            self._wait(sequence, wait, sequence.arrival if wait is NEW else now)

    def started(self, sequence: Sequence, now: float, *, first: bool) -> None:
        slot = heapq.heappop(self._free) if self._free else len(self.slots)
        self.slots[sequence.sequence_id] = slot
        if self.watched and first:
            self._add(LaneKind.ADMIT, sequence, now, self._admission(sequence))
        elif self.watched:
            self._add(LaneKind.RETURN, sequence, now, (slot, sequence.computed))

    def advanced(self, gain: Gain) -> None:
        if self.watched and not gain.step.decode:
            self._add(LaneKind.COMPUTE, gain.sequence, gain.now, (gain.sequence.computed,))
        if self.watched and gain.first:
            self._add(LaneKind.FIRST, gain.sequence, gain.now)

    def add_tokens(self, running: Iterable[Sequence], now: float) -> None:
        """Adds the tokens of all running sequences, if the last time is TOKENS_S ago."""
        if self.watched and now - self._added_at >= TOKENS_S:
            self._added_at = now
            for sequence in running:
                self._add_tokens(sequence, now)

    def left(self, sequence: Sequence, now: float) -> None:
        if sequence.sequence_id in self.slots:
            heapq.heappush(self._free, self.slots.pop(sequence.sequence_id))
        if self.watched and sequence.finish_reason is not None:
            self._add_tokens(sequence, now)
            self._add(LaneKind.END, sequence, now, (sequence.generated,), sequence.finish_reason)
            self._added.pop(sequence.sequence_id, None)

    def _wait(self, sequence: Sequence, wait: Wait, at: float) -> None:
        if wait in {NEW, FORKED}:
            self._add(LaneKind.ARRIVE, sequence, at, (sequence.prompt_length,), sequence.request_id)
            return
        kind = WAITS[wait.reason]
        swapped = 0 if sequence.swapped is None else sequence.swapped.blocks
        values = {LaneKind.PREEMPT: (swapped,), LaneKind.LOAD: (wait.tokens,)}.get(kind, ())
        self._add(kind, sequence, at, values, wait.cause)

    def _add_tokens(self, sequence: Sequence, now: float) -> None:
        before = self._added.get(sequence.sequence_id, (0, 0))
        after = (sequence.generated, sequence.record.drafted)
        if after[0] != before[0]:
            self._add(LaneKind.TOKENS, sequence, now, (sequence.generated,))
        if after[1] != before[1]:
            self._add(LaneKind.DRAFTS, sequence, now, (sequence.record.drafted, sequence.record.accepted))
        if after != before:
            self._added[sequence.sequence_id] = after

    def _admission(self, sequence: Sequence) -> tuple[int, int, int]:
        record = sequence.record
        return self.slots[sequence.sequence_id], record.cached, min(record.loaded, record.cached)

    def _add(self, kind: LaneKind, sequence: Sequence, at: float, values: tuple[int, ...] = (), text: str = "") -> None:
        self._events.append(LaneEvent(sequence.sequence_id, kind, at, values, text))
