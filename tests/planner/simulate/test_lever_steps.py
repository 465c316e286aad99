"""Drafts and compressed prompts in the simulation: laws, agreement of both kinds of replicas, and the formula."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.simulate.support import linear, ran, random_jobs, random_setting
from tests.planner.simulate.test_agreement import agree
from twofold.core.errors import ParameterError
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.speculation import best_turn
from twofold.planner.predict.steps import StepPredictor, StepSize
from twofold.planner.shapes.known import find_shape
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.figures import SimulatedFigures, figures
from twofold.planner.simulate.jobs import IndependentJobs, SimulatedJob
from twofold.planner.simulate.lever_steps import SimulatedCompression, SimulatedDrafts, SpeculativeSteps
from twofold.planner.simulate.scenario import Scenario
from twofold.planner.simulate.setting import EngineSetting, PredictedSteps, groups_for

SHAPE, MACHINE = find_shape("llama-3.1-8b"), find_machine("h100")
BY = constants_for(MACHINE, SHAPE)


def speculative(drafts: SimulatedDrafts) -> SpeculativeSteps:
    return SpeculativeSteps(PredictedSteps(SHAPE, MACHINE), drafts, MACHINE, BY)


def step(decodes: int, context: int, chunk: int = 0, cached: int = 0) -> StepSize:
    """Decoding sequences of one context, and a chunk of a prompt after its cached tokens."""
    pairs = decodes * context + sum(range(cached + 1, cached + chunk + 1))
    read = decodes * context + (cached + chunk if chunk else 0)
    prompts = ((1, SequenceRows(chunk, cached)),) if chunk > 1 else ()
    return StepSize(decodes + chunk, decodes + (chunk > 0), decodes + (chunk > 0), (pairs,), (read,), prompts)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 300), st.integers(1, 4000), st.sampled_from([0, 2, 500]), st.floats(0, 1), st.floats(0, 1))
def test_drafts_never_make_a_step_longer(decodes: int, context: int, chunk: int, one: float, other: float) -> None:
    size = step(decodes, context, chunk)
    plain = PredictedSteps(SHAPE, MACHINE)(size) if size.rows else 0.0
    low, high = sorted((one, other))
    if size.rows:
        worse, better, none = (speculative(SimulatedDrafts(rate))(size) for rate in (low, high, 0.0))
        assert 0 < better <= worse <= plain
        assert none == plain


@pytest.mark.parametrize("batch", [1, 16, 256])
@pytest.mark.parametrize("acceptance", [0.2, 0.6, 0.9])
def test_a_decode_step_gains_what_the_formula_says(batch: int, acceptance: float) -> None:
    turn = best_turn(StepPredictor.of(SHAPE, MACHINE), BY, batch, 1000, acceptance)
    size = step(batch, 1000)
    seconds = speculative(SimulatedDrafts(acceptance))(size)
    assert PredictedSteps(SHAPE, MACHINE)(size) / seconds == pytest.approx(turn.speed, rel=0.01)


def test_a_prompt_beside_drafts_costs_no_less_than_alone() -> None:
    """The rows of its chunk are computed once a turn."""
    drafts = speculative(SimulatedDrafts(0.9))
    beside = drafts(step(8, 1000, 2048)) - drafts(step(8, 1000))
    alone = PredictedSteps(SHAPE, MACHINE)
    assert beside > 0.5 * (alone(step(8, 1000, 2048)) - alone(step(8, 1000)))


def test_a_draft_model_costs_its_steps() -> None:
    size = step(4, 1000)
    free, paid = (speculative(SimulatedDrafts(0.7, draft=each))(size) for each in (None, find_shape("llama-3.2-1b")))
    assert free < paid < PredictedSteps(SHAPE, MACHINE)(size)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32))
def test_both_kinds_of_replicas_agree(seed: int) -> None:
    rng = random.Random(seed)
    setting, jobs = random_setting(rng), random_jobs(rng, rng.randint(1, 12))
    seconds = SpeculativeSteps(linear, SimulatedDrafts(0.6, 4), MACHINE, BY)
    exact, fast = (ran(kind(setting, seconds), jobs) for kind in (ExactReplica, FastReplica))
    assert agree(exact, fast)


def served(
    drafts: SimulatedDrafts | None = None, compression: SimulatedCompression | None = None, *, rate: float = 2.0
) -> SimulatedFigures:
    rng, now, jobs = random.Random(1), 0.0, []
    for number in range(60):
        now += rng.expovariate(rate)
        jobs.append(SimulatedJob(number, now, 2000, 200, (), number))
    setting = EngineSetting(groups_for(SHAPE, MACHINE, draft=drafts.draft if drafts else None), prefix_caching=False)
    scenario = Scenario(shape=SHAPE, machine=MACHINE, setting=setting, drafts=drafts, compression=compression)
    return figures(scenario.run(IndependentJobs(jobs)))


def test_edits_gain_and_prose_hardly_does() -> None:
    plain, prose, edit = (served(each).tpot.mean for each in (None, SimulatedDrafts(0.153), SimulatedDrafts(0.855)))
    assert plain is not None and prose is not None and edit is not None  # noqa: PT018 - of one kind
    assert 1 < plain / prose < 1.25
    assert plain / edit > 3


def test_compression_saves_prefill_only_with_a_much_smaller_scorer() -> None:
    plain = served().ttft.mean
    small = served(compression=SimulatedCompression(0.5, find_shape("smollm2-135m"))).ttft.mean
    own = served(compression=SimulatedCompression(0.5, SHAPE)).ttft.mean
    assert plain is not None and small is not None and own is not None  # noqa: PT018 - of one kind
    assert small < plain < own


def test_a_draft_model_takes_blocks() -> None:
    draft = find_shape("llama-3.2-1b")
    with_draft, without = (groups_for(SHAPE, MACHINE, draft=each)[0].blocks for each in (draft, None))
    assert with_draft < 0.9 * without


@pytest.mark.parametrize(
    "wrong", [{"acceptance": 1.5}, {"acceptance": 0.5, "most": 0}, {"acceptance": 0.5, "most": 17}]
)
def test_drafts_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        SimulatedDrafts(**wrong)  # type: ignore[arg-type]


def test_compression_keeps_what_is_shared() -> None:
    compression = SimulatedCompression(0.25, SHAPE)
    assert compression.kept(1000, 200) == 400
    assert compression.kept(200, 200) == 200
    assert compression.kept(2, 0) == 1
    with pytest.raises(ParameterError):
        SimulatedCompression(1.0, SHAPE)
