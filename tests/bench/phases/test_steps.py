"""Parts of a step, and how the engine reports them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tests.engine.conftest import MakeLoaded
from twofold.bench.phases.report import StepTime
from twofold.core.params import SamplingParams
from twofold.core.report import BlockCounts, RequestMetrics, StepReport
from twofold.engine.llm import LLM

REPORT = StepReport(
    number=3,
    started=10.0,
    decode_rows=2,
    prefill_rows=5,
    sequences=3,
    logit_rows=3,
    moves=1,
    predicted_s=None,
    seconds=1.0,
    moves_s=0.5,
    host_s=0.25,
    waiting=0,
    running=3,
    blocks=BlockCounts(1, 0, 3),
    forward_s=0.5,
    sample_s=0.25,
    overlap_s=0.125,
)


@dataclass(frozen=True, slots=True)
class Listener:
    """Keeps the reports of steps."""

    steps: list[StepReport]

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)

    def on_request(self, report: RequestMetrics) -> None:
        """Nothing is kept."""


def test_the_parts_of_a_step_follow_each_other() -> None:
    step = StepTime.of(REPORT)
    assert (step.decode_rows, step.prefill_rows) == (2, 5)
    assert (step.host_s, step.batch_s, step.model_s, step.draw_s, step.beside_s) == (0.25, 0.75, 0.5, 0.25, 0.125)
    assert step.seconds == REPORT.host_s + REPORT.moves_s + REPORT.seconds
    assert step.outside == pytest.approx(1 - 0.5 / 1.75)


def test_a_step_that_only_moves_blocks_runs_no_model() -> None:
    step = StepTime.of(replace(REPORT, forward_s=0.0, sample_s=0.0, overlap_s=0.0))
    assert (step.batch_s, step.model_s, step.draw_s) == (1.5, 0, 0)


def test_the_mean_is_taken_part_by_part() -> None:
    one, other = StepTime(1, 0, 1, 2, 3, 4, 5), StepTime(3, 2, 3, 4, 5, 6, 7)
    assert StepTime.mean([one, other]) == StepTime(2, 1, 2, 3, 4, 5, 6)


def test_what_python_does_meanwhile_is_counted(make_loaded: MakeLoaded) -> None:
    listener = Listener([])
    with LLM.from_loaded(make_loaded()) as llm:
        llm.engine.observe(listener)
        llm.generate("in the", SamplingParams(max_tokens=3, ignore_eos=True))
    last = listener.steps[-1]
    assert 0 < last.overlap_s <= last.forward_s
    assert last.sample_s > 0
    assert last.forward_s + last.sample_s <= last.seconds
