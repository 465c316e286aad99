"""Levers of the server alone: laws, refusals where they cannot pay, and claims that were made about them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.planner.explain.scenes import ALONE, PLAIN, lever, scene
from tests.planner.explain.test_waterfall import cases
from twofold.core.errors import ParameterError
from twofold.planner.explain.lever import Assumptions
from twofold.planner.explain.scenario import UniformScenario
from twofold.planner.explain.serving_levers import draft_for, scorer_for
from twofold.planner.machines.known import known_machines
from twofold.planner.machines.machine import Cited
from twofold.planner.predict.constants import BARE
from twofold.planner.predict.request import DIGEST, Case
from twofold.planner.predict.speculation import ACCEPTANCE, TEXT_CLASSES, best_turn
from twofold.planner.shapes.known import find_shape, known_shapes

MODELS = st.sampled_from(sorted(known_shapes()))
MACHINES = st.sampled_from(sorted(known_machines()))
CROWD = Case(prompt=3000, output=200, concurrency=400)


def any_scene(model: str, machine: str, case: Case) -> UniformScenario:
    try:
        return scene(model, machine, case)
    except ParameterError:
        assume(False)
        raise


@settings(deadline=None, max_examples=40)
@given(MODELS, MACHINES, st.integers(1, 512), st.integers(1, 8000), st.floats(0, 0.99), st.floats(0, 0.99))
def test_a_turn_never_loses_and_gains_more_with_more_accepted(
    model: str, machine: str, batch: int, context: int, one: float, other: float
) -> None:
    predictor = any_scene(model, machine, Case(prompt=1, output=2)).predictor
    low, high = (best_turn(predictor.steps, predictor.constants, batch, context, each) for each in sorted((one, other)))
    assert 1 <= low.speed <= high.speed
    assert (low.drafts == 0) == (low.speed == 1)


@settings(deadline=None, max_examples=20)
@given(MODELS, st.integers(1, 4), st.sampled_from([0.1, 0.4, 0.7]))
def test_drafts_stop_where_arithmetic_bounds(model: str, context: int, acceptance: float) -> None:
    """Bare, rows of a large batch cost as much each as the first; at long contexts they share reads of the cache."""
    predictor = scene(model, "h100", Case(prompt=1, output=2), by=BARE).predictor if fits(model) else None
    assume(predictor is not None and not predictor.shape.has_experts)
    assert predictor is not None
    assert best_turn(predictor.steps, BARE, 100_000, context, acceptance).drafts == 0


def fits(model: str) -> bool:
    try:
        scene(model, "h100", Case(prompt=1, output=2))
    except ParameterError:
        return False
    return True


def test_the_gain_by_class_of_text() -> None:
    """ "2–4×" of speculation is true for rewriting and quoting; for code and prose it is less than 1.3×."""
    scenario = scene("qwen2.5-1.5b", "epyc-9654", ALONE)
    gains = {text: lever("speculation", scenario, "tpot", Assumptions(text=text)).gain("tpot") for text in TEXT_CLASSES}
    assert 4 > gains["edit"] > 3 > gains["extraction"] > 2
    assert 1.3 > gains["code"] > gains["prose"] > 1.1


@pytest.mark.parametrize("text", TEXT_CLASSES)
def test_acceptance_rates_give_the_gains_that_were_measured(text: str) -> None:
    """With the measured seconds of steps of 1 … 8 rows, relative to one row; one stream on two cores. Those of a draft
    model, where it was measured, cost 0.36 of a step each."""
    rows = {1: 1.0, 2: 1.07, 4: 1.23, 8: 1.72}
    known = ACCEPTANCE[text]  # type: ignore[index]
    for found, draft, measured in ((known.lookup, 0.0, known.lookup_gain), (known.model, 0.36, known.model_gain)):
        if not measured:
            assert text in {"edit", "extraction"}
            continue
        turns = ((sum(found**taken for taken in range(new)), (new - 1) * draft + cost) for new, cost in rows.items())
        gain = max(tokens / seconds for tokens, seconds in turns)
        assert gain == pytest.approx(measured, rel=0.003)


def test_a_draft_model_has_the_vocabulary_and_is_much_smaller() -> None:
    for shape in known_shapes().values():
        draft = draft_for(shape)
        if draft is not None:
            assert draft.vocab_size == shape.vocab_size
            assert draft.hidden_size < shape.hidden_size
    assert draft_for(find_shape("smollm2-135m")) is None
    assert lever("draft model", scene("smollm2-135m")).status == "cannot"


def test_a_draft_model_costs_its_own_steps() -> None:
    scenario = scene("llama-3-70b", tp=8, case=ALONE)
    free, paid = (
        lever("draft model", scenario, "tpot", Assumptions(acceptance=0.7, draft=each)).gain("tpot")
        for each in (0.0, None)
    )
    assert free > paid > 1


@settings(deadline=None, max_examples=60)
@given(MODELS, MACHINES, cases)
def test_no_lever_gains_where_its_seconds_say_otherwise(model: str, machine: str, case: Case) -> None:
    """A store that takes longer than computing, a scorer that takes longer than it saves, and keys and values that move
    within one memory are refused; what is not refused takes less machine time."""
    scenario = any_scene(model, machine, case)
    now = scenario.prediction
    for name in ("KV store", "prompt compression"):
        found = lever(name, scenario, "ttft")
        if found.after is not None:
            assert found.after.ttft - now.queue < now.ttft or now.queue
            assert found.saves_s["prefill"] > 0
    if scenario.predictor.machine.host_link is None or not now.queue:
        assert lever("LayerKV", scenario).status == "cannot"
    for name in ("KV q8", "KV k8v4"):
        found = lever(name, scenario)
        if found.after is not None:
            assert found.after.sequences >= scenario.sequences


def test_a_store_pays_above_its_break_even_bandwidth() -> None:
    """bytes · (1 / disk + 1 / digest) against the prefill that it saves."""
    scenario = scene("qwen2.5-1.5b", "epyc-9654", Case(prompt=4000, output=100))
    case = replace(scenario.case, loaded=2000)
    nbytes = 2000 * 28_672
    assert scenario.predictor.load_s(case) == pytest.approx(nbytes / 1.2e9 + nbytes / DIGEST)
    found = lever("KV store", scenario, "ttft")
    assert found.status == "gains"
    machine = replace(scenario.predictor.machine, disk=Cited(20e6, "a slow disk"))
    slow = replace(scenario, predictor=replace(scenario.predictor, machine=machine))
    assert lever("KV store", slow, "ttft").status == "cannot"
    assert lever("KV store", scene("llama-3-8b", "h100", ALONE)).status == "cannot", "a GPU computes faster"


def test_loaded_tokens_are_a_third_kind() -> None:
    whole, cached, loaded = (
        scene("qwen2.5-1.5b", "epyc-9654", Case(prompt=4000, output=100, cached=each, loaded=other)).prediction
        for each, other in ((0, 0), (3000, 0), (0, 3000))
    )
    assert cached.prefill == loaded.prefill
    assert cached.ttft < loaded.ttft < whole.ttft
    assert loaded.ttft - cached.ttft == pytest.approx(loaded.load)
    with pytest.raises(ParameterError):
        Case(prompt=10, output=1, cached=5, loaded=5)


def test_layer_wise_keys_and_values_move_the_wait() -> None:
    """ "Up to 69×": the queue and nothing else, and TPOT pays for all of it."""
    scenario = scene(case=CROWD)
    now, found = scenario.prediction, lever("LayerKV", scenario, "ttft")
    assert found.status == "gains"
    assert found.gain("ttft") > 10
    assert found.gain("e2e") == pytest.approx(1)
    assert found.gain("throughput") == pytest.approx(1)
    assert found.after is not None
    assert found.after.tpot == pytest.approx(now.tpot + now.queue / 199)
    assert lever("LayerKV", scenario).status == "felt"
    assert lever("LayerKV", scene(case=PLAIN)).status == "cannot"
    assert lever("LayerKV", scene(case=replace(CROWD, output=1))).status == "cannot"
    assert "one memory" in lever("LayerKV", scene("llama-3-8b", "epyc-9654")).why


def test_compression_declines_where_scoring_costs_more_than_it_saves() -> None:
    """ "20×" keeps 5 % of the prompt. A model that scores its own prompt computes all of it first."""
    scenario = scene(case=Case(prompt=8000, output=100))
    own = find_shape("llama-3-8b")
    declined = lever("prompt compression", scenario, "ttft", Assumptions(keeps=0.05, scorer=own))
    assert declined.status == "cannot"
    assert "Scoring 8,000 tokens by llama-3-8b takes " in declined.why
    paying = lever("prompt compression", scenario, "e2e", Assumptions(keeps=0.05))
    assert 1 < paying.gain("e2e") < 2, "end to end far from 20, since decoding stays"
    assert scorer_for(find_shape("gemma-3-270m")) == find_shape("gemma-3-270m")
