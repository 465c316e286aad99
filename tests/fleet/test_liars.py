"""A node that sends what cannot be true is dropped, and no client notices: its requests go on elsewhere."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.fleet.conftest import ENGINE, LONG, job_of, until, whole
from tests.fleet.liar import Liar, hub
from tests.fleet.test_messages import SNAPSHOT, STEP
from twofold.core.errors import ParameterError, WorkerError
from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.params import BeamSearchParams, SamplingParams
from twofold.core.report import RequestMetrics
from twofold.core.request import EngineRequest, PoolingParams
from twofold.core.timeline import TokensMade
from twofold.engine.llm import LLM
from twofold.engine.outputs import CompletionOutput, Logprob, OutputDelta, RequestOutput
from twofold.engine.scheduler.forecast import EngineWork
from twofold.engine.scheduler.step_time import StepShape
from twofold.fleet.checks import OutputBounds, OutputCheck, PeerError, check_lanes, check_numbers
from twofold.fleet.dispatch import Dispatch
from twofold.fleet.fleet import Fleet
from twofold.fleet.messages import Ping, Pong, StepOutputs, WorkReport
from twofold.fleet.reading import ModelReading
from twofold.fleet.relay import LinkRates
from twofold.fleet.replica import IDLE
from twofold.fleet.routing.router import RoundRobin
from twofold.fleet.streams import RequestStream

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
REQUESTS = 8
LIE_AT = 3


def step(*deltas: OutputDelta, **more: Any) -> StepOutputs:
    return StepOutputs(list(deltas), [], None, **more)


LIES: dict[str, Any] = {
    "an index that no completion has": lambda r: step(OutputDelta(r, 99, "x", (5,))),
    "a negative index": lambda r: step(OutputDelta(r, -1, "x", (5,))),
    "a token outside of the vocabulary": lambda r: step(OutputDelta(r, 0, "x", (10**9, 5))),
    "a negative token": lambda r: step(OutputDelta(r, 0, "x", (-1,))),
    "a long text": lambda r: step(OutputDelta(r, 0, "x" * 3_000_000, (5,))),
    "more tokens than allowed": lambda r: step(OutputDelta(r, 0, "x", (5,) * 25)),
    "all tokens and no end": lambda r: step(OutputDelta(r, 0, "x", (5,) * 24)),
    "an end and no output": lambda r: step(OutputDelta(r, 0, "x", (5,), finish_reason="stop")),
    "log-probabilities that nobody asked for": lambda r: step(OutputDelta(r, 0, "x", (5,), ({5: Logprob(0, 1, "")},))),
    "an output without completions": lambda r: step(OutputDelta(r, 0, "", (), request=an_output(outputs=()))),
    "work that is no number": lambda _: step(work=WorkReport(0, EngineWork(StepShape(-5, 0, 0, 0)))),
    "a count that is too large": lambda _: step(work=WorkReport(1 << 62, EngineWork())),
    "a time that is no number": lambda _: StepOutputs([], [replace(STEP, seconds=math.nan)], None),
    "weights of another model": lambda _: Pong(replace(SNAPSHOT, step_weights=(1.0, 2.0))),
    "garbage": lambda _: b"\x01\x00\x00\x00\xc1",
}


def test_a_lie_about_one_request_costs_no_request(reading: ModelReading, caplog: pytest.LogCaptureFixture) -> None:
    """The node gives the others a right token, if that is a character, so they have to continue after it."""
    prompts: Any = [{"prompt_token_ids": list(job_of(n).token_ids)} for n in range(REQUESTS)]
    with LLM(reading.path, **ENGINE) as llm:
        alone = [each.outputs for each in llm.generate(prompts, PARAMS)]
    right = {job_of(n).token_ids: alone[n][0] for n in range(REQUESTS)}

    async def tell(model: Fleet, port: int, lie: str) -> None:
        def answer(message: Any) -> Iterator[Any]:
            if isinstance(message, EngineRequest):
                made = right[message.token_ids]
                if len(liar.asked) == LIE_AT:
                    yield LIES[lie](message.request_id)
                elif made.text[0].isascii():
                    yield step(OutputDelta(message.request_id, 0, made.text[0], made.token_ids[:1]))
            elif isinstance(message, Ping):
                yield Pong(None)

        liar, sent = Liar(reading, answer), len(caplog.records)
        async with liar.joined(port, model.ready):
            await until(lambda: sum(each.usable for each in model.replicas.values()) == 2)
            running = [asyncio.create_task(whole(model, job_of(n, PARAMS), f"r{n}")) for n in range(REQUESTS)]
            outputs = await asyncio.wait_for(asyncio.gather(*running), 60)
            await until(lambda: len(model.replicas) == 1)
        model.requests.check_idle()
        assert len(liar.asked) >= LIE_AT, "the node got too few requests to lie about one"
        assert [output.outputs for output in outputs] == alone, lie
        said = [record.getMessage() for record in caplog.records[sent:]]
        assert any("node liar sent an invalid message, so its connection ends" in each for each in said), lie

    async def serve() -> None:
        async with hub(reading) as (model, port):
            for lie in LIES:
                await tell(model, port, lie)

    with caplog.at_level(logging.WARNING):
        asyncio.run(serve())


def an_output(**more: Any) -> RequestOutput:
    """A right output of two tokens for a prompt of three."""
    metrics = RequestMetrics(0.0, 0.5, 1.0, 2.0, ((1.0, 2.0),), 3, finish_reasons=("length",))
    values: dict[str, Any] = {"outputs": (a_completion(),), "metrics": metrics} | more
    return RequestOutput("r", None, (), None, values.pop("outputs"), values.pop("metrics"), True, **values)


def a_completion(**more: Any) -> CompletionOutput:
    return replace(CompletionOutput(0, "ab", (5, 6), None, None, "length", None), **more)


BOUNDS = OutputBounds(vocabulary=100, context=64, token_chars=8, hidden=4)
TIMED = replace(an_output().metrics, token_times=((1.0,),))


@pytest.mark.parametrize(
    "output",
    [
        an_output(outputs=()),
        an_output(outputs=(a_completion(index=1),)),
        an_output(outputs=(a_completion(token_ids=(5, 100)),)),
        an_output(outputs=(a_completion(token_ids=(5,)),)),
        an_output(outputs=(a_completion(token_ids=(5,) * 90),)),
        an_output(outputs=(a_completion(text="x" * 4000),)),
        an_output(outputs=(a_completion(logprobs=({}, {})),)),
        an_output(metrics=TIMED),
        an_output(metrics=replace(an_output().metrics, token_times=())),
        an_output(metrics=replace(an_output().metrics, prompt_tokens=4)),
        an_output(metrics=replace(an_output().metrics, cached_tokens=4)),
        an_output(metrics=replace(an_output().metrics, finish_reasons=("stop",) * 9)),
        an_output(embedding=(0.0,) * 5),
    ],
)
def test_an_output_that_does_not_fit_its_request_is_refused(output: RequestOutput) -> None:
    request = EngineRequest((1, 2, 3), SamplingParams(max_tokens=2), request_id="r")
    OutputCheck(request).check_output(an_output(), (), BOUNDS)
    with pytest.raises(PeerError):
        OutputCheck(request).check_output(output, (), BOUNDS)


LOGPROB = Logprob(-1.0, 1, "x")


@pytest.mark.parametrize(
    "logprobs", [(), ({6: LOGPROB},), ({5: LOGPROB, 6: LOGPROB, 7: LOGPROB},), ({5: Logprob(-1.0, 1, "x" * 9)},), None]
)
def test_log_probabilities_that_do_not_fit_are_refused(logprobs: Any) -> None:
    request = EngineRequest((1,), SamplingParams(logprobs=1), request_id="r")
    OutputCheck(request).check(OutputDelta("r", 0, "x", (5,), ({5: LOGPROB, 7: LOGPROB},)), (), BOUNDS)
    with pytest.raises(PeerError):
        OutputCheck(request).check(OutputDelta("r", 0, "x", (5,), logprobs), (), BOUNDS)


@pytest.mark.parametrize(
    ("params", "delta"),
    [
        (PoolingParams(), OutputDelta("r", 1, "", ())),
        (PoolingParams(), OutputDelta("r", 0, "", (5,))),
        (BeamSearchParams(beam_width=2, max_tokens=3), OutputDelta("r", 2, "", (5,))),
        (BeamSearchParams(beam_width=2, max_tokens=3), OutputDelta("r", 0, "", (5,) * 4)),
        (SamplingParams(n=2, best_of=4), OutputDelta("r", 2, "", (5,))),
        (SamplingParams(max_tokens=9), OutputDelta("r", 0, "", (5,), made=TokensMade(1.0, 1, "dd"))),
    ],
)
def test_deltas_of_every_kind_of_request_are_checked(params: Any, delta: OutputDelta) -> None:
    with pytest.raises(PeerError):
        OutputCheck(EngineRequest((1,), params, request_id="r")).check(delta, (), BOUNDS)


def test_a_completion_does_not_go_on_after_its_end() -> None:
    check = OutputCheck(EngineRequest((1,), SamplingParams(n=2, max_tokens=9), request_id="r"))
    check.check(OutputDelta("r", 0, "x", (5,), finish_reason="stop"), (), BOUNDS)
    with pytest.raises(PeerError, match="after its end"):
        check.check(OutputDelta("r", 0, "x", (5,)), (), BOUNDS)


@pytest.mark.parametrize("value", [-1, 1 << 53, math.nan, math.inf, -0.5])
def test_numbers_are_checked_wherever_they_are(value: float) -> None:
    deep = {"a": [(StepShape(), {"b": (value,)})]}
    with pytest.raises(PeerError):
        check_numbers(deep)
    check_numbers({"a": [(StepShape(), {"b": (7, 0.5, True, None, "x", b"y")})]})
    check_numbers(Logprob(-math.inf, 1, ""))


def test_a_request_that_fails_in_the_hub_ends_alone(reading: ModelReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a request meets when its replica is lost, the others of that replica go on."""
    rest = RequestStream.next_try

    def fails(stream: RequestStream, lease: str) -> EngineRequest:
        if stream.request.request_id == "r0" and stream.began:
            raise IndexError("it is lost")
        return rest(stream, lease)

    monkeypatch.setattr(RequestStream, "next_try", fails)

    async def serve() -> list[Any]:
        async with hub(reading, replicas=2) as (model, _):
            running = [asyncio.create_task(whole(model, job_of(n, LONG), f"r{n}")) for n in range(4)]
            await until(lambda: model.under_way == 4 and all(each.began for each in model.requests.streams.values()))
            for replica in list(model.replicas.values()):
                model.requests.lose(replica, "silent")
            model.requests.assign()
            outputs = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 60)
            model.requests.check_idle()
            return outputs

    first, *others = asyncio.run(serve())
    assert isinstance(first, WorkerError)
    assert "IndexError" in str(first)
    assert all(isinstance(each, RequestOutput) for each in others)


