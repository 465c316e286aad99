"""The board: what a live view of the engines shows, made of their reports. It has no I/O and starts no timers.

    history   the steps of the last HISTORY_S seconds: the last RECENT ones alone, earlier ones joined, always kept
    lanes     of sequences that live or ended in that time, kept while the model is watched
    ticks     what is new, MAX_TICKS of them, made by ``tick`` while the model is watched

A watcher gets ``hello`` once and then each tick; one that comes late gets several ticks as one (``merged``), and one
that comes too late another hello. ``epoch`` changes when that is due for all, because the engine's process is new.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.report import EngineFacts, EngineSnapshot, KVPicture, StepReport
from twofold.observe.live.columns import N, Row, T, columns, folded, joined
from twofold.observe.live.columns import row_of as step_row
from twofold.observe.live.lanes import LaneRow, SequenceLane, Viewer, visible
from twofold.observe.live.lanes import row_of as lane_row
from twofold.observe.metrics.recent import Recent
from twofold.observe.served import ServedRequest

SCHEMA: Final = "twofold.live/1"
HISTORY_S: Final = 60.0
RECENT: Final = 300
"""Steps of the history that are kept alone."""
EARLIER_MS: Final = 200.0
"""Earlier steps that begin within this time are joined, so there are at most 300 of those rows."""
TICK_STEPS: Final = 64
"""Maximum rows of a tick; more are joined."""
MAX_TICKS: Final = 50
"""Ticks that are kept for watchers that come late: 5 seconds at ten a second."""
MAX_ENDED: Final = 1000
"""Ended lanes that are kept."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What was new at ``at`` milliseconds: steps, and events with their lanes. ``queue``: sequences that wait and run.
    ``kv``: blocks free, cached, held and pinned; None before the engine's first report."""

    number: int
    at: float
    rows: Sequence[Row]
    events: Sequence[tuple[SequenceLane, LaneRow]]
    queue: tuple[int, int]
    kv: tuple[int, int, int, int] | None


@dataclass(slots=True)
class _LiveModel:
    """A model: its history, its lanes, and what the next tick will have."""

    epoch: int = 0
    watched: bool = False
    recent: deque[Row] = field(default_factory=deque)
    earlier: deque[Row] = field(default_factory=deque)
    rows: list[Row] = field(default_factory=list)
    events: list[tuple[SequenceLane, LaneRow]] = field(default_factory=list)
    lanes: dict[int, SequenceLane] = field(default_factory=dict)
    ended: deque[int] = field(default_factory=deque)
    ticks: deque[Tick] = field(default_factory=lambda: deque(maxlen=MAX_TICKS))
    number: int = 0
    changed: bool = False
    queue: tuple[int, int] = (0, 0)
    kv: tuple[int, int, int, int] | None = None
    snapshot: EngineSnapshot | None = None
    picture: tuple[float, KVPicture] | None = None

    def add_step(self, row: Row) -> None:
        self.recent.append(row)
        if len(self.recent) > RECENT:
            self._move(self.recent.popleft())
        if self.watched:
            self.rows.append(row)

    def forget(self, before: float) -> None:
        """Drops steps and ended lanes from before that time."""
        for kept in (self.earlier, self.recent):
            while kept and kept[0][T] < before:
                kept.popleft()
        while self.ended and (len(self.ended) > MAX_ENDED or (self.lanes[self.ended[0]].ended or 0.0) < before):
            del self.lanes[self.ended.popleft()]

    def clear_lanes(self) -> None:
        self.lanes.clear()
        self.ended.clear()
        self.rows.clear()
        self.events.clear()
        self.ticks.clear()

    def _move(self, row: Row) -> None:
        last = self.earlier[-1] if self.earlier else None
        if last is not None and row[T] - last[T] < EARLIER_MS and row[N] > last[N]:
            self.earlier[-1] = joined(last, row)
        else:
            self.earlier.append(row)


