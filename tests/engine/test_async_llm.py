"""Many coroutines over one engine: streams, aborts, slow readers, failures, the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine.conftest import MakeLoaded
from tests.engine.mock import MockForward
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.params import BeamSearchParams, SamplingParams
from twofold.engine import stream as water
from twofold.engine.async_llm import AsyncLLM
from twofold.engine.llm import LLM
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.prompts import TokensPrompt
from twofold.models.ops import Batch

LONG = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
SHORT = SamplingParams(seed=3, max_tokens=6)


def prompt_of(number: int) -> TokensPrompt:
    return {"prompt_token_ids": [(number * 31 + i * 7) % 300 for i in range(3 + number % 9)]}


@asynccontextmanager
async def opened(make_loaded: MakeLoaded, **options: Any) -> AsyncIterator[AsyncLLM]:
    llm = AsyncLLM.from_loaded(make_loaded(**options))
    try:
        yield llm
        async with asyncio.timeout(60):
            while llm.under_way:
                await asyncio.sleep(0.001)
        await llm.check_idle()
    finally:
        await llm.close()


async def whole(llm: AsyncLLM, prompt: TokensPrompt, params: SamplingParams) -> RequestOutput:
    deltas = [delta async for delta in llm.generate(prompt, params)]
    assert deltas[-1].request is not None
    assert "".join(delta.text for delta in deltas) == deltas[-1].request.outputs[0].text
    return deltas[-1].request


def test_many_coroutines_get_the_same_completions_as_alone(make_loaded: MakeLoaded) -> None:
    async def crowd() -> list[RequestOutput]:
        async with opened(make_loaded) as llm:
            return await asyncio.gather(*(whole(llm, prompt_of(i), SHORT) for i in range(40)))

    with LLM.from_loaded(make_loaded()) as llm:
        alone = [llm.generate(prompt_of(i), SHORT)[0].outputs for i in range(40)]
    assert [output.outputs for output in asyncio.run(crowd())] == alone


def test_leaving_a_stream_aborts_its_request(make_loaded: MakeLoaded) -> None:
    async def leave() -> None:
        async with opened(make_loaded) as llm:
            stream = llm.generate(prompt_of(1), LONG)
            await anext(stream)
            await stream.aclose()

    asyncio.run(leave())


def test_abort_returns_the_output_so_far(make_loaded: MakeLoaded) -> None:
    async def abort() -> RequestOutput | None:
        async with opened(make_loaded) as llm:
            stream = llm.generate(prompt_of(1), LONG, "mine")
            await anext(stream)
            gone = await llm.abort("mine")
            assert await llm.abort("mine") is None
            return gone

    output = asyncio.run(abort())
    assert output is not None
    assert output.outputs[0].finish_reason == "abort"


def test_a_slow_reader_pauses_only_its_own_request(make_loaded: MakeLoaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(water, "HIGH_WATER", 700)
    monkeypatch.setattr(water, "LOW_WATER", 140)

    async def read() -> tuple[int, RequestOutput, RequestOutput]:
        async with opened(make_loaded) as llm:
            stream = llm.generate(prompt_of(1), LONG)
            deltas = [await anext(stream)]
            other = await whole(llm, prompt_of(2), LONG)
            await asyncio.sleep(0.05)
            buffered = llm.under_way
            deltas += [delta async for delta in stream]
            assert deltas[-1].request is not None
            return buffered, other, deltas[-1].request

    resting, other, slow = asyncio.run(read())
    assert resting == 1, "the slow request should not have gone on to its end"
    with LLM.from_loaded(make_loaded()) as llm:
        assert llm.generate(prompt_of(1), LONG)[0].outputs == slow.outputs
        assert llm.generate(prompt_of(2), LONG)[0].outputs == other.outputs


def test_a_failing_step_fails_current_requests_but_no_later_one(make_loaded: MakeLoaded) -> None:
    forward = MockForward(vocab=300, blocks=128, block_size=4)

    async def fail() -> RequestOutput:
        async with opened(make_loaded, forward=forward) as llm:
            forward.failing = True
            with pytest.raises(RuntimeError, match="told to fail"):
                await whole(llm, prompt_of(1), SHORT)
            forward.failing = False
            return await whole(llm, prompt_of(1), SHORT)

    assert asyncio.run(fail()).finished


def test_an_impossible_request_affects_no_other(make_loaded: MakeLoaded) -> None:
    async def ask() -> RequestOutput:
        async with opened(make_loaded) as llm:
            running = asyncio.create_task(whole(llm, prompt_of(1), LONG))
            with pytest.raises(ParameterError):
                await whole(llm, {"prompt_token_ids": [300]}, SHORT)
            with pytest.raises(ParameterError, match="in use"):
                await asyncio.gather(*(_drain(llm.generate(prompt_of(2), LONG, "same")) for _ in range(2)))
            return await running

    assert asyncio.run(ask()).finished


async def _drain(stream: AsyncIterator[OutputDelta]) -> None:
    async for _ in stream:
        pass


def test_drain_finishes_running_requests_and_refuses_new_ones(make_loaded: MakeLoaded) -> None:
    async def drain() -> RequestOutput:
        async with opened(make_loaded) as llm:
            stream = llm.generate(prompt_of(1), LONG)
            first = await anext(stream)
            draining = asyncio.create_task(llm.drain(5))
            await asyncio.sleep(0)
            with pytest.raises(ResourceError, match="no new requests"):
                await whole(llm, prompt_of(2), SHORT)
            rest = [first, *[delta async for delta in stream]]
            assert await draining
            assert rest[-1].request is not None
            return rest[-1].request

    assert asyncio.run(drain()).outputs[0].finish_reason == "length"


def test_closing_ends_streams_with_an_error(make_loaded: MakeLoaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps after the first wait until the engine's thread has been told to end, so the request cannot end before."""
    asked_to_end, run, steps = threading.Event(), MockForward.run, count()

    def held(forward: MockForward, batch: Batch) -> NDArray[np.float32]:
        assert not next(steps) or asked_to_end.wait(60)
        return run(forward, batch)

    monkeypatch.setattr(MockForward, "run", held)

    async def close() -> None:
        llm = AsyncLLM.from_loaded(make_loaded())
        stream = llm.generate(prompt_of(1), LONG)
        await anext(stream)
        closing = asyncio.create_task(llm.close())
        while llm._thread._open:
            await asyncio.sleep(0.001)
        asked_to_end.set()
        await closing
        await llm.close()
        with pytest.raises(ResourceError, match="closed"):
            await _drain(stream)

    asyncio.run(close())


