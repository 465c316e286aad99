"""Sums by day, tenant, key, model and tier, over restarts and failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.api.completions import data_of
from tests.server.accounts.requests import NOON, report, served
from twofold.core.errors import ParameterError, ResourceError
from twofold.host.settings import parse_toml
from twofold.observe.billing import PriceSheet, make_bill, total_of
from twofold.observe.served import ServedRequest
from twofold.server.accounting import UsageStore

T = TypeVar("T")
SHEET = PriceSheet.of(parse_toml("[default]\ninput = 0.07\noutput = 0.13"))
DAY_S = 86_400.0


def billed(request: ServedRequest) -> ServedRequest:
    bill = make_bill(request.reports, request.written_tokens, SHEET, request.model, request.tier)
    return replace(request, bill=bill)


def entries(book: UsageStore, tenant: str = "acme", **asked: Any) -> Coroutine[Any, Any, list[dict[str, Any]]]:
    async def ask() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = data_of(await book.data(tenant, **asked))["data"]
        return found

    return ask()


def test_sums_of_a_request(tmp_path: Path) -> None:
    async def check() -> None:
        book = UsageStore(tmp_path / "usage.db")
        book.add(billed(served(report(batch=2), written_tokens={3600.0: 10}, reasoning_tokens=3)))
        (entry,) = await entries(book, by=("day", "tenant", "key", "model", "tier"))
        await book.close()
        assert entry.pop("machine_s") == pytest.approx(0.035)
        assert entry.pop("cost") == pytest.approx((50 * 0.07 + 40 * 0.007 + 10 * 0.14 + 11 * 0.13) / 1e6)
        assert entry == {
            "day": "2026-11-21",
            "tenant": "acme",
            "key": "k1",
            "model": "small",
            "tier": "default",
            "currency": "USD",
            "requests": 1,
            "failed": 0,
            "cached_answers": 0,
            "fresh": 50,
            "cached": 40,
            "loaded": 0,
            "written_5m": 0,
            "written_30m": 0,
            "written_1h": 10,
            "written_24h": 0,
            "output": 11,
            "reasoning": 3,
        }

    asyncio.run(check())


def test_sums_are_exact_over_restarts(tmp_path: Path) -> None:
    path, rng, amounts = tmp_path / "usage.db", random.Random(4), []

    async def serve_some() -> None:
        book = UsageStore(path)
        for _ in range(20):
            request = billed(served(report(rng.randrange(50, 5000), 3, rng.randrange(1, 99))))
            assert request.bill is not None
            amounts.append(request.bill.total)
            book.add(request)
            if rng.random() < 0.3:
                await book.flush()
        await book.close()

    for _ in range(3):
        asyncio.run(serve_some())

    async def read() -> None:
        book = UsageStore(path)
        ((cost, requests),) = book._file.use(lambda c: c.execute("SELECT cost, requests FROM usage").fetchall())
        await book.close()
        assert Decimal(cost) == total_of(amounts) > 0
        assert requests == 60

    asyncio.run(read())
    assert path.stat().st_mode & 0o777 == 0o600


def test_groups_and_tenants() -> None:
    async def check() -> None:
        book = UsageStore(None)
        for words in ("acme a flex", "acme a default", "acme b flex", "x a flex"):
            tenant, model, tier = words.split()
            book.add(billed(served(tenant=tenant, model=model, tier=tier)))
        book.add(served(status=503, reports=()))
        book.add(served(cached_answer=True, reports=()))
        by_model = await entries(book, by=("model",))
        assert [(e["model"], e["currency"], e["requests"]) for e in by_model] == [
            ("a", "USD", 2),
            ("b", "USD", 1),
            ("small", "", 2),
        ]
        assert [(e["failed"], e["cached_answers"], e["cost"]) for e in by_model if not e["currency"]] == [(1, 1, 0.0)]
        assert [e["requests"] for e in await entries(book, "x", by=())] == [1]
        assert [e["requests"] for e in await entries(book, by=("tenant",))] == [2, 3]
        assert await entries(book, "nobody") == []
        await book.close()

    asyncio.run(check())


def test_usage_by_day_and_its_expiry() -> None:
    async def check() -> None:
        book = UsageStore(None, days=2)
        for day in (-2, -1, 0):
            book.add(served(arrived_at=NOON + day * DAY_S))
        assert [e["day"] for e in await entries(book, by=("day",))] == ["2026-11-19", "2026-11-20", "2026-11-21"]
        assert [e["day"] for e in await entries(book, by=("day",), since="2026-11-21")] == ["2026-11-21"]
        book.add(served(arrived_at=NOON + 1 * DAY_S))
        assert [e["day"] for e in await entries(book, by=("day",))] == ["2026-11-20", "2026-11-21", "2026-11-22"]
        await book.close()

    asyncio.run(check())


@pytest.mark.parametrize(("asked", "param"), [({"by": ("modle",)}, "by"), ({"since": "yesterday"}, "since")])
def test_invalid_queries_of_usage_are_errors(asked: dict[str, Any], param: str) -> None:
    async def check() -> None:
        book = UsageStore(None)
        with pytest.raises(ParameterError) as caught:
            await book.data("acme", **asked)
        await book.close()
        assert caught.value.param == param

    asyncio.run(check())


def test_failed_writes_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        book = UsageStore(tmp_path / "usage.db")
        writing = asyncio.create_task(book.run(every_s=0.005))
        book.add(served())

        def full(_: object) -> None:
            book.add(served(status=500))
            raise ResourceError("The disk is full.")

        with monkeypatch.context() as patch:
            patch.setattr(book._file, "use", full)
            while not book._failed:
                await asyncio.sleep(0.005)
            book.add(served())
            await asyncio.sleep(0.02)
        assert [record.getMessage() for record in caplog.records] == [
            "sums of usage cannot be written now: The disk is full."
        ]
        while book._failed:
            await asyncio.sleep(0.005)
        writing.cancel()
        (entry,) = await entries(book)
        assert entry["requests"] - entry["failed"] == 2
        assert entry["failed"] > 0
        await book.close()

    asyncio.run(asyncio.wait_for(check(), 60))


def test_a_cancelled_write_loses_no_counts(tmp_path: Path) -> None:
    async def check() -> None:
        book = UsageStore(tmp_path / "usage.db")
        for _ in range(20):
            book.add(served())
            writing = asyncio.create_task(book.flush())
            await asyncio.sleep(0)
            writing.cancel()
        assert [e["requests"] for e in await entries(book)] == [20]
        await book.close()

    asyncio.run(check())
