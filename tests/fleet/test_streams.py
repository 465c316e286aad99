"""Streams of deltas: their order, and the bound of unread ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from twofold.core.errors import SlowClientError, WorkerError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine import stream as water
from twofold.engine.outputs import Logprob, OutputDelta
from twofold.engine.stream import weight
from twofold.fleet import streams
from twofold.fleet.streams import RequestStream, StreamReader

REQUEST = EngineRequest((1,), SamplingParams(), request_id="r")
OUTPUT: Any = object()


def a_delta(text: str = "") -> OutputDelta:
    return OutputDelta("r", 0, text, (1,))


def a_stream(
    pause: Callable[[bool], None] = lambda _: None, direct: Callable[[OutputDelta], bool] | None = None
) -> RequestStream:
    return RequestStream(REQUEST, pause, lambda _stream, _whole: None, StreamReader(direct))


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


def test_deltas_are_passed_on_while_the_reader_waits_and_never_before_earlier_ones() -> None:
    """Every random order of events gives the reader and ``direct`` together all deltas, in order."""

    async def read(seed: int) -> tuple[list[str], int]:
        chance, got, passed = random.Random(seed), [], 0

        def direct(delta: OutputDelta) -> bool:
            nonlocal passed
            if chance.random() < 0.3:
                return False
            passed += 1
            got.append(delta.text)
            return True

        async def reader() -> None:
            while len(got) < 40:
                got.append((await stream.take()).text)
                for _ in range(chance.choice((0, 0, 0, 1))):
                    await asyncio.sleep(0)

        stream = a_stream(direct=direct)
        async with asyncio.timeout(60):
            reading = asyncio.create_task(reader())
            for number in range(40):
                for _ in range(chance.choice((0, 0, 1, 3))):
                    await asyncio.sleep(0)
                stream.push(a_delta(str(number)))
                assert stream.began
            while len(got) < 40:
                await asyncio.sleep(0)
        reading.cancel()
        return got, passed

    runs = [asyncio.run(read(seed)) for seed in range(30)]
    assert all(got == [str(number) for number in range(40)] for got, _ in runs)
    assert 30 * 40 // 4 < sum(passed for _, passed in runs) < 30 * 40


@pytest.mark.parametrize("last", [{"error": WorkerError("It ended.")}, {"request": OUTPUT}])
def test_the_last_delta_is_for_the_reader(last: dict[str, Any]) -> None:
    async def read() -> None:
        stream = a_stream(direct=lambda _: pytest.fail("it was passed on"))
        reader = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        stream.push(replace(a_delta("a"), **last))
        if "error" in last:
            with pytest.raises(WorkerError):
                await reader
        else:
            assert (await reader).request is OUTPUT

    asyncio.run(read())


def test_the_reader_gets_the_error_of_a_delta_that_could_not_be_passed_on() -> None:
    def direct(_: OutputDelta) -> bool:
        raise ZeroDivisionError

    async def read() -> None:
        stream = a_stream(direct=direct)
        reader = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        stream.push(a_delta("a"))
        stream.push(a_delta("b"))
        with pytest.raises(ZeroDivisionError):
            await reader
        assert not stream.over

    asyncio.run(read())


def test_a_reader_that_was_cancelled_is_passed_by() -> None:
    async def read() -> None:
        stream = a_stream(direct=lambda _: pytest.fail("it was passed on"))
        reader = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        reader.cancel()
        stream.push(a_delta("a"))
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(read())


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
    calls: list[bool] = []

    async def read() -> list[list[bool]]:
        stream, history = a_stream(calls.append), []
        for _ in range(6):
            stream.push(a_delta())
            history.append(list(calls))
        for _ in range(6):
            await stream.take()
            history.append(list(calls))
        return history

    history = asyncio.run(read())
    assert [len(calls) for calls in history] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2]
    assert calls == [True, False]


def test_a_stream_with_too_many_unread_bytes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(water, "HIGH_WATER", 0)
    monkeypatch.setattr(streams, "MAX_UNREAD", 1000)

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