def test_delivered_deltas_can_be_read_after_closing(make_loaded: MakeLoaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late reader pauses its request, and resumes it when it reads on; a closed engine ignores both."""
    monkeypatch.setattr(water, "HIGH_WATER", 150)

    async def read() -> list[OutputDelta]:
        llm = AsyncLLM.from_loaded(make_loaded())
        stream = llm.generate(prompt_of(1), SHORT)
        deltas = [await anext(stream)]
        while llm.under_way:
            time.sleep(0.001)  # the event loop must not deliver anything yet
        await llm.close()
        return deltas + [delta async for delta in stream]

    deltas = asyncio.run(read())
    assert deltas[-1].request is not None
    assert sum(len(delta.token_ids) for delta in deltas) == SHORT.max_tokens


def test_other_kinds_of_request(make_loaded: MakeLoaded) -> None:
    async def ask() -> tuple[RequestOutput, RequestOutput, RequestOutput]:
        async with opened(make_loaded) as llm:
            return await asyncio.gather(
                llm.beam_search(prompt_of(1), BeamSearchParams(beam_width=2, max_tokens=3)),
                llm.embed(prompt_of(2)),
                llm.score(prompt_of(3)),
            )

    beams, embedding, scores = asyncio.run(ask())
    assert len(beams.outputs) == 2
    assert embedding.embedding is not None
    assert sum(value * value for value in embedding.embedding) == pytest.approx(1)
    assert scores.prompt_logprobs is not None
    assert len(scores.prompt_logprobs) == len(scores.prompt_token_ids)
