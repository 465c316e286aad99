"""Long work outside of the event loop: it is bounded, fair to callers, and does not delay short work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from twofold.core.errors import BusyError, TemplateLimitError
from twofold.server import pool as pool_module
from twofold.server.edge.body import ClientGoneError
from twofold.server.edge.limits import KIB, MIB
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.pool import MAX_EXCEEDED, ByteBudget, PoolLimits, PreparationGuard, WorkPool

LIMITS: Final = PoolLimits(small_threads=1, large_waiting=16 * MIB)


class _Workers:
    """Work that waits for ``go``; counts how much of it runs at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.order: list[str] = []
        self.running = self.most = 0
        self._lock = threading.Lock()

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            with self._lock:
                self.running += 1
                self.most = max(self.most, self.running)
            assert self.go.wait(60)
            with self._lock:
                self.running -= 1
                self.order.append(name)
            return name

        return run


def _in_pool(test: Callable[[WorkPool, _Workers], Awaitable[None]]) -> _Workers:
    workers = _Workers()

    async def run() -> None:
        pool = WorkPool(LIMITS)
        try:
            await test(pool, workers)
        finally:
            workers.go.set()
            pool.close()

    asyncio.run(run())
    return workers


def test_short_work_passes_long_work() -> None:
    async def test(pool: WorkPool, workers: _Workers) -> None:
        long = [asyncio.create_task(pool.run("flood", 2 * MIB, workers.work("long"))) for _ in range(4)]
        await asyncio.sleep(0)
        assert await pool.run("other", 5 * KIB, lambda: "short") == "short"
        assert workers.order == []
        workers.go.set()
        await asyncio.gather(*long)

    assert _in_pool(test).most == 1


def test_a_flood_of_one_caller_delays_another_by_one_piece_of_work() -> None:
    async def test(pool: WorkPool, workers: _Workers) -> None:
        flood = [asyncio.create_task(pool.run("flood", MIB, workers.work("flood"))) for _ in range(6)]
        await asyncio.sleep(0)
        other = [asyncio.create_task(pool.run("other", MIB, workers.work("other"))) for _ in range(2)]
        await asyncio.sleep(0)
        workers.go.set()
        await asyncio.gather(*flood, *other)

    assert _in_pool(test).order == ["flood", "other", "flood", "other", "flood", "flood", "flood", "flood"]


def test_waiting_work_is_bounded_and_leaves_room_for_others() -> None:
    async def test(pool: WorkPool, workers: _Workers) -> None:
        tasks = [asyncio.create_task(pool.run("flood", 2 * MIB, workers.work("flood"))) for _ in range(20)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(pool.run("other", 2 * MIB, workers.work("other"))) for _ in range(2)]
        await asyncio.sleep(0)
        workers.go.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [end for end in ended if isinstance(end, BusyError)]
        assert [end for end in ended if not isinstance(end, BusyError)] == ["flood"] * 4 + ["other"] * 2
        assert len(refused) == 16
        assert refused[0].retry_after_s > 0
        assert await pool.run("flood", 2 * MIB, lambda: "again") == "again"

    assert _in_pool(test).most == 1


