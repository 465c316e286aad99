"""The driver of requests, on an engine that gives every open request a token a step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

import pytest

from benchmarks.traffic import Traffic, drive, interfere
from twofold import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine, Outlet
from twofold.engine.outputs import OutputDelta, RequestOutput

STEP_S = 0.002
CACHED = 3


class FakeEngine:
    """A prompt of n tokens takes n // 10 steps before its first token. ``open`` maps ids to [to compute, to give]."""

    def __init__(self) -> None:
        self.open: dict[str, list[int]] = {}
        self.aborted: list[str] = []
        self._count = 0
        self._outlet: Outlet | None = None

    def deliver_to(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def add(self, request: EngineRequest) -> str:
        assert isinstance(request.params, SamplingParams)
        self._count += 1
        self.open[f"r{self._count}"] = [len(request.token_ids) // 10, request.params.max_tokens or 0]
        return f"r{self._count}"

    def step(self) -> list[OutputDelta]:
        time.sleep(STEP_S)
        deltas = []
        for request_id, left in list(self.open.items()):
            if left[0]:
                left[0] -= 1
                continue
            left[1] -= 1
            if not left[1]:
                del self.open[request_id]
            deltas.append(
                OutputDelta(request_id, 0, "", (7,), request=None if left[1] else cast(RequestOutput, Whole()))
            )
        assert self._outlet is not None
        self._outlet(deltas)
        return []

    def abort(self, request_id: str) -> None:
        del self.open[request_id]
        self.aborted.append(request_id)


@dataclass(frozen=True, slots=True)
class Metrics:
    cached_tokens: int = CACHED


@dataclass(frozen=True, slots=True)
class Whole:
    """As much of a RequestOutput as traffic looks at."""

    metrics: Metrics = Metrics()


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def engine(fake: FakeEngine) -> Engine:
    return cast(Engine, fake)


def test_traffic_keeps_every_token_and_its_time(engine: Engine) -> None:
    traffic = Traffic(engine)
    streams = [traffic.add([1] * length, 3) for length in (5, 10)]
    traffic.finish()
    assert not traffic.has_work
    assert all(stream.finished and stream.tokens == [7, 7, 7] and stream.cached == CACHED for stream in streams)
    assert streams[1].times[0] - streams[0].times[0] >= STEP_S


def test_drive_counts_ttft_from_when_a_request_was_due(engine: Engine) -> None:
    arrivals: list[dict[str, Any]] = [{"at": at, "prompt": [1] * 20, "count": 2} for at in (0.0, 0.03, 0.031)]
    served = drive(engine, arrivals)
    for arrival, one in zip(arrivals, served, strict=True):
        assert one["times"][0] == pytest.approx(arrival["at"] + one["ttft"], abs=1e-6)
        assert one["ttft"] >= 3 * STEP_S
        assert one["tokens"] == [7, 7]


def test_interference_is_told_apart_from_what_came_before(fake: FakeEngine, engine: Engine) -> None:
    found = interfere(engine, [[1] * 5, [1] * 15], [1] * 50, 4)
    assert not fake.open
    assert fake.aborted == ["r1", "r2"]
    assert len(found["during"]) == 2 * 6, "five steps of the late prompt and one for its token"
    assert len(found["before"]) == 4 + 4, "only gaps while both generated"
    assert found["ttft"] >= 6 * STEP_S
