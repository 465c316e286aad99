"""A simulated engine as a live stream: the events of ``GET /v1/twofold/live`` as lines of JSON, which the Engine view
of the page replays like a recording of a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from twofold.core.record import WaitReason
from twofold.core.report import EngineFacts, GroupFacts
from twofold.core.step import StepPlan
from twofold.engine.scheduler.report import step_report
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.observe.live.board import LiveBoard, merged, tick_lanes
from twofold.observe.live.columns import columns
from twofold.observe.live.lanes import Viewer
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.recent import Recent
from twofold.planner.predict.roofline import step_limits
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.simulate.jobs import JobResult
from twofold.planner.simulate.setting import EngineSetting

TICK_S: Final = 0.1
LATELY_S: Final = 1.0
ALL: Final = Viewer(None)
ONE_TENANT: Final = ("default", "")
"""Tier and tenant of all simulated requests."""


@dataclass(slots=True)
class _VirtualClock:
    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds


class LiveRecording:
    """Writes a line for each event: hello at first, a tick for each TICK_S in which something happened, and each
    LATELY_S the KV blocks and the latencies of the last five minutes, of ended requests as on a server."""

    def __init__(
        self, model: str, setting: EngineSetting, steps: StepPredictor, write: Callable[[str], object]
    ) -> None:
        self._model, self._write = model, write
        self._clock = _VirtualClock()
        self._recent = Recent(Instruments(), self._clock.now)
        self._board = LiveBoard(self._recent, self._clock)
        self._sampled: dict[int, float] = {}
        self._gaps: list[float] = []
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
        now = self._clock.seconds = began + seconds
        for each in plan.steps:
            if each.samples:
                last = self._sampled.get(each.sequence_id)
                self._gaps += () if last is None else (now - last,)
                self._sampled[each.sequence_id] = now
        self._board.on_lanes(self._model, scheduler.lanes.take(), lambda _id: None)
        self._board.on_step(self._model, step_report(scheduler, plan, began, seconds))
        if self._clock.seconds >= self._due:
            self.tick()
        if self._clock.seconds >= self._lately:
            self._tell_second(scheduler)

    def job_ended(self, done: JobResult, stalls: Mapping[WaitReason, float]) -> None:
        """Takes a job that was computed, in the step that is committed next."""
        assert done.admitted_s is not None and done.first_s is not None and done.last_s is not None  # noqa: PT018
        due, first, last, output = done.job.due_s, done.first_s, done.last_s, done.job.output
        tpot = ((last - first) / (output - 1),) if output > 1 else ()
        measured = {"ttft": (first - due,), "tpot": tpot, "e2e": (last - due,), "queue": (done.admitted_s - due,)}
        self._clock.seconds = last
        self._recent.add(self._model, *ONE_TENANT, measured)
        self._recent.add_stalls(self._model, stalls)

    def end(self) -> None:
        """Writes what is left."""
        self.tick()
        self._tell_lately()

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
        self._tell_lately()
        self._tell("blocks", self._board.blocks(self._model, ALL) or {})

    def _tell_lately(self) -> None:
        self._recent.add(self._model, *ONE_TENANT, {"itl": self._gaps})
        self._gaps = []
        self._tell("lately", self._board.lately(self._model, ALL))

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        self._write(json.dumps({"event": event, "data": data}, separators=(",", ":")) + "\n")
