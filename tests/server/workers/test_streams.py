"""Streams of deltas: their order, and the bound of unread ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from twofold.core.errors import SlowClientError, WorkerError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine import stream as water
from twofold.engine.outputs import Logprob, OutputDelta
from twofold.engine.stream import weight
from twofold.server.workers import client
from twofold.server.workers.client import DispatchHandle, WorkerStream

REQUEST = EngineRequest((1,), SamplingParams(), request_id="r")


def a_delta(text: str = "") -> OutputDelta:
    return OutputDelta("r", 0, text, (1,))


def a_stream(tell: Callable[[bool], None] = lambda _: None) -> WorkerStream:
    return WorkerStream(REQUEST, DispatchHandle(), tell)


def test_deltas_come_in_order_before_an_error() -> None:
    async def read() -> list[str]:
        stream = a_stream()
        for text in "abc":
            stream.push(a_delta(text))
        stream.break_off(WorkerError("It ended."))
        texts = [(await stream.take()).text for _ in range(3)]
        with pytest.raises(WorkerError):
            await stream.take()
        return texts

    assert asyncio.run(read()) == ["a", "b", "c"]


def test_a_waiting_reader_is_woken_once_for_all_deltas() -> None:
    async def read() -> list[str]:
        stream = a_stream()
        reader = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        stream.push(a_delta("a"))
        stream.push(a_delta("b"))
        return [(await reader).text, (await stream.take()).text]

    assert asyncio.run(read()) == ["a", "b"]


def test_a_reader_that_left_leaves_the_stream_whole() -> None:
    async def read() -> str:
        stream = a_stream()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await stream.take()
        stream.push(a_delta("a"))
        return (await stream.take()).text

    assert asyncio.run(read()) == "a"


def test_the_request_is_paused_above_one_mark_and_resumed_below_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(water, "HIGH_WATER", 4 * water.DELTA_BYTES)
    monkeypatch.setattr(water, "LOW_WATER", 2 * water.DELTA_BYTES)
    told: list[bool] = []

    async def read() -> list[list[bool]]:
        stream, history = a_stream(told.append), []
        for _ in range(6):
            stream.push(a_delta())
            history.append(list(told))
        for _ in range(6):
            await stream.take()
            history.append(list(told))
        return history

    history = asyncio.run(read())
    assert [len(told) for told in history] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2]
    assert told == [True, False]


def test_a_stream_with_too_many_unread_bytes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(water, "HIGH_WATER", 0)
    monkeypatch.setattr(client, "MAX_UNREAD", 1000)

    async def read() -> None:
        stream = a_stream()
        for _ in range(100):
            stream.push(a_delta("0123456789"))
        assert not stream.over
        with pytest.raises(SlowClientError):
            await stream.take()

    asyncio.run(read())


def test_logprobs_count() -> None:
    position = {token: Logprob(-1.0, 1, "x") for token in range(20)}
    assert weight(OutputDelta("r", 0, "abc", (1,), (position,))) > 20 * weight(a_delta("abc")) - 100
