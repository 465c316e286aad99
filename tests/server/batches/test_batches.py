"""Batches: valid and invalid orders, replies as SDKs read them, and lines that fail or wait."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.server.batches.bench import CHAT, LIMITS, Bench, answer, forever, line, lines, refused, run
from twofold.api.batch.lines import LineCall
from twofold.api.fields import FieldError
from twofold.core.errors import (
    BusyError,
    ContextLengthError,
    NotFoundError,
    QuotaError,
    TwofoldError,
    WorkerError,
)
from twofold.server.batches import run as runs


def test_a_batch_completes(bench: Bench) -> None:
    async def act(call: LineCall) -> Any:
        return refused() if call.custom_id == "r7" else None

    async def part() -> None:
        bench.answerer.act = act
        given = lines(20)
        id = await bench.create(given, metadata={"a": "b"})
        batch = await bench.until(id)
        assert (batch.status, batch.model, batch.metadata) == ("completed", "mock", {"a": "b"})
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 20, "completed": 19, "failed": 1}
        assert batch.usage is not None
        assert batch.usage.to_dict() == {
            "input_tokens": 190,
            "input_tokens_details": {"cached_tokens": 76},
            "output_tokens": 57,
            "output_tokens_details": {"reasoning_tokens": 19},
            "total_tokens": 247,
        }
        moments = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
        assert moments == [1_700_000_000] * 4
        assert batch.expires_at == 1_700_000_000 + 86400

        output = {one["custom_id"]: one for one in await bench.content(batch.output_file_id)}
        assert set(output) == {one["custom_id"] for one in given} - {"r7"}
        assert output["r3"]["error"] is None
        assert output["r3"]["response"]["status_code"] == 200
        assert output["r3"]["response"]["body"]["id"] == "r3"
        (failed,) = await bench.content(batch.error_file_id)
        assert (failed["custom_id"], failed["response"]["status_code"]) == ("r7", 400)
        assert failed["error"] == {"code": "invalid_value", "message": "No."}

        assert batch.output_file_id is not None
        file = await bench.files.get("one", batch.output_file_id)
        assert (file.purpose, file.filename) == ("batch_output", f"{id}_output.jsonl")
        assert bench.left_on_disk == []
        assert set(bench.answerer.calls.values()) == {1}
        assert bench.answerer.most_running == LIMITS.width
        call = bench.answerer.seen[0]
        assert (call.endpoint, call.tenant, call.key, call.body["model"]) == (CHAT, "one", "k1", "mock")
        assert call.request_id.startswith("req_")

    run(bench, part)


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        (b"", {(None, "empty_file")}),
        (b"\n \n", {(None, "empty_file")}),
        ([*lines(2), *lines(1)], {(3, "duplicate_custom_id")}),
        (b"nonsense\n", {(1, "invalid_json_line")}),
        (b'\n{"a": 1}\n[]\n', {(2, "missing_required_parameter"), (3, "invalid_json_line")}),
        ([line("a"), line("b", "/v1/embeddings")], {(2, "invalid_url")}),
        ([line("a") | {"method": "GET"}], {(1, "invalid_value")}),
        ([line("a") | {"body": 1}], {(1, "invalid_value")}),
        ([line("a", x="y" * 5000)], {(1, "invalid_json_line")}),
        (lines(61), {(None, "too_many_requests")}),
        (b"\xff\xfe", {(1, "invalid_json_line")}),
        ([line("a", x=[0] * 101)], {(1, "invalid_json_line")}),
        ([line("a", x=[{}] * 51)], {(1, "invalid_json_line")}),
    ],
    ids=lambda value: str(sorted(value, key=str) if isinstance(value, set) else value)[-40:],
)
def test_inputs_with_invalid_lines_fail_as_a_whole(
    bench: Bench, given: bytes | list[dict[str, Any]], codes: set[tuple[int | None, str]]
) -> None:
    async def part() -> None:
        batch = await bench.until(await bench.create(given))
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert {(one.line, one.code) for one in batch.errors.data} == codes
        assert (batch.output_file_id, batch.error_file_id, batch.failed_at) == (None, None, 1_700_000_000)
        assert not bench.answerer.calls
        assert bench.left_on_disk == []

    run(bench, part)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"input_file_id": "x" * 300}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, f"metadata.{'k' * 64}"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 4000}}, "output_expires_after.anchor"),
        ({"windw": "24h"}, "windw"),
    ],
    ids=str,
)
def test_invalid_orders_are_refused(bench: Bench, change: dict[str, Any], param: str) -> None:
    async def part() -> None:
        with pytest.raises(FieldError) as raised:
            await bench.create(lines(1), **change)
        assert raised.value.param == param
        assert bench.left_on_disk == []
        assert (await bench.batches.page("one", {})).data == []

    run(bench, part)


def test_a_batch_belongs_to_its_tenant(bench: Bench) -> None:
    async def part() -> None:
        id = await bench.create(lines(2))
        for ask in (bench.batches.get, bench.batches.cancel):
            with pytest.raises(NotFoundError):
                await ask("two", id)
        assert (await bench.batches.page("two", {})).data == []
        body = {"input_file_id": await bench.give(lines(1)), "endpoint": CHAT, "completion_window": "24h"}
        with pytest.raises(FieldError, match="There is no file"):
            await bench.batches.create("two", body)
        batch = await bench.until(id)
        with pytest.raises(NotFoundError):
            await bench.content(batch.output_file_id, tenant="two")
        body["input_file_id"] = batch.output_file_id or ""
        with pytest.raises(FieldError, match="purpose of the file is batch_output"):
            await bench.batches.create("one", body)

    run(bench, part)


def test_pages_of_batches(bench: Bench) -> None:
    async def part() -> None:
        made = [await bench.create(lines(1)) for _ in range(3)]
        first = await bench.batches.page("one", {"limit": "2"})
        second = await bench.batches.page("one", {"limit": "2", "after": first.last_id or ""})
        assert [one.id for one in first.data + second.data] == made[::-1]
        assert (first.has_more, second.has_more) == (True, False)
        for query in ({"limit": "101"}, {"after": "batch_0"}, {"order": "asc"}):
            with pytest.raises(FieldError):
                await bench.batches.page("one", query)

    run(bench, part)


def test_busy_models_are_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MIN_WAIT_S", 0.001)

    async def act(call: LineCall) -> None:
        tries = bench.answerer.calls[call.custom_id]
        if tries < 3:
            raise (BusyError if tries == 1 else QuotaError)("Full.", retry_after_s=0.001)

    async def part() -> None:
        bench.answerer.act = act
        batch = await bench.until(await bench.create(lines(12)))
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 12
        assert set(bench.answerer.calls.values()) == {3}

    run(bench, part)


@pytest.mark.parametrize(
    ("error", "status", "code", "tries"),
    [
        (WorkerError("The model's process ended."), 503, "server_error", runs.MAX_CRASHES),
        (ContextLengthError("Too long."), 400, "context_length_exceeded", 1),
        (KeyError("canary"), 500, "server_error", 1),
        (TimeoutError(), 500, "server_error", 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_line_that_fails_is_its_own_error(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str, tries: int
) -> None:
    async def act(call: LineCall) -> None:
        if call.custom_id == "r1":
            raise error

    async def part() -> None:
        bench.answerer.act = act
        batch = await bench.until(await bench.create(lines(4)))
        (failed,) = await bench.content(batch.error_file_id)
        assert (failed["response"]["status_code"], failed["error"]["code"]) == (status, code)
        assert bench.answerer.calls == {"r0": 1, "r1": tries, "r2": 1, "r3": 1}
        assert "canary" not in json.dumps(failed) + caplog.text
        assert ("test_batches.py" in caplog.text) == (not isinstance(error, TwofoldError))

    run(bench, part)


def test_tenants_share_and_batches_of_one_wait(bench: Bench) -> None:
    order: list[tuple[str, str]] = []

    async def part() -> None:
        opened = asyncio.Event()

        async def act(call: LineCall) -> None:
            order.append((call.tenant, call.custom_id))
            await opened.wait()

        bench.answerer.act = act
        first = [await bench.create(lines(40, start=100 * n)) for n in range(3)]
        await bench.settle(first[0], LIMITS.width)
        other = await bench.create(lines(20), tenant="two")
        await bench.until(other, "in_progress", tenant="two")
        await asyncio.sleep(0.05)
        opened.set()
        for id in first:
            await bench.until(id)
        await bench.until(other, tenant="two")

    run(bench, part)
    ours = [int(custom_id[1:]) // 100 for tenant, custom_id in order if tenant == "one"]
    assert ours == sorted(ours)
    last = max(place for place, (tenant, _) in enumerate(order) if tenant == "two")
    assert last <= LIMITS.width + 2 * 20 + LIMITS.width, "the second tenant gets every other slot"


def test_a_line_that_waits_for_its_quota_holds_up_no_other_tenant(bench: Bench) -> None:
    """Nor does it begin further lines of its own batch, or come back before its time."""

    async def part() -> None:
        async def act(call: LineCall) -> None:
            if call.tenant == "one":
                raise QuotaError("enough", retry_after_s=30.0)

        bench.answerer.act = act
        limited = await bench.create(lines(60))
        await bench.settle(limited, LIMITS.width)
        other = await bench.until(await bench.create(lines(20), tenant="two"), tenant="two")
        assert other.status == "completed"
        assert len({call.custom_id for call in bench.answerer.seen if call.tenant == "one"}) <= 2 * LIMITS.width
        assert max(bench.answerer.calls.values()) <= 2, "r0 to r19 of both"
        await bench.batches.cancel("one", limited)
        assert (await bench.until(limited)).status == "cancelled"

    run(bench, part)


def test_lines_resume_when_the_quota_has_refilled(bench: Bench) -> None:
    async def part() -> None:
        refused: set[str] = set()

        async def act(call: LineCall) -> None:
            if call.custom_id not in refused:
                refused.add(call.custom_id)
                raise QuotaError("enough", retry_after_s=0.001)

        bench.answerer.act = act
        batch = await bench.until(await bench.create(lines(40)))
        assert batch.status == "completed"
        assert set(bench.answerer.calls.values()) == {2}

    run(bench, part)


def test_a_tenants_unfinished_batches_are_limited(bench: Bench) -> None:
    async def part() -> None:
        bench.answerer.act = forever
        for _ in range(LIMITS.unfinished):
            await bench.create(lines(1))
        with pytest.raises(QuotaError):
            await bench.create(lines(1))
        await bench.create(lines(1), tenant="two")

    run(bench, part)


def test_embeddings_of_one_model_or_several(bench: Bench) -> None:
    async def part() -> None:
        given = [line(name, "/v1/embeddings", model=name) for name in ("a", "b")]
        batch = await bench.until(await bench.create(given, endpoint="/v1/embeddings"))
        assert (batch.status, batch.model) == ("completed", None)

    run(bench, part)


def test_many_lines(bench: Bench) -> None:
    count = 1_500

    async def part() -> None:
        async with bench.server(replace(LIMITS, lines=count, width=64)):
            batch = await bench.until(await bench.create(lines(count)))
            assert batch.request_counts is not None
            assert batch.request_counts.completed == count
            assert set(bench.answerer.calls.values()) == {1}

    asyncio.run(part())


def test_results_are_written_unchanged(bench: Bench) -> None:
    text = "é\ud800\u2028 \x00"

    async def act(call: LineCall) -> Any:
        return 200, answer(call) | {"text": text}

    async def part() -> None:
        bench.answerer.act = act
        batch = await bench.until(await bench.create(lines(1)))
        content = await bench.files.content("one", batch.output_file_id or "")
        data = b"".join([piece async for piece in content.pieces])
        assert json.loads(data)["response"]["body"]["text"] == text

    run(bench, part)
