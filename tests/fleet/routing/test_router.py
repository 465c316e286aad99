"""Choices of routers, and predictions beside what simulated replicas then take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.routing.replicas import Standing, model
from tests.planner.simulate.support import linear, setting_with
from tests.support.basis import BASIS
from twofold.engine.scheduler.forecast import predict
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.fleet.routing.router import BlockFetch, Choice, Predicted, RoutedRequest, make_router
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.jobs import SimulatedJob
from twofold.planner.simulate.routing import learned_step_time

NAMES = ("round-robin", "least-loaded", "longest-match", "predicted")


def request(tokens: int = 100, matched: Sequence[int] = (0, 0, 0), tpot_target_s: float | None = None) -> RoutedRequest:
    return RoutedRequest(tokens, lambda: matched, tpot_target_s)


def prompts(*tokens: int) -> StepShape:
    shape = StepShape()
    for each in tokens:
        shape = shape.plus(0, each, 1)
    return shape


def chosen(replicas: Sequence[Standing], asked: RoutedRequest) -> Choice:
    choice = Predicted().choose(asked, replicas)
    assert choice is not None
    return choice


@st.composite
def standing(draw: st.DrawFn) -> Standing:
    decoding = draw(st.integers(0, 20))
    return Standing(
        draw(st.booleans()),
        draw(st.integers(0, 50)),
        StepShape(decoding, decoding, 100 * decoding, 100 * decoding),
        prompts(*draw(st.lists(st.integers(1, 2000), max_size=5))),
        draw(st.sampled_from([model(), model(4.0), StepTimeModel(BASIS)])),
    )


@given(st.sampled_from(NAMES), st.lists(standing(), min_size=1, max_size=9), st.data())
def test_only_ready_replicas_are_chosen(name: str, replicas: list[Standing], data: st.DataObject) -> None:
    router = make_router(name)
    matched = data.draw(st.lists(st.integers(0, 99), min_size=len(replicas), max_size=len(replicas)))
    target = data.draw(st.none() | st.floats(0.01, 5))
    for _ in range(4):
        choice = router.choose(RoutedRequest(100, lambda: matched, target), replicas)
        if choice is None:
            assert not any(replica.ready for replica in replicas)
        else:
            assert replicas[choice.replica].ready


def test_the_least_predicted_time_wins() -> None:
    """Work counts instead of requests, the speed of each replica, and the prefix that it holds."""
    few_but_long = Standing(open=1, pending=prompts(4000))
    many_short = Standing(open=5, pending=prompts(50, 50, 50, 50, 50))
    assert chosen([few_but_long, many_short], request(matched=(0, 0))).replica == 1
    assert chosen([Standing(), Standing(step_time=model(4.0))], request(matched=(0, 0))).replica == 1
    assert chosen([Standing(), Standing(), Standing()], request(2000, (0, 0, 1500))).replica == 2
    busy_with_prefix = Standing(pending=prompts(4000))
    assert chosen([busy_with_prefix, Standing()], request(2000, (1500, 0))).replica == 1


def test_a_choice_says_what_was_predicted() -> None:
    choice = chosen([Standing(pending=prompts(1000)), Standing()], request(600, (0, 200)))
    assert choice.reason == "least predicted TTFT"
    assert choice.cached == 200
    assert choice.prediction == predict(Standing().ahead(), 600, 200)
    assert choice.prediction is not None
    assert choice.prediction.queue_s == 0


def test_a_replica_without_a_model_is_assumed_to_be_like_another() -> None:
    unknown = Standing(step_time=StepTimeModel(BASIS))
    assert chosen([Standing(pending=prompts(300)), unknown], request(matched=(0, 0))) == Choice(
        1, "least predicted TTFT", 0, None
    )
    assert (
        chosen([Standing(), Standing(step_time=StepTimeModel(BASIS), open=1, pending=prompts(9))], request()).replica
        == 0
    )
    nothing_known = [Standing(step_time=StepTimeModel(BASIS), pending=prompts(rows)) for rows in (90, 10, 50)]
    assert chosen(nothing_known, request()).replica == 1


def test_a_target_of_tpot_excludes_replicas_that_miss_it() -> None:
    slow_steps = Standing(decode=StepShape(30, 30, 90_000, 90_000))
    waits = Standing(pending=prompts(900))
    replicas = [slow_steps, waits]
    found = [predict(replica.ahead(), 100, 0) for replica in replicas]
    assert found[0].ttft_s < found[1].ttft_s
    assert found[0].tpot_s > found[1].tpot_s
    assert chosen(replicas, request()).replica == 0
    within = chosen(replicas, request(tpot_target_s=found[1].tpot_s))
    assert (within.replica, within.reason) == (1, "least predicted TTFT within the TPOT target")
    missed = chosen(replicas, request(tpot_target_s=1e-6))
    assert (missed.replica, missed.reason) == (0, "least predicted TTFT; none meets the TPOT target")


@pytest.mark.parametrize("kind", [FastReplica, ExactReplica])
def test_predictions_are_what_replicas_then_take(kind: type[FastReplica] | type[ExactReplica]) -> None:
    """Prompts in a queue beside sequences that decode; the model was learned from steps of the same function."""
    setting = setting_with(sequences=64, rows=256, context=4000)
    learned = learned_step_time(setting, linear)
    replica = FastReplica(setting, linear, step_time=learned) if kind is FastReplica else ExactReplica(setting, linear)
    for number in range(8):
        replica.submit(SimulatedJob(number, 0.0, 40, 500, stream=number), 0.0)
    replica.advance(0.2)
    for number in range(8, 12):
        replica.submit(SimulatedJob(number, 0.2, 700, 10, stream=number), 0.2)
    found = predict(replica.ahead(0.2)._replace(step_time=learned), 800, 0)
    replica.submit(SimulatedJob(12, 0.2, 800, 500, stream=12), 0.2)
    replica.advance(9.0)
    (job,) = [done for done in replica.done if done.job.number == 12]
    assert job.first_s is not None
    assert job.last_s is not None
    assert found.ttft_s == pytest.approx(job.first_s - 0.2, rel=0.1), "within two steps"
    assert found.tpot_s == pytest.approx((job.last_s - job.first_s) / 499, rel=0.3)


def test_a_fetch_is_chosen_if_it_is_sooner_than_computing() -> None:
    def choose(seconds: float) -> Choice:
        fetch = BlockFetch(1, 30, 16, 30, 30 * 4096, seconds)
        asked = RoutedRequest(500, lambda: (0,), None, lambda _, cached: None if any(cached) else fetch)
        return chosen([Standing()], asked)

    assert (choose(100.0).fetch, choose(100.0).cached) == (None, 0)
    quick = choose(0.001)
    assert quick.fetch is not None
    assert quick.cached == quick.fetch.tokens == 480
    assert quick.prediction is not None
    assert quick.prediction.ttft_s == pytest.approx(predict(Standing().ahead(), 500, 480).ttft_s + 0.001)
