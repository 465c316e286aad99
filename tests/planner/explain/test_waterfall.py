"""Waterfalls: phases add up to what is predicted, none is faster than light, and each says what bounds it."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.planner.explain.scenes import ALONE, PLAIN, scene
from twofold.core.errors import ParameterError
from twofold.planner.explain.scenario import NAMES, Observed, Phase, limit_of, waterfall
from twofold.planner.machines.known import known_machines
from twofold.planner.predict.constants import EFFICIENT
from twofold.planner.predict.request import Case
from twofold.planner.predict.steps import StepParts
from twofold.planner.shapes.known import known_shapes

cases = st.builds(
    Case,
    prompt=st.integers(2, 4000),
    cached=st.integers(0, 1),
    output=st.integers(1, 500),
    concurrency=st.integers(1, 300),
    chunk=st.none() | st.integers(16, 2048),
)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(known_shapes())), st.sampled_from(sorted(known_machines())), cases)
def test_phases_add_up_and_none_is_faster_than_light(model: str, machine: str, case: Case) -> None:
    try:
        scenario = scene(model, machine, case)
    except ParameterError:
        assume(False)
    fall, prediction = waterfall(scenario), scenario.prediction
    assert [phase.name for phase in fall.phases] == list(NAMES)
    assert fall.seconds == pytest.approx(prediction.e2e, rel=1e-9)
    assert fall.predicted == fall.seconds
    assert fall.floor <= fall.seconds * (1 + 1e-12)
    for phase in fall.phases:
        assert phase.seconds >= 0
        if phase.parts is not None:
            assert phase.parts.seconds == pytest.approx(phase.seconds, rel=1e-9)
        if phase.share is not None:
            assert 0 < phase.share <= 1 + 1e-12


def test_a_long_prompt_is_bound_by_arithmetic_and_a_lone_answer_by_memory() -> None:
    fall = waterfall(scene(case=ALONE, by=EFFICIENT))
    assert fall.named("prefill").bound == "arithmetic"
    assert fall.named("decode").bound == "memory"
    assert fall.named("queue").seconds == fall.named("stalls").seconds == 0


def test_stalls_are_others_prompts() -> None:
    """(b − 1) / OSL of a prompt for each further token."""
    scenario = scene(by=EFFICIENT)
    prefill_s = waterfall(scene(case=ALONE, by=EFFICIENT)).named("prefill").seconds
    stalls = waterfall(scenario).named("stalls")
    assert stalls.seconds == pytest.approx(299 * 15 / 300 * prefill_s)
    assert stalls.why == "prefill of 15 other requests in the same steps"
    assert stalls.floor is None


def test_requests_that_do_not_fit_wait() -> None:
    case = Case(prompt=3000, output=200, concurrency=400)
    queue = waterfall(scene(case=case)).named("queue")
    assert queue.seconds > 1
    assert queue.why == "400 open requests, of which 150 fit in memory"


@pytest.mark.parametrize(
    ("parts", "limit"),
    [
        (StepParts(1, 1.5, 1, 0, 0), "memory"),
        (StepParts(0, 1.5, 1, 0, 0), "arithmetic"),
        (StepParts(0, 0, 1, 2, 0), "link"),
        (StepParts(1, 1, 0, 0, 2), "overhead"),
    ],
)
def test_weights_and_cache_are_both_memory(parts: StepParts, limit: str) -> None:
    assert limit_of(parts) == limit


def test_measured_beside_predicted() -> None:
    seen = Observed(
        "r", None, PLAIN.prompt, 0, PLAIN.output,
        phases={
            "queue": Phase("queue", 0.5, why="queued for blocks"),
            "decode": Phase("decode", 8.0, floor=2.0, bound="memory"),
        },
    )  # fmt: skip
    scenario = scene()
    alone, both = waterfall(scenario), waterfall(scenario, seen)
    decode = both.named("decode")
    assert decode.seconds == decode.actual == 8.0
    assert decode.predicted == alone.named("decode").seconds
    assert decode.error == pytest.approx(alone.named("decode").seconds / 8 - 1)
    assert decode.floor == 2.0, "the machine that ran it knows its floor best"
    assert decode.share == 0.25
    assert both.named("queue").why == "queued for blocks"
    assert both.named("prefill").actual is None


def test_unknown_values_are_none() -> None:
    fall = waterfall(None, Observed("r", None, 10, 0, 10, phases={"decode": Phase("decode", 1.0)}))
    assert fall.seconds == 1.0
    assert fall.predicted is None
    assert fall.named("decode").share is None
    assert fall.named("decode").error is None
