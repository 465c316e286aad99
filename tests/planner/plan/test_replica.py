"""A replica under steady load: laws of its curve, and agreement with the predictor of single cases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.plan.support import configuration, model_of, steady
from twofold.planner.count.step import SequenceRows
from twofold.planner.plan.evaluate import FULL, decode_curve, mixed_curve
from twofold.planner.plan.plan import Speculation
from twofold.planner.plan.traffic import Kind, Traffic
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.shapes.known import find_shape

PROMPTS = st.integers(1, 20_000)


@settings(max_examples=40, deadline=None)
@given(PROMPTS, st.integers(0, 8000), st.sampled_from([64, 512, 2048]))
def test_first_and_last_chunks_represent_all(new: int, cached: int, rows: int) -> None:
    model = model_of(configuration(), steady())
    kind = Kind(1.0, cached + new, cached, 10)
    starts = range(cached, cached + new, rows)
    whole = sum(
        model.step_s((1, SequenceRows(min(rows, kind.prompt - start), start, int(start + rows >= kind.prompt))))
        for start in starts
    )
    steps, seconds = model.prompt_s(kind, rows)
    assert steps == len(starts)
    assert seconds == pytest.approx(whole, rel=0.01)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8000), st.integers(2, 2000), st.sampled_from([512, 2048, 8192]), st.booleans())
def test_curves_rise_and_keep_littles_law(prompt: int, output: int, chunk: int, split: bool) -> None:
    traffic = steady(1.0, prompt, output)
    model = model_of(configuration(chunk=chunk, split=split), traffic)
    curve = (decode_curve if split else mixed_curve)(model, 200)
    assert len(curve.states) > 1
    rates = [state.rate for state in curve.states]
    assert rates == sorted(set(rates))
    for state in curve.states:
        assert state.batch == pytest.approx(state.rate * traffic.decoded * state.token_s, rel=1e-6, abs=1e-9)
        assert state.step_s >= model.floor_s()
        assert state.token_s >= state.step_s
        assert state.queue.busy <= FULL + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 0.999))
def test_states_are_interpolated(part: float) -> None:
    curve = mixed_curve(model_of(configuration(), steady()), 256)
    state = curve.at(part * curve.max_rate)
    assert state is not None
    assert state.rate == pytest.approx(part * curve.max_rate)
    assert curve.states[0].token_s <= state.token_s <= curve.states[-1].token_s
    assert 0 <= state.batch <= curve.states[-1].batch


def test_above_the_maximum_rate_there_is_no_state() -> None:
    curve = mixed_curve(model_of(configuration(), steady()), 256)
    assert curve.at(curve.max_rate * 1.001) is None


def test_rows_of_sequences_leave_fewer_for_prompts() -> None:
    curve = mixed_curve(model_of(configuration(chunk=64), steady(1.0, 10, 400)), 512)
    assert max(state.batch for state in curve.states) < 64


@pytest.mark.parametrize(("prompt", "output", "sequences"), [(1024, 1024, 16), (2048, 512, 32), (512, 256, 64)])
def test_tpot_is_near_that_of_the_predictor(prompt: int, output: int, sequences: int) -> None:
    """The predictor charges prompts whole, as measured on servers; here their chunks run in steps of others."""
    asked = configuration()
    traffic = steady(1.0, prompt, output)
    curve = mixed_curve(model_of(asked, traffic), sequences)
    state = curve.states[-1]
    assert state.batch == pytest.approx(sequences)
    case = Case(prompt=prompt, output=output, concurrency=sequences)
    predicted = Predictor(asked.shape, asked.machine, constants_for(asked.machine, asked.shape)).predict(case)
    assert state.token_s == pytest.approx(predicted.tpot, rel=0.15)


def test_drafts_pay_at_small_batches_and_not_where_arithmetic_binds() -> None:
    traffic = steady(1.0, 16, 16)
    plain = model_of(configuration(), traffic)
    drafting = model_of(configuration(speculation=Speculation(3, 0.5)), traffic)
    assert drafting.decode_s(1) < 0.6 * plain.decode_s(1)
    assert drafting.decode_s(1000) > plain.decode_s(1000)


def test_a_draft_model_costs_its_steps() -> None:
    traffic = steady()
    free = model_of(configuration(speculation=Speculation(3, 0.8)), traffic)
    paid = model_of(configuration(speculation=Speculation(3, 0.8, find_shape("llama-3.2-1b"))), traffic)
    assert paid.decode_s(1) > free.decode_s(1)


def test_long_prompts_and_short_completions_are_bound_by_prompts() -> None:
    traffic = Traffic.of_requests(1.0, [(30_000, 0, 2)])
    curve = mixed_curve(model_of(configuration(), traffic), 256)
    assert curve.states[-1].queue.busy == pytest.approx(FULL)
    assert curve.states[-1].batch < 1
