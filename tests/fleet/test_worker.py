"""The service of a worker process, over a mock model: which messages it sends, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.conftest import MakeLoaded, make_loaded, tokenizer
from tests.engine.mock import MockForward
from tests.fleet.conftest import LONG, SHORT, job_of, named
from twofold.core.errors import ParameterError, WorkerError
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.request import EngineRequest, PoolingParams
from twofold.engine.engine import Engine
from twofold.fleet.messages import (
    Abort,
    Failed,
    FromWorker,
    Gone,
    Ping,
    Pong,
    Ready,
    SetPaused,
    StepOutputs,
)
from twofold.fleet.service import Service, facts

__all__ = ["make_loaded", "tokenizer"]

FORM = SamplingParams(max_tokens=8, structured_outputs=StructuredOutputsParams(choice=["the hat", "it"]))


class Opened:
    """A service whose messages are kept."""

    def __init__(self, make_loaded: MakeLoaded, **options: Any) -> None:
        self.said: list[FromWorker] = []
        loaded = make_loaded(context=512, **options)
        self.service = Service(loaded)
        self.service.test()
        self.hub = self.service.open(self.said.append)
        self.service.begin(self.hub, Ready(512, 0, None, "f16", facts(loaded)))

    def generate(self, request_id: str, params: SamplingParams = SHORT) -> None:
        request = named(job_of(len(request_id), params), request_id)
        self.hub.handle(replace(request, arrival=time.perf_counter()))

    def until(self, kind: type[FromWorker], count: int = 1) -> list[Any]:
        """Messages of a kind, once there are so many."""
        until = time.perf_counter() + 60
        while len(found := [said for said in self.said if isinstance(said, kind)]) < count:
            assert time.perf_counter() < until, f"{self.said!r:.500}"
            time.sleep(0.001)
        return found

    def ended(self, request_id: str) -> None:
        until = time.perf_counter() + 60
        while not any(
            delta.request_id == request_id and delta.request
            for step in self.until(StepOutputs)
            for delta in step.deltas
        ):
            assert time.perf_counter() < until
            time.sleep(0.001)


def _check_idle(engine: Engine) -> None:
    engine.check_idle()
    assert not engine.has_work


@pytest.fixture
def opened(make_loaded: MakeLoaded) -> Iterator[Opened]:
    """One that holds nothing at its end."""
    opened = Opened(make_loaded)
    yield opened
    opened.service._thread.call(_check_idle).result()


def test_a_step_is_one_message_with_the_deltas_of_all(opened: Opened) -> None:
    for number in range(8):
        opened.generate(f"request-{number}", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    for number in range(8):
        opened.ended(f"request-{number}")
    steps = opened.until(StepOutputs)
    reports = [report for step in steps for report in step.reports]
    assert len(steps) <= len(reports) + 2
    assert max(len(step.deltas) for step in steps) == 8
    assert [report.number for report in reports] == list(range(1, len(reports) + 1))


def test_outputs_are_sent_without_their_prompt(opened: Opened) -> None:
    opened.generate("one")
    opened.ended("one")
    output = opened.until(StepOutputs)[-1].deltas[-1].request
    assert (output.prompt_token_ids, output.metrics.prompt_tokens) == ((), len(job_of(3).token_ids))


def test_snapshots_are_sent_at_intervals_and_at_the_end(opened: Opened) -> None:
    began = time.perf_counter()
    opened.generate("one", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    opened.ended("one")
    steps = opened.until(StepOutputs)
    snapshots = [step.snapshot for step in steps if step.snapshot is not None]
    assert len(snapshots) <= 3 + 4 * (time.perf_counter() - began)
    assert (snapshots[-1].running, snapshots[-1].waiting, snapshots[-1].blocks.held) == (0, 0, 0)
    assert snapshots[-1].queries >= len(job_of(3).token_ids)


def test_an_abort_frees_all_and_says_so(opened: Opened) -> None:
    opened.generate("one", LONG)
    opened.until(StepOutputs)
    opened.hub.handle(Abort("one"))
    opened.hub.handle(Abort("never seen"))
    assert [gone.request_id for gone in opened.until(Gone, 2)] == ["one", "never seen"]


def test_requests_aborted_while_a_grammar_compiles_send_nothing_more(opened: Opened) -> None:
    for number in range(20):
        opened.generate(f"form-{number}", FORM)
        opened.hub.handle(Abort(f"form-{number}"))
    opened.generate("last", FORM)
    opened.ended("last")
    opened.until(Gone, 20)
    assert not [said for said in opened.said if isinstance(said, Failed)]


def test_a_paused_request_resumes_where_it_was(opened: Opened) -> None:
    opened.generate("one", SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    opened.hub.handle(SetPaused("one", True))
    opened.hub.handle(Ping())
    pong = opened.until(Pong)[0]
    assert pong.snapshot.running == 0
    opened.hub.handle(SetPaused("one", False))
    opened.ended("one")


def test_an_impossible_request_fails_with_its_own_error(opened: Opened) -> None:
    opened.generate("form", SamplingParams(structured_outputs=StructuredOutputsParams(regex="((")))
    opened.hub.handle(EngineRequest((4000,), PoolingParams(), request_id="text"))
    failed = {said.request_id: said.error for said in opened.until(Failed, 2)}
    assert {name: type(error) for name, error in failed.items()} == {"form": ParameterError, "text": ParameterError}


def test_a_failing_step_tells_its_kind_and_nothing_of_its_text(
    make_loaded: MakeLoaded, capfd: pytest.CaptureFixture[str]
) -> None:
    forward = MockForward(vocab=300, blocks=128, block_size=4)
    opened = Opened(make_loaded, forward=forward)
    forward.failing = True
    opened.generate("one")
    (failed,) = opened.until(Failed)
    assert isinstance(failed.error, WorkerError)
    assert str(failed.error) == "The engine failed with a RuntimeError."
    said = capfd.readouterr().err
    assert "RuntimeError" in said
    assert "RuntimeError: " not in said, "the place is told, the message is not"
    forward.failing = False
    opened.generate("three")
    opened.ended("three")


def test_a_model_that_fails_its_self_test_is_not_ready(make_loaded: MakeLoaded) -> None:
    forward = MockForward(vocab=300, blocks=128, block_size=4)
    forward.failing = True
    with pytest.raises(WorkerError, match="RuntimeError"):
        Opened(make_loaded, forward=forward)
