"""The response cache: it returns stored outputs unchanged, to their tenant only, until they expire."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.response_cache.jobs import IDS, job, output, vector_job, vector_output
from tests.support.clock import VirtualClock
from twofold.core.errors import ResourceError
from twofold.core.request import EngineRequest
from twofold.engine.outputs import OutputDelta, RequestOutput, ScoredPrompt
from twofold.server.response_cache import (
    MAX_WRITES,
    ResponseCache,
    ResponseCacheKey,
    ResponseCacheSettings,
    deltas,
    pack,
)

Work = Callable[[ResponseCache], Awaitable[None]]
CLOCK = VirtualClock(1e9)


def run(work: Work, path: Path | None = None, settings: ResponseCacheSettings | None = None) -> None:
    async def whole() -> None:
        cache = ResponseCache(path, settings or ResponseCacheSettings(), CLOCK.now)
        try:
            await work(cache)
        finally:
            cache.close()

    asyncio.run(whole())


def key_of(cache: ResponseCache, *jobs: EngineRequest, tenant: str = "t") -> ResponseCacheKey:
    key = cache.key(tenant, "model", jobs or (job(),))
    assert key is not None
    return key


def held(cache: ResponseCache) -> dict[str, int]:
    """Bytes by tenant."""
    return dict(cache._file.rows("SELECT tenant, bytes FROM held"))


def test_cached_outputs_equal_the_stored_ones(tmp_path: Path) -> None:
    made = output()

    async def keep(cache: ResponseCache) -> None:
        key = key_of(cache, job(), vector_job())
        assert await cache.get(key, "req_1") is None
        await cache.put(key, [made, vector_output()])

    async def find(cache: ResponseCache) -> None:
        found = await cache.get(key_of(cache, job(), vector_job()), "req_2")
        assert found is not None
        text, vector = found
        assert (text.outputs, text.prompt_logprobs, text.prompt_token_ids) == (made.outputs, made.prompt_logprobs, IDS)
        assert (vector.outputs, vector.embedding, vector.finished) == ((), (0.6, -0.8), True)
        assert text.request_id == text.report.request_id == "req_2"
        assert (text.metrics.output_tokens, text.report.output_tokens) == (9, 9)
        assert (text.metrics.cached_tokens, text.metrics.fresh_tokens, text.report.queue_s) == (3, 0, 0.0)
        assert text.report.record.prefill.rows == 0

    run(keep, tmp_path / "cache.db")
    run(find, tmp_path / "cache.db")
    assert (tmp_path / "cache.db").stat().st_mode & 0o777 == 0o600


def test_prompts_are_not_kept(tmp_path: Path) -> None:
    async def keep(cache: ResponseCache) -> None:
        await cache.put(key_of(cache), [replace(output(), prompt="canary 1234")])

    run(keep, tmp_path / "cache.db")
    assert b"canary" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_a_stream_of_it_has_everything() -> None:
    scored, first, second = deltas(output())
    assert scored == OutputDelta("r", 0, "", (), scored=ScoredPrompt(0, output().prompt_logprobs or ()))
    assert (first.text, first.token_ids, first.finish_reason, first.request) == ("four", (9,), "stop", None)
    assert (second.index, second.text, second.stop_reason, second.request) == (1, "fourfour", " stop", output())
    assert list(deltas(vector_output())) == [OutputDelta("r", 0, "", (), None, "stop", request=vector_output())]


@pytest.mark.parametrize(
    "cut",
    [
        output(finish="abort"),
        output(finish="deadline"),
        output(finish=None),
        output(finished=False),
        output(outputs=()),
        output(text="\ud800"),
    ],
)
def test_cut_outputs_are_not_stored(cut: RequestOutput) -> None:
    assert pack([output(), cut]) is None

    async def keep(cache: ResponseCache) -> None:
        await cache.put(key_of(cache), [cut])
        assert await cache.get(key_of(cache), "r") is None
        assert held(cache) == {}

    run(keep)


def test_tenants_do_not_share() -> None:
    async def check(cache: ResponseCache) -> None:
        mine = key_of(cache, tenant="a")
        await cache.put(mine, [output()])
        assert await cache.get(key_of(cache, tenant="b"), "r") is None
        assert await cache.get(replace(mine, tenant="b"), "r") is None
        assert await cache.get(mine, "r") is not None

    run(check)


def test_cached_outputs_expire() -> None:
    async def check(cache: ResponseCache) -> None:
        await cache.put(key_of(cache), [output()])
        CLOCK.advance(59)
        assert await cache.get(key_of(cache), "r") is not None
        CLOCK.advance(1)
        assert await cache.get(key_of(cache), "r") is None
        await cache.put(key_of(cache, job(1)), [output()])
        assert held(cache) == {"t": len(pack([output()]) or b"") + 256}

    run(check, settings=ResponseCacheSettings(ttl_s=60))


def test_the_largest_tenant_loses_its_least_recently_used_entry() -> None:
    size = len(pack([output()]) or b"") + 256

    async def check(cache: ResponseCache) -> None:
        async def put(tenant: str, number: int) -> None:
            CLOCK.advance(1)
            await cache.put(key_of(cache, job(number), tenant=tenant), [output()])

        async def there(tenant: str, *numbers: int) -> list[bool]:
            CLOCK.advance(1)
            keys = [key_of(cache, job(number), tenant=tenant) for number in numbers]
            return [await cache.get(key, "r") is not None for key in keys]

        await put("small", 1)
        for number in range(9):
            await put("big", number)
        assert await there("big", 0) == [True]
        for number in range(9, 12):
            await put("big", number)
        assert await there("small", 1) == [True]
        assert await there("big", *range(12)) == [True, False, False, False, *[True] * 8]
        ((bodies, total),) = cache._file.rows("SELECT (SELECT COUNT(*) FROM bodies), SUM(size) FROM answers")
        assert (bodies, total) == (10, sum(held(cache).values()))

    run(check, settings=ResponseCacheSettings(max_bytes=10 * size))


def test_an_output_that_is_too_large_evicts_nothing() -> None:
    async def check(cache: ResponseCache) -> None:
        await cache.put(key_of(cache), [output("".join(map(chr, range(40, 4000))))])
        assert held(cache) == {}

    run(check, settings=ResponseCacheSettings(max_bytes=4096))


def test_a_stored_output_replaces_the_previous_one() -> None:
    async def check(cache: ResponseCache) -> None:
        for text in ("one", "two"):
            await cache.put(key_of(cache), [output(text)])
        found = await cache.get(key_of(cache), "r")
        assert found is not None
        assert found[0].outputs[0].text == "two"
        assert held(cache) == {"t": cache._file.rows("SELECT SUM(size) FROM answers")[0][0]}

    run(check)


def test_a_corrupt_entry_is_a_miss() -> None:
    async def check(cache: ResponseCache) -> None:
        for junk in (b"", b"junk", (pack([output(), output()]) or b""), (pack([output()]) or b"")[:-3]):
            await cache.put(key_of(cache), [output()])
            cache._file.use(lambda c, junk=junk: c.execute("UPDATE bodies SET data = ?", (junk,)))  # type: ignore[misc]
            assert await cache.get(key_of(cache), "r") is None

    run(check)


def test_a_failing_file_counts_as_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ResourceError("The disk is full.")

    async def check(cache: ResponseCache) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cache._file, "use", fail)
            await cache.put(key_of(cache), [output()])
            assert await cache.get(key_of(cache), "r") is None
        await cache.put(key_of(cache), [output()])
        assert await cache.get(key_of(cache), "r") is not None

    run(check)


def test_a_corrupt_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    path.write_bytes(b"\0junk" * 4000)

    async def check(cache: ResponseCache) -> None:
        await cache.put(key_of(cache), [output()])
        assert await cache.get(key_of(cache), "r") is not None

    run(check, path)
    run(check, path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_closed_cache_is_empty() -> None:
    async def check(cache: ResponseCache) -> None:
        cache.close()
        await cache.put(key_of(cache), [output()])
        assert await cache.get(key_of(cache), "r") is None

    run(check)


def test_outputs_beyond_the_write_queue_are_not_stored() -> None:
    async def check(cache: ResponseCache) -> None:
        keys = [key_of(cache, job(number)) for number in range(MAX_WRITES + 10)]
        await asyncio.gather(*(cache.put(key, [output()]) for key in keys))
        assert cache._file.rows("SELECT COUNT(*) FROM answers") == [(MAX_WRITES,)]

    run(check)
