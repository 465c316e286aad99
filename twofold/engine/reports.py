"""What an engine tells its observer: a report of each step, made from the plan and its outcome."""

from __future__ import annotations

from collections.abc import Callable

from twofold.core.report import BlockCounts, Observer, RequestMetrics, StepReport
from twofold.core.step import StepOutcome, StepPlan
from twofold.engine.scheduler.scheduler import Scheduler


class StepReporter:
    """Counts steps and knows when the last one ended."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.observers: list[Observer] = []
        self.plan_listeners: list[Callable[[StepPlan], None]] = []
        self._scheduler = scheduler
        self._number = 0
        self._ended: float | None = None

    def plan(self, plan: StepPlan) -> None:
        """Hands a step on that is about to run."""
        for listener in self.plan_listeners:
            listener(plan)

    def step(self, plan: StepPlan, outcome: StepOutcome, planned: float, ended: float) -> None:
        """Reports a step that was planned and had ended at these times."""
        number, since = self._number, planned if self._ended is None else self._ended
        self._number += 1
        self._ended = ended
        if not self.observers:
            return
        spent = outcome.seconds + outcome.moves_s
        host_s = max(0.0, ended - spent - since)
        report = self._report(number, plan, outcome, ended - spent, host_s)
        for observer in self.observers:
            observer.on_step(report)

    def idle(self) -> None:
        """Nothing was left to do: the time until the next step is nobody's."""
        self._ended = None

    def request(self, report: RequestMetrics) -> None:
        for observer in self.observers:
            observer.on_request(report)

    def _report(self, number: int, plan: StepPlan, outcome: StepOutcome, started: float, host_s: float) -> StepReport:
        scheduler = self._scheduler
        manager = scheduler.manager
        return StepReport(
            number=number,
            started=started,
            decode_rows=plan.decode_rows,
            prefill_rows=plan.rows - plan.decode_rows,
            sequences=len(plan.steps),
            logit_rows=sum(step.logit_rows for step in plan.steps),
            moves=len(plan.moves),
            predicted_s=plan.predicted_s,
            seconds=outcome.seconds,
            moves_s=outcome.moves_s,
            host_s=host_s,
            forward_s=outcome.forward_s,
            sample_s=outcome.sample_s,
            overlap_s=outcome.overlap_s,
            waiting=scheduler.waiting,
            running=scheduler.running,
            blocks=BlockCounts(sum(manager.free), sum(manager.cached), sum(manager.held)),
        )
