"""Worker processes that end, hang or do not start: the fate of their requests, and restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import pytest

from tests.fleet.conftest import (
    ENGINE,
    LONG,
    QUICK,
    SHORT,
    Listener,
    job_of,
    named,
    started,
    taken,
    until,
    until_idle,
    whole,
)
from twofold.core.errors import FormatError, ParameterError, ResourceError, WorkerError
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.fleet import link
from twofold.fleet.fleet import Fleet
from twofold.fleet.link import WorkerLink
from twofold.fleet.reading import ModelReading
from twofold.fleet.routing.router import Choice, RoutedReplica, RoutedRequest
from twofold.fleet.streams import MAX_ENDS


def pid_of(model: Fleet) -> int:
    pid = model.replicas[0].pid
    assert pid is not None
    return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_requests_go_on_after_a_kill(reading: ModelReading) -> None:
    """Streams, requests that wait and a request without a stream, on one replica that is restarted."""
    listener = Listener()

    async def crash() -> list[RequestOutput]:
        async with started(reading, listener) as model:
            jobs = [job_of(n, LONG) for n in range(4)] + [replace(job_of(4, LONG), stream=False)]
            jobs += [job_of(n) for n in range(5, 9)]
            running = [asyncio.create_task(whole(model, job, f"job-{n}")) for n, job in enumerate(jobs)]
            await until(lambda: model.under_way == len(jobs))
            await until(lambda: all(model.requests.streams[f"job-{n}"].delivered.tokens > 5 for n in range(4)))
            os.kill(pid_of(model), signal.SIGKILL)
            await until(lambda: model.state == "loading")
            outputs = await asyncio.gather(*running)
            await until_idle(model)
            return outputs

    outputs = asyncio.run(crash())
    assert listener.restarts == ["tiny/0"]
    with LLM(reading.path, **ENGINE) as llm:
        for number, output in enumerate(outputs):
            params = LONG if number < 5 else SHORT
            ids = list(job_of(number).token_ids)
            alone = llm.generate([{"prompt_token_ids": ids}], params)[0]
            assert alone.outputs == output.outputs
            assert alone.report.output_tokens == output.report.output_tokens


class Ending:
    """A router whose first ``most`` choices end the process of the replica with a signal."""

    name: ClassVar[str] = "ending"
    watches: ClassVar[bool] = False
    predicts: ClassVar[bool] = False

    def __init__(self, number: signal.Signals, most: int) -> None:
        self.number, self.most = number, most
        self.model: Fleet | None = None
        self.gave = 0

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice:
        assert request.tokens
        assert len(replicas) == 1
        assert self.model is not None
        if self.gave < self.most:
            os.kill(pid_of(self.model), self.number)  # before the request is sent, or it may be done before that
            self.gave += 1
        return Choice(0, "the only one")


@asynccontextmanager
async def ending(reading: ModelReading, number: signal.Signals, most: int) -> AsyncIterator[tuple[Fleet, Ending]]:
    router = Ending(number, most)
    model = router.model = Fleet("tiny", reading, ENGINE, policy=replace(QUICK, ends=10), router=router)
    await model.start()
    try:
        with patch.object(model.requests.line, "only", return_value=None):  # a replica that is alone is not chosen
            yield model, router
    finally:
        await model.close()


def test_a_request_that_crashes_three_processes_fails(reading: ModelReading) -> None:
    async def crash() -> int:
        async with ending(reading, signal.SIGSEGV, 10) as (model, router):
            with pytest.raises(WorkerError, match="signal 11"):
                await whole(model, job_of(2), "unlucky")
            return router.gave

    assert asyncio.run(crash()) == MAX_ENDS


def test_kills_from_outside_are_not_the_fault_of_a_request(reading: ModelReading) -> None:
    async def kill() -> tuple[int, RequestOutput]:
        async with ending(reading, signal.SIGKILL, MAX_ENDS + 1) as (model, router):
            output = await whole(model, job_of(2), "unlucky")
            return router.gave, output

    ends, output = asyncio.run(kill())
    assert ends == MAX_ENDS + 1
    assert output.finished


def test_a_process_that_the_kernel_kills_for_its_memory_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = tmp_path / "vmstat"
    monkeypatch.setattr(link, "VM_COUNTERS", counters)

    async def ends(kills: int) -> bool:
        counters.write_text("nr_free_pages 12\noom_kill 5\n")
        worker = await WorkerLink.open(lambda _: None)
        counters.write_text(f"nr_free_pages 12\noom_kill {5 + kills}\n")
        os.kill(worker.pid, signal.SIGKILL)
        await worker.ended.wait()
        return (await worker.close()).by_itself

    assert asyncio.run(ends(1))
    assert not asyncio.run(ends(0))


def test_processes_that_end_repeatedly_are_not_restarted(reading: ModelReading) -> None:
    async def crash() -> None:
        async with started(reading, policy=replace(QUICK, ends=2)) as model:
            os.kill(pid_of(model), signal.SIGSEGV)
            await until(lambda: model.state == "loading")
            await until(lambda: model.replicas[0].pid is not None)
            os.kill(pid_of(model), signal.SIGSEGV)
            await until(lambda: model.state == "failed")
            assert isinstance(model.error, WorkerError)
            with pytest.raises(WorkerError, match="is not available"):
                await whole(model, job_of(1), "late")

    asyncio.run(crash())


def test_a_process_is_restarted_however_often_it_is_killed(reading: ModelReading) -> None:
    async def kill() -> RequestOutput:
        async with started(reading, policy=replace(QUICK, ends=2)) as model:
            for _ in range(4):
                pid = pid_of(model)
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: model.replicas[0].pid not in {None, pid})  # type: ignore[misc]
            return await whole(model, job_of(1), "after")

    assert asyncio.run(kill()).finished


def test_a_process_that_hangs_is_ended_and_another_one_started(reading: ModelReading) -> None:
    async def hang() -> RequestOutput:
        async with started(reading, policy=replace(QUICK, idle_s=0.5)) as model:
            pid = pid_of(model)
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: not alive(pid))
            return await whole(model, job_of(1), "after")

    assert asyncio.run(hang()).finished


def test_workers_ignore_interrupts(reading: ModelReading) -> None:
    async def interrupt() -> RequestOutput:
        async with started(reading) as model:
            os.kill(pid_of(model), signal.SIGINT)
            os.kill(pid_of(model), signal.SIGTERM)
            await asyncio.sleep(0.05)
            return await whole(model, job_of(1), "after")

    assert asyncio.run(interrupt()).finished


def test_closing_ends_the_process_and_what_is_under_way(reading: ModelReading) -> None:
    async def close() -> int:
        async with started(reading) as model:
            pid = pid_of(model)
            stream = model.run(named(job_of(1, LONG), "running"))
            await anext(stream)
            await model.close()
            await model.close()
            with pytest.raises(ResourceError, match="unloaded"):
                await taken(stream, 400)
            with pytest.raises(ResourceError):
                await whole(model, job_of(1), "late")
            return pid

    assert not alive(asyncio.run(close()))


def test_a_failed_load_raises_its_error(reading: ModelReading, tmp_path: Path) -> None:
    async def load(path: Path, **engine: object) -> None:
        await Fleet("broken", replace(reading, path=path), ENGINE | engine, policy=QUICK).start()

    cut = tmp_path / "cut.gguf"
    cut.write_bytes(reading.path.read_bytes()[:5000])
    with pytest.raises(FormatError):
        asyncio.run(load(cut))
    with pytest.raises(ParameterError) as caught:
        asyncio.run(load(reading.path, max_model_len=100_000))
    assert caught.value.param == "max_model_len"


SERVER = """
import asyncio, sys
from pathlib import Path
from twofold.host.paths import CacheFolders
from twofold.fleet.reading import read_file
from twofold.fleet.fleet import Fleet

