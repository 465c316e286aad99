"""The report of a committed step."""

from __future__ import annotations

from twofold.core.report import BlockCounts, StepReport
from twofold.core.step import StepPlan
from twofold.engine.scheduler.scheduler import Scheduler


def step_report(scheduler: Scheduler, plan: StepPlan, started: float, seconds: float, **parts: float) -> StepReport:
    """The last step of ``scheduler``. ``parts`` are further seconds of ``StepReport``, such as ``host_s``."""
    manager = scheduler.manager
    return StepReport(
        number=scheduler.steps - 1,
        started=started,
        decode_rows=plan.decode_rows,
        prefill_rows=plan.rows - plan.decode_rows,
        sequences=len(plan.steps),
        logit_rows=sum(step.logit_rows for step in plan.steps),
        moves=len(plan.moves),
        predicted_s=plan.predicted_s,
        seconds=seconds,
        draft_rows=sum(step.drafts for step in plan.steps),
        attended=plan.attended,
        read=plan.read,
        held_by=plan.held_by,
        budget=plan.budget,
        waiting=scheduler.waiting,
        running=scheduler.running,
        blocks=BlockCounts(sum(manager.free), sum(manager.cached), sum(manager.held)),
        **{"moves_s": 0.0, "host_s": 0.0, **parts},
    )
