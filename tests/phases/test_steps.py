"""Parts of a step, and a model that is watched without being changed."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeLoaded
from tests.engine.mock import MockForward
from twofold.core.params import SamplingParams
from twofold.core.report import BlockCounts, StepReport
from twofold.engine.llm import LLM
from twofold.phases.steps import Pass, StepTime, WatchedForward

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
)


def test_the_parts_of_a_step_follow_each_other() -> None:
    step = StepTime.of(REPORT, Pass(began=10.75, ended=11.25, beside_s=0.125))
    assert (step.decode_rows, step.prefill_rows) == (2, 5)
    assert (step.host_s, step.batch_s, step.model_s, step.draw_s, step.beside_s) == (0.25, 0.75, 0.5, 0.25, 0.125)
    assert step.seconds == REPORT.host_s + REPORT.moves_s + REPORT.seconds
    assert step.outside == pytest.approx(1 - 0.5 / 1.75)


def test_a_step_that_only_moves_blocks_runs_no_model() -> None:
    step = StepTime.of(REPORT, None)
    assert (step.batch_s, step.model_s, step.draw_s) == (1.5, 0, 0)


def test_the_mean_is_taken_part_by_part() -> None:
    one, other = StepTime(1, 0, 1, 2, 3, 4, 5), StepTime(3, 2, 3, 4, 5, 6, 7)
    assert StepTime.mean([one, other]) == StepTime(2, 1, 2, 3, 4, 5, 6)


def test_watching_changes_no_answer(make_loaded: MakeLoaded) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    answers = []
    for watch in (False, True):
        forward = MockForward(blocks=128, max_logit_rows=64)
        with LLM.from_loaded(make_loaded(forward=WatchedForward(forward) if watch else forward)) as llm:
            answers.append([output.outputs[0].token_ids for output in llm.generate(["in the", "is"], params)])
    assert answers[0] == answers[1]


def test_what_python_does_meanwhile_is_counted(make_loaded: MakeLoaded) -> None:
    watched = WatchedForward(MockForward(blocks=128, max_logit_rows=64))
    with LLM.from_loaded(make_loaded(forward=watched)) as llm:
        llm.generate("in the", SamplingParams(max_tokens=3, ignore_eos=True))
    last = watched.take()
    assert last is not None
    assert 0 < last.beside_s <= last.ended - last.began
    assert watched.take() is None
