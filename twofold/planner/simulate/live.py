"""A simulated engine as a live stream: the events of ``GET /v1/twofold/live`` as lines of JSON, which the Engine view
of the page replays like a recording of a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from twofold.core.report import EngineFacts, GroupFacts
from twofold.core.step import StepPlan
from twofold.engine.scheduler.report import step_report
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.observe.live.board import LiveBoard, merged, tick_lanes
from twofold.observe.live.columns import columns
from twofold.observe.live.lanes import Viewer
from twofold.observe.metrics.recent import Recent
from twofold.planner.predict.roofline import step_limits
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.simulate.setting import EngineSetting

TICK_S: Final = 0.1
LATELY_S: Final = 1.0
ALL: Final = Viewer(None)


@dataclass(slots=True)
class _VirtualClock:
    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds


class LiveRecording:
    """Writes a line for each event: hello at first, a tick for each TICK_S in which something happened, and the KV
    blocks each LATELY_S, with the event lately, which has no latencies: ``twofold simulate`` prints those."""

    def __init__(
        self, model: str, setting: EngineSetting, steps: StepPredictor, write: Callable[[str], object]
    ) -> None:
        self._model, self._write = model, write
        self._clock = _VirtualClock()
        self._board = LiveBoard(cast("Recent", None), self._clock)  # latencies of requests are not in the stream
        self._board.watch(model, on=True)
        self._due, self._lately = TICK_S, 0.0
        groups = tuple(
            GroupFacts(size.window, size.blocks, steps.cost.windows[size.window].token_bytes * setting.block_size)
            for size in setting.groups
        )
        live = setting.tpot_target_s is not None
        facts = EngineFacts(
            setting.sequences,
            setting.rows,
            setting.block_size,
            "live" if live else "fixed",
            setting.tpot_target_s,
            groups,
        )
        self._tell("hello", {**self._board.hello(model, ALL, facts), **step_limits(steps)})

    def step(self, scheduler: Scheduler, plan: StepPlan, began: float, seconds: float) -> None:
        """Takes a step that was committed."""
        self._clock.seconds = began + seconds
        self._board.on_lanes(self._model, scheduler.lanes.take(), lambda _id: None)
        self._board.on_step(self._model, step_report(scheduler, plan, began, seconds))
        if self._clock.seconds >= self._due:
            self.tick()
        if self._clock.seconds >= self._lately:
            self._tell_second(scheduler)

    def tick(self) -> None:
        """Writes what happened since the last tick."""
        last = self._board.last(self._model)
        self._due = self._clock.seconds + TICK_S
        if self._board.tick(self._model):
            tick = merged(self._board.since(self._model, last) or ())
            head = {"t": tick.at, "queue": tick.queue, "kv": tick.kv}
            self._tell("tick", {**head, "steps": columns(tick.rows), "lanes": tick_lanes(tick.events, ALL)})

    def _tell_second(self, scheduler: Scheduler) -> None:
        now = self._clock.seconds
        self._lately = now + LATELY_S
        self._board.on_picture(self._model, now, scheduler.picture())
        nothing: dict[str, Any] = {name: {} for name in ("all", "tiers", "tenants", "met", "stalls", "share")}
        queue = (scheduler.waiting, scheduler.running)
        self._tell("lately", {"t": self._board.now(), **nothing, "error": None, "counts": None, "queue": queue})
        self._tell("blocks", self._board.blocks(self._model, ALL) or {})

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        self._write(json.dumps({"event": event, "data": data}, separators=(",", ":")) + "\n")