async def serve():
    reading = read_file(Path(sys.argv[1]), CacheFolders.of().create())
    model = Fleet("tiny", reading, {"kv_cache_memory_bytes": 1 << 23, "swap_space_bytes": 0})
    await model.start()
    print(model.replicas[0].pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(serve())
"""


def test_a_worker_does_not_outlive_its_server(reading: ModelReading) -> None:
    command = [sys.executable, "-c", SERVER, str(reading.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert alive(pid)
        server.kill()
        server.wait()
    asyncio.run(until(lambda: not alive(pid)))


def test_a_process_that_ends_while_loading_is_not_restarted(reading: ModelReading) -> None:
    async def kill() -> None:
        model = Fleet("tiny", reading, ENGINE, policy=QUICK)
        starting = asyncio.create_task(model.start())
        await until(lambda: model.replicas[0].pid is not None)
        os.kill(pid_of(model), signal.SIGKILL)
        with pytest.raises(WorkerError, match="signal 9"):
            await starting

    asyncio.run(kill())


def test_a_cancelled_load_leaves_no_process(reading: ModelReading) -> None:
    async def leave() -> int:
        model = Fleet("tiny", reading, ENGINE, policy=QUICK)
        starting = asyncio.create_task(model.start())
        await until(lambda: model.replicas[0].pid is not None)
        pid = pid_of(model)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return pid

    assert not alive(asyncio.run(leave()))
