"""What the hub makes of the work that a replica reported, and of what was sent to it since."""

from __future__ import annotations

import pytest

from tests.fleet.routing.replicas import model
from tests.support.basis import BASIS
from twofold.engine.scheduler.forecast import EngineWork, predict
from twofold.engine.scheduler.step_time import StepShape
from twofold.fleet.routing.load import BESIDE, STEPS, ReplicaLoad, SentPrompt

ROWS = 64


def load(slots: int = 8) -> ReplicaLoad:
    made = ReplicaLoad(slots, ROWS, BASIS)
    made.learn(model().weights)
    return made


def prompts(*tokens: int) -> StepShape:
    shape = StepShape()
    for each in tokens:
        shape = shape.plus(0, each, 1)
    return shape


def test_requests_count_until_the_replica_has_received_them() -> None:
    replica = load()
    replica.send(SentPrompt(100, 20), 1.0)
    replica.send(SentPrompt(50, 0), 1.0)
    replica.report(1, EngineWork(pending=prompts(80), chunk=ROWS, running=1), 2.0)
    work = replica.ahead(2.0)
    step = 64  # of the 80 rows under way, the rest and the second request wait
    assert work.pending.rows == 80 - step + 50
    replica.report(2, EngineWork(chunk=ROWS), 3.0)
    assert replica.ahead(3.0).pending.rows == 0


def test_the_step_under_way_ends_when_it_is_predicted_to() -> None:
    replica = load()
    decode = StepShape(4, 4, 400, 400)
    replica.report(0, EngineWork(decode, prompts(40), 60, 5), 10.0)
    whole = model().predict(StepShape(*(one + other for one, other in zip(decode, prompts(40), strict=True))))
    assert whole is not None
    assert replica.ahead(10.0).busy_s == pytest.approx(whole)
    assert replica.ahead(10.0 + whole / 4).busy_s == pytest.approx(whole * 3 / 4)
    assert replica.ahead(20.0).busy_s == 0.0
    assert replica.ahead(10.0).pending.rows == 0


def test_an_idle_replica_begins_when_a_request_arrives() -> None:
    replica = load()
    replica.report(0, EngineWork(chunk=ROWS), 0.0)
    assert replica.ahead(5.0).busy_s == 0.0
    alone = predict(replica.ahead(5.0), 48, 0).ttft_s
    replica.send(SentPrompt(48, 0), 5.0)
    assert replica.ahead(5.0).busy_s == pytest.approx(alone, rel=0.02)
    assert replica.ahead(5.0 + alone / 2).busy_s == pytest.approx(alone / 2, rel=0.02)


def test_a_replica_takes_two_steps_of_prompts() -> None:
    replica, sent = load(slots=100), 0
    while replica.takes(""):
        replica.send(SentPrompt(30, 10), 0.0)
        sent += 20
    assert STEPS * ROWS <= sent < STEPS * ROWS + 20
    busy = load(slots=100)
    busy.report(0, EngineWork(StepShape(8, 8, 800, 800), prompts(20), 16, 9), 0.0)
    assert busy.takes("")
    busy.send(SentPrompt(12, 0), 0.0)
    assert not busy.takes("")


def test_a_replica_takes_as_many_sequences_as_have_slots_soon() -> None:
    replica, sent = load(slots=4), 0
    while replica.takes(""):
        replica.send(SentPrompt(2, 0, completions=2), 0.0)
        sent += 2
    assert sent == 4 + BESIDE
    short_of_blocks = load(slots=64)
    short_of_blocks.report(0, EngineWork(StepShape(8, 8, 8, 8), StepShape(), ROWS, 8, queued=BESIDE), 0.0)
    assert not short_of_blocks.takes("")


def test_a_full_replica_takes_a_tenant_that_has_fewer_requests_there() -> None:
    """So that its engine shares slots evenly, as it does with requests that wait in its own queue."""
    replica = load(slots=4)
    replica.tenants["busy"] = 4
    replica.report(0, EngineWork(StepShape(4, 4, 400, 400), StepShape(), ROWS, 4, queued=BESIDE), 0.0)
    assert not replica.takes("busy")
    assert replica.takes("late")
    replica.tenants["late"] = 3
    assert not replica.takes("late")
