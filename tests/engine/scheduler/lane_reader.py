"""Reads the events of lanes, and compares what they tell with the sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from twofold.core.lanes import LaneEvent, LaneKind
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence, SequenceState

FROM: dict[LaneKind, set[str | None]] = {
    LaneKind.ARRIVE: {None},
    LaneKind.ADMIT: {"waiting"},
    LaneKind.COMPUTE: {"running"},
    LaneKind.FIRST: {"running"},
    LaneKind.TOKENS: {"running", "waiting"},
    LaneKind.DRAFTS: {"running", "waiting"},
    LaneKind.PREEMPT: {"running", "waiting"},
    LaneKind.RETURN: {"waiting"},
    LaneKind.HOLD: {"running", "waiting"},
    LaneKind.LOAD: {"waiting"},
    LaneKind.QUEUE: {"waiting"},
    LaneKind.END: {"running", "waiting"},
}
"""The states that a lane may be in before an event."""


@dataclass
class ReadLane:
    """What events told of a sequence."""

    state: str = "waiting"
    slot: int | None = None
    cached: int = 0
    tokens: int = 0
    preemptions: int = 0
    first: float | None = None
    reason: str = ""
    at: float = 0.0


class LaneReader:
    """All lanes so far."""

    def __init__(self) -> None:
        self.lanes: dict[int, ReadLane] = {}

    def take(self, events: Iterable[LaneEvent]) -> None:
        for event in events:
            lane = self.lanes.get(event.number)
            assert (None if lane is None else lane.state) in FROM[event.kind], event
            lane = self.lanes.setdefault(event.number, ReadLane())
            assert event.kind is LaneKind.HOLD or event.at >= lane.at, (lane, event)
            lane.at = event.at
            if event.kind in (LaneKind.ADMIT, LaneKind.RETURN):
                assert event.values[0] not in {each.slot for each in self.lanes.values() if each.state == "running"}
                lane.state, lane.slot = "running", event.values[0]
            if event.kind is LaneKind.ADMIT:
                lane.cached = event.values[1]
            if event.kind in (LaneKind.PREEMPT, LaneKind.HOLD):
                lane.state, lane.slot = "waiting", None
            if event.kind is LaneKind.PREEMPT:
                lane.preemptions += 1
            if event.kind is LaneKind.FIRST:
                lane.first = event.at
            if event.kind is LaneKind.TOKENS:
                assert event.values[0] > lane.tokens
                lane.tokens = event.values[0]
            if event.kind is LaneKind.END:
                assert event.values == (lane.tokens,)
                lane.state, lane.slot, lane.reason = "ended", None, event.text

    def check(self, scheduler: Scheduler, sequences: Mapping[int, Sequence]) -> None:
        """Asserts that all live sequences are known, with their slots, and what ended ones did."""
        slots = scheduler.lanes.slots
        running = {number for number, each in sequences.items() if each.state is SequenceState.RUNNING}
        assert set(slots) == running
        assert len(set(slots.values())) == len(slots)
        assert all(0 <= slot < scheduler.limits.sequences for slot in slots.values())
        for number, sequence in sequences.items():
            lane = self.lanes.get(number)
            if lane is None:
                continue
            assert (lane.state == "ended") is (sequence.state is SequenceState.FINISHED)
            assert lane.slot == slots.get(number)
            if lane.state == "ended":
                assert lane.tokens == sequence.generated
                assert lane.reason == sequence.finish_reason
            if lane.first is not None:
                assert lane.first == sequence.first_token_at
        live = {n for n, each in sequences.items() if each.state is not SequenceState.FINISHED}
        assert not scheduler.lanes.watched or live <= set(self.lanes)
