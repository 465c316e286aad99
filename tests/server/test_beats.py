"""The watch over an event loop sees what holds it, on the loop or in a thread, and does not see waiting."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.server.beats import beating, check_held

HELD_S = 0.2


async def _waits() -> None:
    await asyncio.sleep(HELD_S)


async def _computes() -> None:
    _spin()


async def _thread_keeps_the_interpreter() -> None:
    await asyncio.to_thread(lambda: sorted(range(-4_000_000, 0), key=abs))


def _spin() -> None:
    began = time.thread_time()
    while time.thread_time() - began < HELD_S:
        pass


def _beats(path: Path, work: Callable[[], Awaitable[None]]) -> list[float]:
    async def body() -> None:
        await asyncio.sleep(0.05)
        await work()
        await asyncio.sleep(0.05)

    run_forever = asyncio.BaseEventLoop.run_forever
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        beating(file)
        asyncio.run(body())
    finally:
        asyncio.BaseEventLoop.run_forever = run_forever  # type: ignore[method-assign]
        os.close(file)
    return [seconds for (seconds,) in struct.iter_unpack("d", path.read_bytes())]


def test_waiting_is_not_holding(tmp_path: Path) -> None:
    check_held(_beats(tmp_path / "beats", _waits), 0.05)


@pytest.mark.parametrize("work", [_computes, _thread_keeps_the_interpreter])
def test_what_holds_the_loop_is_seen(tmp_path: Path, work: Callable[[], Awaitable[None]]) -> None:
    beats = _beats(tmp_path / "beats", work)
    assert max(beats) >= 0.15, sorted(beats)[-5:]