class LiveBoard:
    """``EngineObserver`` of all models, of which it shows the first replica. ``zero`` is 0 ms of its streams on the
    engines' clock, ``unix`` the same moment in seconds since 1970."""

    def __init__(self, recent: Recent, clock: Clock | None = None) -> None:
        self._recent = recent
        self._clock = clock or MonotonicClock()
        self.zero, self.unix = self._clock.now(), time.time()
        self._models: dict[str, _LiveModel] = {}

    def now(self) -> float:
        """Milliseconds since zero."""
        return round((self._clock.now() - self.zero) * 1e3, 2)

    # -- what engines report -------------------------------------------------------------------------------------------

    def on_step(self, model: str, report: StepReport, replica: int = 0) -> None:
        if replica:
            return
        own = self._of(model)
        own.add_step(step_row(report, self.zero))
        own.queue = report.waiting, report.running
        blocks = report.blocks
        own.kv = blocks.free, blocks.cached, blocks.held, 0 if own.snapshot is None else own.snapshot.pinned

    def on_snapshot(self, model: str, snapshot: EngineSnapshot, replica: int = 0) -> None:
        if replica:
            return
        own, blocks = self._of(model), snapshot.blocks
        own.snapshot = snapshot
        before = own.queue, own.kv
        own.queue = snapshot.waiting, snapshot.running
        own.kv = blocks.free, blocks.cached, blocks.held, snapshot.pinned
        own.changed = own.changed or (own.queue, own.kv) != before

    def on_lanes(self, model: str, events: Sequence[LaneEvent], served: Callable[[str], ServedRequest | None]) -> None:
        own = self._of(model)
        if not own.watched:
            return
        for event in events:
            record = served(event.text) if event.kind is LaneKind.ARRIVE else None
            row = lane_row(event, self.zero, record)
            if event.kind is LaneKind.ARRIVE:
                own.lanes[event.number] = SequenceLane("" if record is None else record.tenant)
            lane = own.lanes.get(event.number)
            if lane is None or lane.ended is not None:
                continue
            lane.add(event.kind, row)
            own.events.append((lane, row))
            if event.kind is LaneKind.END:
                lane.ended = row[2]
                own.ended.append(event.number)

    def on_picture(self, model: str, at: float, picture: KVPicture) -> None:
        self._of(model).picture = round((at - self.zero) * 1e3, 2), picture

    def on_leave(self, model: str, replica: int = 0) -> None:
        """Does nothing: the next hello has the replicas that are there."""

    def on_restart(self, model: str, replica: int = 0) -> None:
        if replica:
            return
        own = self._of(model)
        own.clear_lanes()
        own.recent.clear()
        own.earlier.clear()
        own.epoch += 1
        own.queue, own.kv, own.snapshot, own.picture = (0, 0), None, None, None

    # -- what watchers get ---------------------------------------------------------------------------------------------

    def watch(self, model: str, *, on: bool) -> None:
        """Starts or ends to keep lanes and to make ticks."""
        own = self._of(model)
        if own.watched != on:
            own.watched = on
            own.epoch += 1
            own.clear_lanes()

    def epoch(self, model: str) -> int:
        return self._of(model).epoch

    def tick(self, model: str) -> bool:
        """Makes a tick of what is new; returns whether there was something."""
        own = self._of(model)
        own.forget(self.now() - HISTORY_S * 1e3)
        if not (own.rows or own.events or own.changed):
            return False
        rows, events = own.rows, own.events
        own.rows, own.events, own.changed = [], [], False
        own.number += 1
        own.ticks.append(Tick(own.number, self.now(), rows, events, own.queue, own.kv))
        return True

    def last(self, model: str) -> int:
        """The number of the last tick."""
        return self._of(model).number

    def since(self, model: str, number: int) -> Sequence[Tick] | None:
        """The ticks after that number; None if not all are kept."""
        ticks = [tick for tick in self._of(model).ticks if tick.number > number]
        return ticks if not ticks or ticks[0].number == number + 1 else None

    def hello(self, model: str, viewer: Viewer, facts: EngineFacts | None) -> dict[str, Any]:
        """All that a watcher needs to begin: the engine, the steps of the history, and the lanes so far."""
        own = self._of(model)
        own.forget(self.now() - HISTORY_S * 1e3)
        pairs = ((lane, row) for lane in own.lanes.values() for row in lane.all())
        return {
            "schema": SCHEMA,
            "zero": self.zero,
            "unix": self.unix,
            "t": self.now(),
            "model": model,
            "sees": "all" if viewer.tenant is None else "own",
            "engine": None if facts is None else _engine(facts),
            "queue": own.queue,
            "kv": own.kv,
            "steps": columns([*own.earlier, *own.recent]),
            "lanes": list(visible(pairs, viewer)),
        }

    def lately(self, model: str, viewer: Viewer) -> dict[str, Any]:
        """Latencies of the last five minutes as in /metrics, by tier and tenant, and counts of the engine's process."""
        own, last = self._of(model), self._of(model).snapshot
        found = self._recent.lately(model)
        if viewer.tenant is not None:
            found["tenants"] = {name: of for name, of in found["tenants"].items() if name == viewer.tenant}
        return {
            "t": self.now(),
            **found,
            "error": None if last is None else last.prediction_error,
            "counts": None if last is None else _counts(last),
            "queue": own.queue,
        }

    def blocks(self, model: str, viewer: Viewer) -> dict[str, Any] | None:
        """The last picture of the KV cache; None before there is one. Owners and trees of others are left out."""
        own = self._of(model)
        if own.picture is None:
            return None
        at, picture = own.picture
        groups = []
        for group in picture.groups:
            mine = [(number, count) for number, count in group.held if self._mine(own, number, viewer)]
            others = sum(count for _, count in group.held) - sum(count for _, count in mine)
            groups.append({**asdict(group), "held": mine, "others": others})
        trees = [tree for tree in picture.trees if viewer.tenant is None or tree.salt == viewer.salt]
        return {
            "t": at,
            "groups": groups,
            "trees": [{"whole": tree.whole, "nodes": [list(node) for node in tree.nodes]} for tree in trees],
        }

    def picture_at(self, model: str) -> float:
        """When the last picture was taken, in milliseconds; -1 before there is one."""
        picture = self._of(model).picture
        return -1.0 if picture is None else picture[0]

    @staticmethod
    def _mine(own: _LiveModel, number: int, viewer: Viewer) -> bool:
        lane = own.lanes.get(number)
        return viewer.tenant is None or (lane is not None and lane.tenant == viewer.tenant)

    def _of(self, model: str) -> _LiveModel:
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = _LiveModel()
        return found


