"""A worker process over a tiny model, shared by the tests of a module, and requests for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.lanes import LaneEvent
from twofold.core.params import SamplingParams
from twofold.core.report import EngineSnapshot, KVPicture, StepReport
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.fleet.fleet import Fleet
from twofold.fleet.reading import ModelReading, read_file
from twofold.fleet.replica import RestartPolicy
from twofold.host.paths import CacheFolders
from twofold.observe.served import ServedRequest

ENGINE: dict[str, Any] = {"max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 23, "swap_space_bytes": 0, "threads": 1}
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(seed=3, max_tokens=6)
PATIENCE_S = 60.0
QUICK = RestartPolicy(silent_s=60.0, dead_s=120.0, ping_s=0.05, idle_s=60.0, busy_s=120.0, pause_s=0.02)
"""Restarts at once what has ended, and takes no process for hung, however busy the machine is."""


class Listener:
    """Hears what engines report."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.snapshots: list[EngineSnapshot] = []
        self.restarts: list[str] = []
        self.left: list[str] = []
        self.lanes: list[LaneEvent] = []
        self.pictures: list[KVPicture] = []
        self.served: Callable[[str], ServedRequest | None] = lambda _: None

    def on_step(self, model: str, report: StepReport, replica: int = 0) -> None:
        assert model
        assert replica >= 0
        self.steps.append(report)

    def on_snapshot(self, model: str, snapshot: EngineSnapshot, replica: int = 0) -> None:
        assert model
        assert replica >= 0
        self.snapshots.append(snapshot)

    def on_lanes(self, model: str, events: Sequence[LaneEvent], served: Callable[[str], ServedRequest | None]) -> None:
        assert model
        self.lanes += events
        self.served = served

    def on_picture(self, model: str, at: float, picture: KVPicture) -> None:
        assert model
        assert at
        self.pictures.append(picture)

    def on_leave(self, model: str, replica: int = 0) -> None:
        self.left.append(f"{model}/{replica}")

    def on_restart(self, model: str, replica: int = 0) -> None:
        self.restarts.append(f"{model}/{replica}")


def job_of(
    number: int, params: SamplingParams | PoolingParams = SHORT, options: RequestOptions | None = None
) -> EngineRequest:
    """A prompt of a few tokens, its own for each number."""
    ids = tuple((number * 31 + i * 7) % 250 for i in range(3 + number % 9))
    return EngineRequest(ids, params, options or RequestOptions())


def named(request: EngineRequest, request_id: str) -> EngineRequest:
    return replace(request, request_id=request_id)


async def whole(model: Fleet, job: EngineRequest, request_id: str) -> RequestOutput:
    """A job's result; its deltas must be what it is made of."""
    deltas = [delta async for delta in model.run(named(job, request_id))]
    output = deltas[-1].request
    assert output is not None
    for answer in output.outputs if job.stream else ():
        assert "".join(delta.text for delta in deltas if delta.index == answer.index) == answer.text
    return output


async def taken(stream: AsyncIterator[OutputDelta], count: int) -> list[OutputDelta]:
    """The first deltas of a stream."""
    return [await anext(stream) for _ in range(count)]


async def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Waits for something to become true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def until_idle(model: Fleet) -> None:
    """Waits until no request is left and its engine holds no block."""

    def idle() -> bool:
        last = model.snapshot
        left = model.under_way or model.requests.leaving or last is None
        return not left and last is not None and (last.running, last.waiting, last.blocks.held) == (0, 0, 0)

    await until(idle)


@pytest.fixture(scope="session")
def reading(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> ModelReading:
    return read_file(tiny_gguf(TinyOptions()).path, CacheFolders.of().create())


@asynccontextmanager
async def started(
    reading: ModelReading, listener: Listener | None = None, policy: RestartPolicy = QUICK, **engine: Any
) -> AsyncIterator[Fleet]:
    """A worker of its own."""
    model = Fleet("tiny", reading, ENGINE | engine, [listener] if listener else [], policy)
    await model.start()
    try:
        yield model
    finally:
        await model.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def worker(runner: asyncio.Runner, reading: ModelReading) -> Iterator[Fleet]:
    """One that the tests of a module share; they use it through ``runner``. At the end it must hold nothing."""
    model = Fleet("tiny", reading, ENGINE)
    runner.run(model.start())
    yield model
    runner.run(until_idle(model))
    runner.run(model.close())
