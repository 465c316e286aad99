"""A model in a worker process gives the same outputs as in this one, to concurrent requests and after aborts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fleet.conftest import (
    ENGINE,
    LONG,
    SHORT,
    Listener,
    job_of,
    named,
    started,
    taken,
    until,
    until_idle,
    whole,
)
from twofold.core.errors import BusyError, ContextLengthError, ParameterError, SlowClientError
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions
from twofold.engine import stream as water
from twofold.engine.llm import LLM
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.fleet import streams
from twofold.fleet.fleet import Fleet
from twofold.fleet.reading import ModelReading
from twofold.fleet.streams import RequestRoute

KINDS = (
    SHORT,
    SamplingParams(temperature=0, max_tokens=40, logprobs=2, prompt_logprobs=1),
    SamplingParams(seed=5, n=3, max_tokens=20, logit_bias={40: 2.0}),
    SamplingParams(seed=7, best_of=3, max_tokens=12, stop=["a", "th"]),
    SamplingParams(seed=9, max_tokens=30, structured_outputs=StructuredOutputsParams(choice=["the hat", "it"])),
)


async def slowly(stream: AsyncIterator[OutputDelta]) -> None:
    async for _ in stream:
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def llm(reading: ModelReading) -> Iterator[LLM]:
    with LLM(reading.path, **ENGINE) as llm:
        yield llm


def test_concurrent_requests_get_the_same_completions_as_single_ones(
    runner: asyncio.Runner, worker: Fleet, llm: LLM
) -> None:
    jobs = [job_of(number, KINDS[number % len(KINDS)]) for number in range(30)]

    async def crowd() -> list[RequestOutput]:
        return await asyncio.gather(*(whole(worker, job, f"crowd-{n}") for n, job in enumerate(jobs)))

    for job, output in zip(jobs, runner.run(crowd()), strict=True):
        assert isinstance(job.params, SamplingParams)
        (alone,) = llm.generate([{"prompt_token_ids": list(job.token_ids)}], job.params)
        assert output.outputs == alone.outputs
        assert output.prompt_logprobs == alone.prompt_logprobs
        assert output.prompt_token_ids == job.token_ids
        assert output.report.output_tokens == alone.report.output_tokens


def test_embeddings_equal_those_of_the_offline_api(runner: asyncio.Runner, worker: Fleet, llm: LLM) -> None:
    job = job_of(3, PoolingParams("last"))
    output = runner.run(whole(worker, job, "vector"))
    (alone,) = llm.embed([{"prompt_token_ids": list(job.token_ids)}], pooling="last")
    assert output.embedding == alone.embedding
    assert output.embedding is not None
    assert len(output.embedding) == worker.facts.hidden_size


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (EngineRequest((1,) * 512, SHORT), ContextLengthError),
        (EngineRequest((4000,), SHORT), ParameterError),
        (EngineRequest((1,) * 600, PoolingParams()), ContextLengthError),
        (job_of(1, SamplingParams(structured_outputs=StructuredOutputsParams(regex="(("))), ParameterError),
    ],
)
def test_an_impossible_job_fails_alone(
    runner: asyncio.Runner, worker: Fleet, job: EngineRequest, error: type[Exception]
) -> None:
    async def both() -> RequestOutput:
        other = asyncio.create_task(whole(worker, job_of(2), "possible"))
        with pytest.raises(error):
            await whole(worker, job, "impossible")
        return await other

    assert runner.run(both()).finished


def test_an_id_is_in_use_until_its_request_has_left_the_engine(runner: asyncio.Runner, worker: Fleet) -> None:
    async def refused() -> None:
        with pytest.raises(ParameterError, match="in use"):
            await anext(worker.run(named(job_of(2), "mine")))

    async def twice() -> RequestOutput:
        stream = worker.run(named(job_of(1, LONG), "mine"))
        await anext(stream)
        await refused()
        await stream.aclose()
        await refused()
        await until_idle(worker)
        return await whole(worker, job_of(2), "mine")

    assert runner.run(twice()).finished


def test_a_request_beyond_its_queue_limit_is_refused(runner: asyncio.Runner, worker: Fleet) -> None:
    async def crowded() -> None:
        running = [worker.run(named(job_of(n, LONG), f"running-{n}")) for n in range(4)]
        for stream in running:
            await anext(stream)
        options = RequestOptions(queue_limit_s=0.001)
        with pytest.raises(BusyError, match="waited"):
            await whole(worker, job_of(9, LONG, options), "impatient")
        for stream in running:
            await stream.aclose()

    runner.run(crowded())


def test_two_hundred_leave_at_any_time_and_nothing_stays(runner: asyncio.Runner, worker: Fleet) -> None:
    async def leave(number: int, after: float) -> None:
        params = KINDS[number % len(KINDS)] if number % 3 else LONG
        try:
            async with asyncio.timeout(after):
                await whole(worker, job_of(number, params), f"leaving-{number}")
        except TimeoutError:
            return

    async def crowd() -> None:
        rng = random.Random(4)
        await asyncio.gather(*(leave(number, rng.uniform(0, 0.4)) for number in range(200)))
        await until_idle(worker)

    runner.run(crowd())
    assert worker.under_way == 0
    assert worker.snapshot is not None
    assert (worker.snapshot.running, worker.snapshot.waiting, worker.snapshot.blocks.held) == (0, 0, 0)


def test_an_aborted_request_has_a_partial_output(runner: asyncio.Runner, worker: Fleet) -> None:
    async def leave() -> tuple[RequestRoute, RequestOutput | None]:
        stream = worker.run(named(job_of(1, LONG), "early"))
        await taken(stream, 5)
        await stream.aclose()
        return stream.route, await stream.partial_output(60.0)

    route, remains = runner.run(leave())
    assert remains is not None
    assert remains.prompt_token_ids == job_of(1).token_ids
    assert remains.report.finish_reasons == ("abort",)
    assert 5 <= remains.metrics.output_tokens < 400
    assert route.retries == 0


def test_requests_aborted_before_or_after_they_ran_have_an_output(runner: asyncio.Runner, worker: Fleet) -> None:
    async def leave() -> tuple[RequestOutput | None, RequestOutput | None]:
        late = worker.run(named(job_of(1), "late"))
        await anext(late)
        await whole(worker, job_of(2), "meanwhile")
        await asyncio.sleep(0.05)  # all of it has come, and waits to be read
        await late.aclose()
        never = worker.run(EngineRequest((4000,), SHORT, request_id="never"))
        with pytest.raises(ParameterError):
            await anext(never)
        return await late.partial_output(60.0), await never.partial_output(5.0)

    late, never = runner.run(leave())
    assert late is not None
    assert late.report.finish_reasons == ("length",)
    assert never is None


def test_a_slow_readers_request_is_paused_and_complete(
    runner: asyncio.Runner, worker: Fleet, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(water, "HIGH_WATER", 2000)
    monkeypatch.setattr(water, "LOW_WATER", 500)

    async def read() -> tuple[int, list[str]]:
        stream = worker.run(named(job_of(1, LONG), "slow"))
        texts = [delta.text for delta in await taken(stream, 1)]
        await whole(worker, job_of(2, LONG), "other")
        await asyncio.sleep(0.1)
        going_on = worker.under_way
        texts += [delta.text async for delta in stream]
        return going_on, texts

    going_on, texts = runner.run(read())
    assert going_on == 1
    ids = job_of(1).token_ids
    (alone,) = llm.generate([{"prompt_token_ids": list(ids or ())}], LONG)
    assert "".join(texts) == alone.outputs[0].text
    assert len(texts) > 100


def test_a_reader_with_too_many_unread_bytes_is_cut(
    runner: asyncio.Runner, worker: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(water, "HIGH_WATER", 1000)
    monkeypatch.setattr(streams, "MAX_UNREAD", 1000)

    async def read() -> None:
        stream = worker.run(named(job_of(1, LONG), "slowest"))
        with pytest.raises(SlowClientError):
            await slowly(stream)

    runner.run(read())


def test_observers_get_every_step_and_snapshots(reading: ModelReading) -> None:
    listener = Listener()

    async def serve() -> None:
        async with started(reading, listener) as model:
            await whole(model, job_of(1, LONG), "one")
            await until(lambda: listener.snapshots and not listener.snapshots[-1].running)
            assert model.queued == 0
            limits = model.ceilings
            assert limits is not None
            assert limits.layers == len(reading.spec.layers)
            assert model.facts.hidden_size == 64

    asyncio.run(serve())
    assert [report.number for report in listener.steps] == list(range(1, len(listener.steps) + 1))
    assert sum(report.decode_rows for report in listener.steps) >= 399
    assert listener.restarts == []


def test_a_watched_engine_tells_its_lanes_and_a_look_its_blocks(reading: ModelReading) -> None:
    listener = Listener()

    async def serve() -> None:
        async with started(reading, listener) as model:
            await whole(model, job_of(1), "unwatched")
            assert listener.lanes == []
            model.watch(on=True)
            await whole(model, job_of(2), "two")
            model.look()
            await until(lambda: listener.pictures and any(event.kind == "." for event in listener.lanes))
            model.watch(on=False)
            count = len(listener.lanes)
            await whole(model, job_of(3), "three")
            assert len(listener.lanes) == count
            (group,) = model.ready.engine.groups
            assert group.blocks == listener.pictures[0].groups[0].blocks
            assert model.ready.engine.slots == 4

    asyncio.run(serve())
    assert [event.text for event in listener.lanes if event.kind == "+"] == ["two"]
    assert listener.lanes[-1].values == (6,)


def test_queued_counts_requests_without_output(runner: asyncio.Runner, worker: Fleet) -> None:
    async def crowd() -> tuple[int, int]:
        running = [worker.run(named(job_of(n, LONG), f"running-{n}")) for n in range(4)]
        for stream in running:
            await anext(stream)
        waiting = [asyncio.create_task(whole(worker, job_of(n), f"waiting-{n}")) for n in range(10, 15)]
        await asyncio.sleep(0)
        at_once = worker.queued
        for stream in running:
            await stream.aclose()
        await asyncio.gather(*waiting)
        await asyncio.sleep(0.05)
        return at_once, worker.queued

    assert runner.run(crowd()) == (5, 0)
