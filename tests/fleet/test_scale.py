"""How many replicas past requests need: laws of the forecast, and when it is followed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.basis import BASIS, PRIOR
from twofold.core.errors import ParameterError
from twofold.fleet.scale import (
    HEADROOM,
    MAX_REQUESTS,
    EngineLimits,
    PastRequest,
    ScaleForecast,
    ScaleQuestion,
    ScaleRange,
    ScaleRule,
    forecast,
)
from twofold.observe.metrics.requests import Objective

ENGINE = EngineLimits(slots=4, rows=64, block_size=16, blocks=512, weights=PRIOR, basis=BASIS)
OBJECTIVES = {"default": Objective(ttft_s=0.5, tpot_s=0.05)}


def question(requests: list[PastRequest], present: int = 1, most: int = 6) -> ScaleQuestion:
    return ScaleQuestion(tuple(sorted(requests)), ENGINE, OBJECTIVES, 0.9, 1, most, present)


def steady(every_s: float, count: int, output: int = 40, tier: str = "default") -> list[PastRequest]:
    """Requests in regular intervals; each takes about 0.3 s alone."""
    return [PastRequest(number * every_s, 100, 0, output, tier) for number in range(count)]


past = st.builds(
    PastRequest,
    st.floats(0.0, 20.0),
    st.integers(1, 400),
    st.integers(0, 400),
    st.integers(1, 80),
    st.sampled_from(("default", "default", "batch")),
)
questions = st.builds(question, st.lists(past, min_size=1, max_size=40), st.integers(1, 7), st.just(6))


@given(questions)
@settings(max_examples=60, deadline=None)
def test_the_answer_lies_between_the_bounds_and_is_the_same_each_time(asked: ScaleQuestion) -> None:
    found = forecast(asked)
    assert forecast(asked) == found
    assert asked.minimum <= found.replicas <= asked.maximum
    near = {found.replicas + step for step in (-1, 0, 1)} & set(range(1, asked.maximum + 1))
    assert near <= set(found.attainment)
    assert all(0.0 <= share <= 1.0 for share in found.attainment.values())
    meets = found.attainment[found.replicas] >= asked.attainment
    assert meets or found.replicas == asked.maximum
    assert found.replicas == 1 or found.attainment[found.replicas - 1] < asked.attainment
    assert not found.spare or found.replicas < asked.present


@given(questions, st.integers(2, 3))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_more_traffic_never_wants_fewer_replicas(asked: ScaleQuestion, times: int) -> None:
    """Each request arrives several times at once. It is no law of the scheduler, so the examples are fixed."""
    more = replace(asked, requests=tuple(each for each in asked.requests for _ in range(times)))
    assert forecast(more).replicas >= forecast(asked).replicas


@given(st.integers(1, 7))
def test_without_requests_the_least_replicas_are_wanted(present: int) -> None:
    found = forecast(question([], present))
    assert (found.replicas, found.spare, found.attainment) == (1, present > 1, {})


def test_replicas_follow_the_rate() -> None:
    wanted = [forecast(question(steady(every_s, 60))).replicas for every_s in (1.0, 0.08, 0.04, 0.001)]
    assert wanted[0] == 1
    assert wanted == sorted(wanted)
    assert wanted[-1] == 6


def test_requests_without_an_objective_are_load_but_do_not_count() -> None:
    heavy = steady(0.02, 100, tier="batch")
    assert forecast(question(heavy)).replicas == 1
    assert forecast(question([*heavy, *steady(1.0, 3)])).replicas > 1


def test_what_no_number_of_replicas_can_meet_does_not_count() -> None:
    found = forecast(question([*steady(10.0, 10), *(PastRequest(10.0 * at + 4, 2000, 0, 10) for at in range(10))]))
    assert (found.replicas, found.hopeless) == (1, 10)
    assert found.attainment[1] >= 0.9


def test_no_replica_is_given_up_while_most_requests_miss_in_any_case() -> None:
    asked = question([PastRequest(float(at), 2000, 0, 10) for at in range(10)], present=3)
    found = forecast(asked)
    assert (found.replicas, found.hopeless, found.spare) == (1, 10, False)
    wanted, reason = ScaleRule().decide(asked, found, 0.0)
    assert wanted == 3
    assert reason.endswith("10 miss it on an idle replica, too; kept, because fewer would delay those further")


def test_cached_tokens_are_not_computed_again() -> None:
    fresh = [PastRequest(number * 0.2, 800, 0, 2) for number in range(60)]
    cached = [each._replace(cached=760) for each in fresh]
    assert forecast(question(cached)).attainment[1] > forecast(question(fresh)).attainment[1]


def test_the_objective_must_be_met_lately_too() -> None:
    calm = [each._replace(arrival_s=each.arrival_s - 300.0) for each in steady(0.5, 400)]
    assert forecast(question(calm)).replicas == 1
    assert forecast(question([*calm, *steady(0.01, 30)])).replicas > 1


def test_the_latest_requests_are_simulated_if_there_are_too_many() -> None:
    found = forecast(question(steady(1.0, MAX_REQUESTS + 5), most=2))
    assert (found.requests, found.cut) == (MAX_REQUESTS, "requests")


@pytest.mark.parametrize("calls", [0, 10, 70, 150])
def test_a_deadline_ends_the_simulations(calls: int) -> None:
    left = iter(range(calls))
    found = forecast(question(steady(0.001, 60), present=3), lambda: next(left, None) is None)
    assert (found.cut, found.spare) == ("simulations", False)
    assert 1 <= found.replicas <= 6
    assert forecast(question(steady(0.001, 60), present=3)).cut is None


def test_a_replica_to_spare_is_one_with_headroom() -> None:
    gaps = [number / 200 for number in range(100, 1, -1)]
    least_s = min(every_s for every_s in gaps if forecast(question(steady(every_s, 80), most=4)).replicas == 1)
    just = forecast(question(steady(least_s, 80), present=2, most=4))
    assert (just.replicas, just.spare) == (1, False)
    calm = forecast(question(steady(least_s * HEADROOM * HEADROOM, 80), present=2, most=4))
    assert (calm.replicas, calm.spare) == (1, True)


def test_a_live_budget_takes_more_steps_for_a_prompt() -> None:
    long = [PastRequest(float(number), 600, 0, 1) for number in range(9)]
    fixed = replace(question(long), engine=replace(ENGINE, rows=512), objectives={"default": Objective(ttft_s=0.3)})
    live = replace(fixed, engine=replace(fixed.engine, tpot_target_s=0.02))
    assert [forecast(each).hopeless for each in (fixed, live)] == [0, 9]


# -- when a forecast is followed ---------------------------------------------------------------------------------------


def answer(replicas: int, *, spare: bool = False) -> ScaleForecast:
    return ScaleForecast(replicas, {replicas: 0.95}, spare, requests=10)


@pytest.fixture
def decide() -> Callable[[float, int, ScaleForecast], int]:
    rule = ScaleRule(quiet_s=120.0)
    return lambda now, present, found: rule.decide(question([], present), found, now)[0]


def test_it_scales_up_at_once(decide: Callable[[float, int, ScaleForecast], int]) -> None:
    assert decide(0.0, 1, answer(4)) == 4
    assert decide(10.0, 4, answer(4)) == 4


def test_it_scales_down_one_by_one_after_quiet_times(decide: Callable[[float, int, ScaleForecast], int]) -> None:
    spare = answer(1, spare=True)
    assert [decide(at, 4, spare) for at in (0.0, 60.0, 119.0, 120.0)] == [4, 4, 4, 3]
    assert [decide(at, 3, spare) for at in (130.0, 240.0, 250.0)] == [3, 3, 2]


@pytest.mark.parametrize("between", [answer(5), answer(4), answer(1)])
def test_a_quiet_time_begins_again(decide: Callable[[float, int, ScaleForecast], int], between: ScaleForecast) -> None:
    """After a need for more, for all, or a lack of headroom."""
    spare = answer(1, spare=True)
    assert decide(0.0, 4, spare) == 4
    assert decide(100.0, 4, between) == max(4, between.replicas)
    assert [decide(at, 4, spare) for at in (110.0, 229.0, 230.0)] == [4, 4, 3]


def test_the_reason_is_in_words() -> None:
    found = ScaleForecast(2, {1: 0.4, 2: 0.95, 3: 1.0, 6: 1.0}, spare=False, requests=50, hopeless=3, cut="requests")
    _, reason = ScaleRule().decide(question([]), found, 0.0)
    assert reason == (
        "2 replicas can meet the objective for 90% of 50 requests (1: 40%, 2: 95%, 3: 100%); "
        "3 miss it on an idle replica, too; some requests were omitted"
    )
    _, reason = ScaleRule().decide(question([], 3), answer(2), 0.0)
    assert reason.endswith("kept, because 2 would not at 1.25 times the rate")
    _, reason = ScaleRule().decide(question([], 3), answer(2, spare=True), 0.0)
    assert reason.endswith("one is given up in 120 s if that stays so")


@pytest.mark.parametrize("text", ["", "3", "2:2", "3:1", "0:2", "1:65", "a:b", "1:2:3", "-1:2"])
def test_a_range_is_two_numbers(text: str) -> None:
    with pytest.raises(ParameterError, match="MIN:MAX"):
        ScaleRange.parse(text)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_an_attainment_is_a_share(share: float) -> None:
    with pytest.raises(ParameterError, match="attainment"):
        ScaleRange.parse("1:2", share)
    assert ScaleRange.parse("1:2", 0.99) == ScaleRange(1, 2, 0.99)
