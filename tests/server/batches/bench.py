"""Batches without a server: a folder, a clock, and a fake model that tests control."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai.types import Batch

from tests.api.completions import data_of
from tests.server.files.uploads import FORM, form, pieces
from tests.support.clock import VirtualClock
from twofold.api.batch.lines import LineCall
from twofold.server.batches.files import BatchLimits
from twofold.server.batches.service import BatchService
from twofold.server.edge.limits import BodyLimits
from twofold.server.files.service import FileService

CHAT = "/v1/chat/completions"
LIMITS = BatchLimits(lines=60, line_bytes=4000, width=8, unfinished=4, body=BodyLimits(containers=50, values=100))
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    body = {"model": "mock", "messages": []} | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def lines(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [line(f"r{n}") for n in range(start, start + count)]


class Answerer:
    """Answers lines: ``act``, where it is set, first; it may wait, raise, or give another answer."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.seen: list[LineCall] = []
        self.running = 0
        self.most_running = 0
        self.act: Callable[[LineCall], Any] | None = None

    async def __call__(self, call: LineCall) -> tuple[int, Mapping[str, Any]]:
        self.calls[call.custom_id] += 1
        self.seen.append(call)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await asyncio.sleep(0)
            found = None if self.act is None else await self.act(call)
        finally:
            self.running -= 1
        self.finished[call.custom_id] += 1
        return found or (200, answer(call))


def answer(call: LineCall) -> dict[str, Any]:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    return {"id": call.custom_id, "model": call.body["model"], "usage": usage}


def refused(status: int = 400) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": "No.", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}}


class Bench:
    """One folder, and servers over it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1_700_000_000.0
        self.answerer = Answerer()
        self.files: FileService
        self.batches: BatchService

    @asynccontextmanager
    async def server(self, limits: BatchLimits = LIMITS) -> AsyncIterator[Bench]:
        self.files = await FileService.open(self.folder / "files", wall=lambda: self.now)
        try:
            self.batches = await BatchService.open(
                self.folder / "batches",
                self.files,
                self.answerer,
                limits=limits,
                wall=lambda: self.now,
                clock=VirtualClock(),
            )
            try:
                yield self
            finally:
                await self.batches.close()
        finally:
            await self.files.close()

    async def give(self, data: bytes | list[dict[str, Any]], tenant: str = "one") -> str:
        """Uploads an input; its file's id."""
        if not isinstance(data, bytes):
            data = b"".join(json.dumps(one).encode() + b"\n" for one in data)
        return str((await self.files.upload(tenant, FORM, pieces(form(data)))).id)

    async def create(self, given: bytes | list[dict[str, Any]], tenant: str = "one", **more: Any) -> str:
        """Makes a batch; its id."""
        body = {"input_file_id": await self.give(given, tenant), "endpoint": CHAT, "completion_window": "24h"} | more
        reply = await self.batches.create(tenant, body, key="k1")
        return Batch.model_validate(data_of(reply), strict=True).id

    async def until(self, id: str, *states: str, tenant: str = "one") -> Batch:
        """The batch once it is in one of ``states``, or has ended."""
        async with asyncio.timeout(60):
            while True:
                batch = Batch.model_validate(data_of(await self.batches.get(tenant, id)), strict=True)
                if batch.status in (states or ENDED):
                    return batch
                await asyncio.sleep(0.002)

    async def settle(self, id: str, calls: int) -> None:
        """Waits until so many lines were begun."""
        async with asyncio.timeout(60):
            while self.answerer.calls.total() < calls:
                await asyncio.sleep(0.002)
        await self.until(id, "in_progress")

    async def content(self, file_id: str | None, tenant: str = "one") -> list[dict[str, Any]]:
        if file_id is None:
            return []
        content = await self.files.content(tenant, file_id)
        data = b"".join([piece async for piece in content.pieces])
        return [json.loads(text) for text in data.splitlines()]

    @property
    def left_on_disk(self) -> list[str]:
        return [path.name for path in (self.folder / "batches" / "running").iterdir()]


def run(bench: Bench, *parts: Callable[[], Awaitable[None]]) -> None:
    """Each part with a server of its own over the same folder."""

    async def one(part: Callable[[], Awaitable[None]]) -> None:
        async with bench.server():
            await part()

    for part in parts:
        asyncio.run(one(part))


async def forever(_: LineCall) -> None:
    await asyncio.Event().wait()
