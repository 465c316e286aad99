"""Laws that every prediction keeps."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.planner.constants import LOOP
from tests.planner.laws import disaggregated_rate, most_tokens_per_s
from twofold.core.errors import ParameterError
from twofold.planner.count.setting import Setting
from twofold.planner.count.step import SequenceRows, step
from twofold.planner.machines.known import find_machine, known_machines
from twofold.planner.machines.machine import Cited
from twofold.planner.predict.constants import BARE, CPU, GPU, Constants, constants_for
from twofold.planner.predict.queueing import Queue
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.predict.speculation import check_ratio, min_acceptance, speed_up, tokens_a_turn
from twofold.planner.predict.steps import Demand, StepPredictor
from twofold.planner.shapes.known import find_shape, known_shapes

MODELS = (
    *("llama-3-8b", "qwen3-32b", "mixtral-8x7b", "gemma-3-4b", "smollm2-135m", "mistral-7b", "gpt-oss-20b"),
    "qwen3-next-80b-a3b",
)
SPANS = st.lists(
    st.tuples(
        st.integers(1, 64), st.builds(SequenceRows, st.integers(1, 600), st.integers(0, 9_000), st.integers(0, 1))
    ),
    min_size=1,
    max_size=4,
)
SHARES = st.floats(0.01, 1.0)
TIMES = st.floats(0.0, 1e-2)
CONSTANTS = st.builds(
    lambda shares, times, overlap: Constants(
        **{n: Cited(v, "any") for n, v in zip(("eta_m", "eta_c", "eta_k", "eta_l"), shares, strict=True)},
        overlap=Cited(overlap, "any"),
        **{n: Cited(v, "any") for n, v in zip(("t_layer", "t_step", "t_req", "t_ar"), times, strict=True)},
    ),
    st.tuples(SHARES, SHARES, SHARES, SHARES),
    st.tuples(TIMES, TIMES, TIMES, TIMES),
    st.floats(0.0, 1.0),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from(("h100", "a100-80", "l4", "epyc-9654")), SPANS, CONSTANTS)
def test_no_prediction_is_below_the_speed_of_light(
    model: str, machine: str, spans: list[tuple[int, SequenceRows]], by: Constants
) -> None:
    demand = StepPredictor.of(find_shape(model), find_machine(machine)).demand(spans)
    assert demand.seconds(by) >= demand.floor * (1 - 1e-12)
    assert demand.parts(by).seconds == pytest.approx(demand.seconds(by))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MODELS), SPANS, st.sampled_from((1, 2, 4)))
def test_coefficients_demand_what_the_counted_step_does(
    model: str, spans: list[tuple[int, SequenceRows]], tp: int
) -> None:
    shape, machine, setup = find_shape(model), find_machine("h100"), Setting(tp=tp)
    assume(shape.runs[0][1].attention.heads % tp == 0)
    work = step(shape, [span for count, span in spans for _ in range(count)], setup=setup)
    sequences = sum(count for count, _ in spans)
    counted = Demand.of(work, machine, layers=len(shape.layers), sequences=sequences, setup=setup)
    quick = StepPredictor.of(shape, machine, setup).demand(spans)
    for name in Demand._fields:
        assert getattr(quick, name) == pytest.approx(getattr(counted, name), rel=1e-6), name


@settings(max_examples=40, deadline=None)
@given(
    st.builds(Case, prompt=st.integers(2, 4_000), output=st.integers(1, 2_000), concurrency=st.integers(1, 300)),
    st.sampled_from((GPU, LOOP, BARE)),
)
def test_little_bounds_every_prediction(case: Case, by: Constants) -> None:
    found = Predictor(find_shape("llama-3-8b"), find_machine("h100"), by).predict(case)
    assert found.ttft >= found.ttft_floor
    assert found.tpot >= found.tpot_floor
    bound = most_tokens_per_s(case.concurrency, case.output, found.ttft, found.tpot)
    made = found.tokens_per_s * (case.output - 1) / case.output
    assert made <= bound * (1 + 1e-9)


def test_every_model_and_machine_of_the_tables_is_predicted() -> None:
    for shape in known_shapes().values():
        for machine in known_machines().values():
            demand = StepPredictor.of(shape, machine).decode(1, 128)
            assert demand.seconds(constants_for(machine, shape)) > demand.floor > 0


def test_more_work_takes_longer() -> None:
    steps = StepPredictor.of(find_shape("llama-3-8b"), find_machine("h100"))
    assert steps.decode(1, 128).seconds(GPU) < steps.decode(8, 128).seconds(GPU) < steps.decode(8, 8_000).seconds(GPU)
    assert steps.prefill(100).seconds(GPU) < steps.prefill(1_000).seconds(GPU)
    assert steps.prefill(1_000, 3_000).seconds(GPU) < steps.prefill(4_000).seconds(GPU)


def test_what_is_cached_is_not_computed() -> None:
    model = Predictor(find_shape("llama-3-8b"), find_machine("h100"), GPU)
    cold = model.predict(Case(prompt=8_000, output=10))
    warm = model.predict(Case(prompt=8_000, output=10, cached=7_900))
    assert warm.ttft < cold.ttft / 3
    assert warm.tpot == cold.tpot


def test_chunks_each_read_the_weights() -> None:
    model = Predictor(find_shape("llama-3-8b"), find_machine("h100"), BARE)
    whole = model.prefill(Case(prompt=1_000, output=1))
    chunks = model.prefill(Case(prompt=1_000, output=1, chunk=100))
    assert len(chunks) == 10
    assert sum(each.attention for each in chunks) == pytest.approx(whole[0].attention)
    assert sum(each.matrices for each in chunks) == pytest.approx(whole[0].matrices)
    assert sum(each.weights for each in chunks) == pytest.approx(10 * whole[0].weights, rel=0.1)


def test_what_does_not_fit_waits() -> None:
    model = Predictor(find_shape("llama-3-8b"), find_machine("l4"), GPU)
    crowded = model.predict(Case(prompt=4_000, output=200, concurrency=100))
    assert crowded.batch < 100
    assert crowded.queue > crowded.batch * crowded.tpot


def test_a_model_that_does_not_fit_is_refused_with_its_bytes() -> None:
    model = Predictor(find_shape("llama-3-70b"), find_machine("h100"), GPU)
    with pytest.raises(ParameterError, match="141"):
        model.predict(Case(prompt=100, output=10))


def test_one_machine_without_links_cannot_be_two() -> None:
    with pytest.raises(ParameterError, match="link"):
        StepPredictor.of(find_shape("llama-3-8b"), find_machine("m4-max"), Setting(tp=2))


def test_constants_that_would_beat_the_data_sheet_are_refused() -> None:
    with pytest.raises(ValueError, match="share"):
        BARE.having({"eta_m": 1.1}, "wishes")
    with pytest.raises(ValueError, match="time"):
        BARE.having({"t_layer": -1e-6}, "wishes")
    assert all(value.source for by in (GPU, LOOP, CPU) for value in by.values().values())


def test_impossible_cases() -> None:
    for wrong in ({"prompt": 0}, {"cached": 10}, {"output": 0}, {"concurrency": 0}, {"chunk": 0}):
        with pytest.raises(ParameterError):
            Case(**({"prompt": 10, "output": 1} | wrong))


def test_guesses() -> None:
    assert tokens_a_turn(0.8, 4) == pytest.approx((1 - 0.8**5) / 0.2)
    assert tokens_a_turn(1.0, 3) == 4
    assert tokens_a_turn(0.0, 3) == 1
    assert speed_up(min_acceptance(0.1, 1.05), 1, 0.1, 1.05) == pytest.approx(1)
    with pytest.raises(ParameterError):
        tokens_a_turn(1.5, 2)


@given(st.floats(0, 1), st.integers(1, 8), st.floats(0.01, 1))
def test_bound_by_arithmetic_guesses_never_pay(acceptance: float, guesses: int, draft: float) -> None:
    assert speed_up(acceptance, guesses, draft, guesses + 1) < 1


def test_checking_guesses_is_free_only_in_small_batches() -> None:
    steps = StepPredictor.of(find_shape("llama-3-8b"), find_machine("h100"))
    assert check_ratio(steps, GPU, 1, 500, 4) < 1.05
    assert check_ratio(steps, GPU, 512, 500, 4) > 2


def test_disaggregated_pools_are_as_fast_as_the_slower() -> None:
    few = disaggregated_rate(0.1, 0.02, 32, 200, prefillers=1, decoders=1)
    assert few == pytest.approx(32 / 4)
    assert disaggregated_rate(0.1, 0.02, 32, 200, prefillers=1, decoders=2) == pytest.approx(10)


def test_waiting_for_one_server() -> None:
    """Equal service times wait half as long as random ones with the same mean."""
    assert Queue(0.5, 1.0, 1.0).mean_wait == pytest.approx(0.5)
    assert Queue(0.5, 1.0, 2.0).mean_wait == pytest.approx(1.0)
    assert Queue(2.0, 1.0, 1.0).mean_wait == math.inf
