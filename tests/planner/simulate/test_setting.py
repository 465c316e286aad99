"""Settings of a replica."""

from __future__ import annotations

from tests.planner.simulate.support import linear, setting_with
from twofold.engine.scheduler.step_time import StepShape
from twofold.planner.simulate.exact import ExactReplica

SAMPLES = tuple((StepShape(rows, 1, 40 * rows, 300), 0.01 + 1e-4 * rows) for rows in range(1, 20))


def test_the_live_budget_starts_from_the_calibrated_steps() -> None:
    calibrated, empty = (
        ExactReplica(setting_with(tpot_target_s=0.05, step_samples=step_samples), linear).scheduler.step_time
        for step_samples in (SAMPLES, ())
    )
    assert empty.predict(StepShape(8, 1, 320, 300)) is None
    predicted = calibrated.predict(StepShape(8, 1, 320, 300))
    assert predicted is not None
    assert 0.009 < predicted < 0.013
