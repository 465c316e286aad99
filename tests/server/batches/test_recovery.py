"""Batches that are interrupted, with or without their server: every line gets one result, and none runs twice."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.batches.bench import LIMITS, Bench, forever, lines, run
from twofold.api.batch import journal as journals
from twofold.api.batch.lines import LineCall
from twofold.core.errors import (
    ConflictError,
    NotFoundError,
    ResourceError,
)
from twofold.server.batches import service as services
from twofold.server.batches.record import BatchRecord, BatchStore


@pytest.mark.parametrize("seed", range(6))
def test_servers_that_end_answer_no_line_twice(bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(services, "RETRY_S", 0.01)
    ids: list[str] = []

    async def act(_: LineCall) -> None:
        await asyncio.sleep(rng.random() * 0.003)

    async def begin() -> None:
        ids.append(await bench.create(lines(50)))
        await asyncio.sleep(rng.random() * 0.02)

    async def on() -> None:
        await asyncio.sleep(rng.random() * 0.02)

    async def end() -> None:
        batch = await bench.until(ids[0])
        assert batch.status == "completed"
        output = await bench.content(batch.output_file_id)
        assert sorted(one["custom_id"] for one in output) == sorted(f"r{n}" for n in range(50))
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 50
        assert batch.usage is not None
        assert batch.usage.input_tokens == 500
        assert bench.left_on_disk == []

    bench.answerer.act = act
    run(bench, begin, on, on, on, end)
    # What was finished but not yet in the journal may be done again; never more than ran when a server ended.
    assert sum(count - 1 for count in bench.answerer.finished.values()) <= 4 * LIMITS.width


def test_lines_in_the_journal_are_not_run_again(bench: Bench) -> None:
    ids: list[str] = []

    async def act(call: LineCall) -> None:
        if int(call.custom_id[1:]) >= 10:
            await forever(call)

    async def begin() -> None:
        bench.answerer.act = act
        ids.append(await bench.create(lines(20)))
        await bench.settle(ids[0], 10 + LIMITS.width)
        async with asyncio.timeout(60):
            while (await bench.batches.get("one", ids[0])).request_counts.completed < 10:
                await asyncio.sleep(0.002)

    async def end() -> None:
        bench.answerer.act = None
        reply = await bench.batches.get("one", ids[0])
        assert reply.status == "in_progress"
        assert (await bench.until(ids[0])).status == "completed"

    run(bench, begin, end)
    assert all(bench.answerer.calls[f"r{n}"] == 1 for n in range(10))


def test_a_torn_journal_is_continued(bench: Bench) -> None:
    ids: list[str] = []

    async def begin() -> None:
        bench.answerer.act = forever
        ids.append(await bench.create(lines(3)))
        await bench.settle(ids[0], 3)

    async def end() -> None:
        assert (await bench.until(ids[0])).status == "completed"

    run(bench, begin)
    bench.answerer.act = None
    (path,) = (bench.folder / "batches" / "running").glob("*/journal.jsonl")
    path.write_bytes(b'{"id":"batch_req_12')
    run(bench, end)


def test_a_batch_is_cancelled(bench: Bench) -> None:
    async def act(call: LineCall) -> None:
        if call.custom_id not in ("r0", "r1"):
            await forever(call)

    async def part() -> None:
        bench.answerer.act = act
        id = await bench.create(lines(30))
        await bench.settle(id, LIMITS.width + 2)
        reply = await bench.batches.cancel("one", id)
        assert reply.status == "cancelling"
        batch = await bench.until(id)
        assert batch.status == "cancelled"
        assert {one["custom_id"] for one in await bench.content(batch.output_file_id)} == {"r0", "r1"}
        left = await bench.content(batch.error_file_id)
        assert {one["custom_id"] for one in left} == {f"r{n}" for n in range(2, 30)}
        assert {one["error"]["code"] for one in left} == {"batch_cancelled"}
        assert bench.answerer.running == 0
        assert (await bench.batches.cancel("one", id)).status == "cancelled"
        bench.answerer.act = None
        other = await bench.create(lines(20))
        assert (await bench.until(other)).status == "completed"
        with pytest.raises(ConflictError, match="completed"):
            await bench.batches.cancel("one", other)

    run(bench, part)


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.003, 0.006, 0.01])
def test_cancelling_at_any_moment_ends_a_batch(bench: Bench, pause: float) -> None:
    async def part() -> None:
        for _ in range(3):
            id = await bench.create(lines(40))
            await asyncio.sleep(pause)
            try:
                await bench.batches.cancel("one", id)
                wanted = "cancelled"
            except ConflictError:
                wanted = "completed"
            batch = await bench.until(id)
            assert batch.status == wanted
            done = await bench.content(batch.output_file_id) + await bench.content(batch.error_file_id)
            assert sorted(one["custom_id"] for one in done) == sorted(f"r{n}" for n in range(40))

    run(bench, part)


def test_cancellation_continues_after_a_restart(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[str] = []

    async def stuck(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async def begin() -> None:
        bench.answerer.act = forever
        ids.append(await bench.create(lines(3)))
        await bench.settle(ids[0], 3)
        with monkeypatch.context() as patched:
            patched.setattr(services.BatchService, "_finish", stuck)
            await bench.batches.cancel("one", ids[0])
            await asyncio.sleep(0.02)

    async def end() -> None:
        batch = await bench.until(ids[0])
        assert (batch.status, batch.output_file_id) == ("cancelled", None)
        assert len(await bench.content(batch.error_file_id)) == 3

    run(bench, begin, end)


def test_a_batch_expires_between_two_servers(bench: Bench) -> None:
    ids: list[str] = []

    async def begin() -> None:
        bench.answerer.act = forever
        ids.append(await bench.create(lines(3), output_expires_after={"anchor": "created_at", "seconds": 3600}))
        await bench.settle(ids[0], 3)
        bench.now += 86400

    async def end() -> None:
        batch = await bench.until(ids[0])
        assert (batch.status, batch.expired_at) == ("expired", int(bench.now))
        left = await bench.content(batch.error_file_id)
        assert {one["error"]["code"] for one in left} == {"batch_expired"}
        assert batch.error_file_id is not None
        assert (await bench.files.get("one", batch.error_file_id)).expires_at == bench.now + 3600
        bench.now += 3600
        with pytest.raises(NotFoundError):
            await bench.content(batch.error_file_id)

    run(bench, begin, end)


def test_a_batch_expires_while_it_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "WINDOW_SECONDS", 1)
    bench.now += 0.9

    async def part() -> None:
        bench.answerer.act = forever
        batch = await bench.until(await bench.create(lines(3)))
        assert (batch.status, bench.answerer.running) == ("expired", 0)

    run(bench, part)


def test_writing_to_a_full_disk_is_retried(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "RETRY_S", 0.005)
    write = journals.Journal.write
    refusals = 3

    def full(journal: journals.Journal, key: str, record: Any) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise ResourceError("No space left on device.")
        write(journal, key, record)

    monkeypatch.setattr(journals.Journal, "write", full)

    async def part() -> None:
        batch = await bench.until(await bench.create(lines(10)))
        assert batch.status == "completed"
        assert len(await bench.content(batch.output_file_id)) == 10

    run(bench, part)
    assert refusals == 0


def test_a_failed_batch_is_stored_once_the_disk_has_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "RETRY_S", 0.005)
    save, refusals = BatchStore.save, 2

    def broken(*_: object) -> None:
        raise ValueError("odd")

    def full(store: BatchStore, batch: BatchRecord) -> None:
        nonlocal refusals
        if batch.status == "failed" and refusals:
            refusals -= 1
            raise ResourceError("No space left on device.")
        save(store, batch)

    monkeypatch.setattr(services, "check_input", broken)
    monkeypatch.setattr(BatchStore, "save", full)

    async def part() -> None:
        assert (await bench.until(await bench.create(lines(2)))).status == "failed"

    run(bench, part)
    assert refusals == 0


def test_an_internal_error_fails_only_its_batch(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def part() -> None:
        bench.answerer.act = forever
        first = await bench.create(lines(2))
        await bench.settle(first, 2)
        (bench.folder / "batches" / "running" / first / "journal.jsonl").write_bytes(b"{}\n")

    async def then() -> None:
        bench.answerer.act = None
        page = await bench.batches.page("one", {})
        batch = await bench.until(page.data[0].id)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [one.code for one in batch.errors.data] == ["server_error"]
        assert str(bench.folder) not in json.dumps(batch.to_dict()) + caplog.text
        assert (await bench.until(await bench.create(lines(2)))).status == "completed"

    run(bench, part, then)


def test_an_input_may_be_deleted_while_its_batch_runs(bench: Bench) -> None:
    ids: list[str] = []

    async def begin() -> None:
        bench.answerer.act = forever
        ids.append(await bench.create(lines(3)))
        await bench.settle(ids[0], 3)
        await bench.files.delete("one", (await bench.batches.get("one", ids[0])).input_file_id)

    async def end() -> None:
        bench.answerer.act = None
        assert (await bench.until(ids[0])).status == "completed"

    run(bench, begin, end)


def test_old_batches_are_forgotten(bench: Bench) -> None:
    async def begin() -> None:
        await bench.until(await bench.create(lines(1)))
        bench.now += 31 * 86400

    async def end() -> None:
        assert (await bench.batches.page("one", {})).data == []

    run(bench, begin, end)


def test_batches_of_a_killed_server_are_continued(bench: Bench) -> None:
    count, kills = 60, 2
    command = [sys.executable, "-m", "tests.server.batches.victim", str(bench.folder), str(count)]
    for kill in range(kills + 1):
        victim = subprocess.Popen(command)
        if kill < kills:
            _wait_for_answers(bench.folder / "answered", 12 * (kill + 1))
            victim.kill()
        assert victim.wait(60) == (-9 if kill < kills else 0)

    async def part() -> None:
        page = await bench.batches.page("one", {})
        batch = await bench.until(page.data[0].id)
        assert batch.status == "completed"
        output = await bench.content(batch.output_file_id)
        assert sorted(one["custom_id"] for one in output) == sorted(f"r{n}" for n in range(count))

    run(bench, part)
    answered = (bench.folder / "answered").read_text().split()
    assert set(answered) == {f"r{n}" for n in range(count)}
    assert len(answered) <= count + kills * LIMITS.width, "only what was not written yet is done again"


def _wait_for_answers(path: Path, least: int) -> None:
    until = time.monotonic() + 60
    while not path.exists() or len(path.read_text().split()) < least:
        assert time.monotonic() < until
        time.sleep(0.005)