def test_a_replica_whose_owner_fails_is_ended(reading: ModelReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the task of a replica is logged, and does not leave its requests with nobody."""
    lose = Dispatch.lose
    failed: list[object] = []

    def fails(self: Any, replica: Any, cause: Any, error: Any = None) -> None:
        if not failed:
            failed.append(replica)
            raise IndexError("it is lost")
        lose(self, replica, cause, error)

    async def serve() -> RequestOutput:
        async with hub(reading) as (model, port):
            liar = Liar(reading)
            async with liar.joined(port, model.ready):
                await until(lambda: sum(each.usable for each in model.replicas.values()) == 2)
                running = [asyncio.create_task(whole(model, job_of(n, PARAMS), f"r{n}")) for n in range(4)]
                await until(lambda: liar.asked)
                monkeypatch.setattr(Dispatch, "lose", fails)
                liar.say(b"\x01\x00\x00\x00\xc1")
                await until(lambda: len(model.replicas) == 1)
                return (await asyncio.wait_for(asyncio.gather(*running), 60))[0]

    assert asyncio.run(serve()).finished
    assert failed


class Standing:
    """A replica that takes everything, and keeps what it is sent."""

    role, usable, waiting, requests = "both", True, 0, 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[Any] = []

    def takes(self, _: str) -> bool:
        return True

    def ahead(self, _: float) -> Any:
        return IDLE

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def open_request(self, *_: object) -> None:
        self.requests += 1

    def close_request(self, *_: object) -> None:
        self.requests -= 1

    def clear(self) -> None:
        self.requests = 0


def test_a_request_that_was_taken_once_is_not_its_callers_fault() -> None:
    """A replica that refuses to continue a request, as if its parameters were wrong, is to blame itself."""
    replicas: dict[int, Any] = {number: Standing(number) for number in range(2)}
    refused = ParameterError("No.", param="delivered")

    async def serve(*, begun: bool) -> None:
        requests = Dispatch(replicas, RoundRobin(), lambda: 0.0)
        stream = requests.open(EngineRequest((1,), PARAMS, request_id="r", arrival=0.0))
        ((lease, (_, number)),) = requests.leases.leased.items()
        if begun:
            requests.hear(replicas[number], OutputDelta(lease, 0, "x", (5,)), 0.0)
            await stream.take()
            requests.lose(replicas[number], "silent")
            requests.assign()
            ((lease, (_, number)),) = requests.leases.leased.items()
        requests.hear_failure(replicas[number], lease, refused)
        with pytest.raises(WorkerError if begun else ParameterError):
            await stream.take()

    asyncio.run(serve(begun=False))
    asyncio.run(serve(begun=True))


def test_a_refused_delta_does_not_count() -> None:
    check = OutputCheck(EngineRequest((1,), SamplingParams(max_tokens=2), request_id="r"))
    for wrong in (OutputDelta("r", 0, "x" * 9000, (5,)), OutputDelta("r", 0, "", (5, 6))):
        with pytest.raises(PeerError):
            check.check(wrong, (), BOUNDS)
    check.check(OutputDelta("r", 0, "x", (5,)), (), BOUNDS)


@pytest.mark.parametrize("kind", LaneKind)
def test_events_of_lanes_have_the_values_of_their_kind(kind: LaneKind) -> None:
    """Live views take them apart by their kind."""
    fitting = [LaneEvent(1, kind, 0.0, (0,) * count) for count in range(5)]
    taken = []
    for event in fitting:
        with suppress(PeerError):
            check_lanes([event])
            taken.append(event)
    assert len(taken) == 1


def test_a_fetch_without_bytes_leaves_transfers_predictable() -> None:
    """The rate of a pair of replicas is used for every request that could fetch."""
    rates = LinkRates()
    rates.learn(0, 1, 0, 5.0)
    assert 0 < rates.seconds(0, 1, 1 << 20) < math.inf