def merged(ticks: Sequence[Tick]) -> Tick:
    """Several ticks as one."""
    last = ticks[-1]
    rows = [row for tick in ticks for row in tick.rows]
    return Tick(
        last.number,
        last.at,
        folded(rows, TICK_STEPS),
        [pair for tick in ticks for pair in tick.events],
        last.queue,
        last.kv,
    )


def tick_lanes(events: Iterable[tuple[SequenceLane, LaneRow]], viewer: Viewer) -> list[LaneRow]:
    """The part of a tick that depends on the viewer."""
    return list(visible(events, viewer))


def _engine(facts: EngineFacts) -> Mapping[str, Any]:
    target = facts.tpot_target_s
    return {
        "slots": facts.slots,
        "rows": facts.rows,
        "block_size": facts.block_size,
        "budget": facts.budget,
        "tpot_target_ms": None if target is None else target * 1e3,
        "groups": [asdict(group) for group in facts.groups],
    }


def _counts(last: EngineSnapshot) -> Mapping[str, int]:
    store = last.store
    return {
        "queries": last.queries,
        "hits": last.hits,
        "evicted": last.evicted,
        "preemptions": last.preemptions,
        "swaps": last.swaps,
        "drafted": last.drafts.drafted,
        "accepted": last.drafts.accepted,
        "loaded": 0 if store is None else store.loaded,
    }
