"""A study: its runs and its document, also after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script
from twofold.bench.client.loop import ClientOptions, Watcher
from twofold.bench.client.target import ServerTarget
from twofold.bench.endpoints.endpoint import EndpointOptions
from twofold.bench.load.lengths import Fixed
from twofold.bench.load.synthetic import LoadPlan
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.record import RequestSample
from twofold.bench.report.document import read
from twofold.bench.report.live import Goal
from twofold.bench.search import SearchOptions
from twofold.bench.study import Session, Setup, Study, connect
from twofold.core.errors import ParameterError

PLAN = LoadPlan(input_tokens=Fixed(24), output_tokens=Fixed(4))


@pytest.fixture
def study(stub: LiveStub) -> Iterator[Study]:
    options = EndpointOptions(model="", api_key="sk-canary", extra=Script(first_s=0.01, gap_s=0.001).fields)
    setup = Setup(ServerTarget.of(stub.url), "chat", None, options, ClientOptions())
    with connect(setup) as session:
        yield Study(setup, session, MeasurementRule(), Objectives(ttft=1.0))


def test_rates_and_clients_are_swept_in_turn(study: Study) -> None:
    study.sweep_rates(LoadPlan(duration_s=0.2, output_tokens=Fixed(2), input_tokens=Fixed(24)), [50.0, 100.0])
    study.sweep_concurrencies(LoadPlan(requests=4, output_tokens=Fixed(2), input_tokens=Fixed(24)), [1, 2])
    loads = [run.load for run in study.runs]
    assert [load["arrivals"]["rate"] for load in loads[:2]] == [50.0, 100.0]
    assert [load["concurrency"] for load in loads[2:]] == [1, 2]
    assert not study.interrupted


def test_a_document_can_be_read_and_has_no_key(study: Study) -> None:
    study.measure_plan(LoadPlan(concurrency=2, requests=4, input_tokens=Fixed(24), output_tokens=Fixed(4)))
    document = study.document("serve", {"rate": None}, "1.2.3")
    text = document.to_json()
    assert b"canary" not in text
    again = read(text)
    assert again.version == "1.2.3"
    assert again.target.model == "stub"
    assert [request.output_tokens for request in again.runs[0].requests] == [4] * 4
    assert again.runs[0].summary["goodput"]["met"] == 4


def test_the_last_run_is_written_as_a_trace(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    study.write_trace(path)
    assert not path.exists()
    study.measure_plan(LoadPlan(concurrency=1, requests=3, input_tokens=Fixed(24), output_tokens=Fixed(4)))
    study.write_trace(path)
    assert len(path.read_text().splitlines()) == 3


def test_a_search_begins_where_one_by_one_is_easy(study: Study) -> None:
    """Requests of 13 ms one after another are some 75 a second."""
    assert 15 < study.rate_one_by_one(PLAN) < 60
    assert study.runs == []


def test_a_search_needs_objectives(study: Study) -> None:
    study.objectives = None
    with pytest.raises(ParameterError) as raised:
        study.search_rate(PLAN, 0.9, SearchOptions())
    assert raised.value.param == "slo"


class Stopper:
    """Stops the client of the session after the first completion."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def update(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        del now_s, open_requests
        if any(sample.outcome == "ok" for sample in samples):
            self._session._client.stop()


def test_a_stopped_sweep_keeps_its_runs(study: Study) -> None:
    @contextmanager
    def show(_goal: Goal) -> Iterator[Watcher]:
        yield Stopper(study.session)

    study.show = show
    study.sweep_rates(LoadPlan(duration_s=20.0, input_tokens=Fixed(24), output_tokens=Fixed(2)), [50.0, 100.0])
    assert study.interrupted
    assert len(study.runs) == 1
    assert study.runs[0].interrupted
    document = study.document("serve", {}, "1")
    assert document.runs[0].requests
    assert document.sweep is not None
    assert (len(document.sweep["points"]), document.sweep["interrupted"]) == (1, True)