def test_cancelled_work_returns_its_bytes_and_errors_are_raised() -> None:
    async def test(pool: WorkPool, workers: _Workers) -> None:
        first = asyncio.create_task(pool.run("a", MIB, workers.work("first")))
        waiting = [asyncio.create_task(pool.run("a", 7 * MIB, workers.work("left"))) for _ in range(1)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        workers.go.set()
        assert await first == "first"
        with pytest.raises(ZeroDivisionError):
            await pool.run("a", MIB, lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await pool.run("a", 1, lambda: 1 // 0)

    assert _in_pool(test).order == ["first"]


def test_shares_are_never_exceeded() -> None:
    shares = ByteBudget(100)
    taken = 0
    for caller in "abcdefgh" * 20:
        try:
            shares.take(caller, 10)
            taken += 10
        except BusyError:
            pass
        assert shares.total == taken <= 100
    assert taken >= 90
    emptied: list[int] = []
    held = ByteBudget(100, lambda: emptied.append(1))
    held.take("a", 60)
    held.take("b", 30)
    held.give("a", 60)
    assert not emptied
    held.give("b", 30)
    assert emptied == [1]
    with pytest.raises(BusyError):
        held.take("a", 101)


def _exceeds() -> str:
    raise TemplateLimitError("The chat template was stopped: too slow.", hint="Choose another one.")


@pytest.mark.parametrize("size", [1, MIB], ids=["small", "large"])
def test_a_slow_model_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("twofold.server.pool.SLOW_S", 0.0)

    async def test(pool: WorkPool, workers: _Workers) -> None:
        assert await pool.prepare("slow", "a", 1, lambda: "first") == "first"
        work = workers.work("slow")
        slow = [asyncio.create_task(pool.prepare("slow", caller, size, work)) for caller in "aaaabbbb"]
        await asyncio.sleep(0)
        monkeypatch.setattr("twofold.server.pool.SLOW_S", 60.0)
        for other in (1, MIB):
            assert [await pool.prepare("other", "a", other, lambda: "quick") for _ in range(3)] == ["quick"] * 3
        assert workers.order == []
        workers.go.set()
        await asyncio.gather(*slow)

    assert _in_pool(test).most == 1


def test_a_model_is_quick_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twofold.server.pool.QUICK_RUNS", 3)
    model = PreparationGuard()
    model.note("a", None, 0.01)
    assert model.apart == 0
    model.note("a", None, 1.0)
    for left in (2, 1, 0):
        assert model.apart == left + 1
        model.note("a", None, 0.01)
        assert model.apart == left


def test_a_caller_that_exceeded_limits_repeatedly_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def test(pool: WorkPool, _: _Workers) -> None:
        def hostile() -> str:
            tried.append("hostile")
            return _exceeds()

        for _time in range(2 * MAX_EXCEEDED):
            with pytest.raises(TemplateLimitError, match="too slow"):
                await pool.prepare("slow", "a", 1, hostile)
        assert len(tried) == MAX_EXCEEDED
        assert await pool.prepare("slow", "b", 1, lambda: "other caller") == "other caller"
        assert await pool.prepare("fine", "a", 1, lambda: "other model") == "other model"
        monkeypatch.setattr("twofold.server.pool.REST_S", 0.0)
        assert await pool.prepare("slow", "a", 1, lambda: "later") == "later"
        with pytest.raises(TemplateLimitError):
            await pool.prepare("slow", "a", 1, hostile)
        assert await pool.prepare("slow", "a", 1, lambda: "once is nothing") == "once is nothing"

    _in_pool(test)


def test_short_prompts_of_a_slow_model_pass_long_ones() -> None:
    async def test(pool: WorkPool, workers: _Workers) -> None:
        long = [asyncio.create_task(pool.prepare("m", "a", 2 * MIB, workers.work("long"))) for _ in range(3)]
        await asyncio.sleep(0)
        assert await pool.prepare("m", "a", 5 * KIB, lambda: "short") == "short"
        workers.go.set()
        await asyncio.gather(*long)

    assert _in_pool(test).order == ["long"] * 3


def test_work_for_a_disconnected_client_is_not_started() -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def test(pool: WorkPool, workers: _Workers) -> None:
        running = asyncio.create_task(pool.prepare("m", "a", 2 * MIB, workers.work("running")))
        await asyncio.sleep(0)
        unused: Any = None
        services: Any = SimpleNamespace(pool=pool)
        request = EndpointRequest(unused, unused, unused, "a", 2 * MIB, scope={}, channel=gone, services=services)
        for _ in range(3):
            with pytest.raises(ClientGoneError):
                await request.work("m", workers.work("left"))
        workers.go.set()
        await running

    assert _in_pool(test).order == ["running"]


def test_freed_memory_is_returned_once_after_many_long_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while long work runs, and not for short work."""
    returned: list[bool] = []
    monkeypatch.setattr(pool_module, "TRIM_S", 0.05)

    async def test(pool: WorkPool, workers: _Workers) -> None:
        monkeypatch.setattr(pool_module, "return_freed_memory", lambda: returned.append(workers.go.is_set()))
        await pool.run("a", 5 * KIB, lambda: None)
        await asyncio.gather(*(pool.run("a", MIB, lambda: None) for _ in range(3)))
        running = asyncio.create_task(pool.run("a", 2 * MIB, workers.work("long")))
        await asyncio.sleep(0.2)
        workers.go.set()
        await running
        pool.trim()
        while not returned:
            await asyncio.sleep(0.01)

    _in_pool(test)
    assert returned == [True]
