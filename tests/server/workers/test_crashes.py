"""Worker processes that end, hang or do not start: the fate of their requests, and restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.workers.conftest import (
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
from twofold.server.models.reading import ModelReading
from twofold.server.workers.client import WorkerModel, WorkerStream

SOON_S = 1.0
"""Streams hear of a crash within this time, and a new process is there by its load time and twice this."""


def pid_of(model: WorkerModel) -> int:
    pid = model.pid
    assert pid is not None
    return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_kill_ends_only_streams_that_have_begun(reading: ModelReading) -> None:
    listener = Listener()

    async def crash() -> tuple[list[RequestOutput], float]:
        async with started(reading, listener) as model:
            running = [model.run(named(job_of(n, LONG), f"running-{n}")) for n in range(4)]
            for stream in running:
                await taken(stream, 2)
            waiting = [asyncio.create_task(whole(model, job_of(n), f"waiting-{n}")) for n in range(4, 9)]
            await asyncio.sleep(0)
            began = time.perf_counter()
            os.kill(pid_of(model), signal.SIGKILL)
            for stream in running:
                with pytest.raises(WorkerError, match="signal 9"):
                    await taken(stream, 400)
            broken_s = time.perf_counter() - began
            assert model.state == "loading"
            answers = await asyncio.gather(*waiting)
            assert time.perf_counter() - began < 2 * SOON_S + 2.0
            await until_idle(model)
            return answers, broken_s

    answers, broken_s = asyncio.run(crash())
    assert broken_s < SOON_S
    assert listener.restarts == ["tiny"]
    with LLM(reading.path, **ENGINE) as llm:
        for number, answer in enumerate(answers, 4):
            ids = list(job_of(number).token_ids)
            assert llm.generate([{"prompt_token_ids": ids}], SHORT)[0].outputs == answer.outputs


class Doomed(WorkerModel):
    """Its process is killed whenever it is given a request."""

    gave = 0

    def _submit(self, stream: WorkerStream) -> None:
        os.kill(pid_of(self), signal.SIGKILL)  # first, or it may be done before the signal arrives
        super()._submit(stream)
        self.gave += 1


def test_a_request_is_sent_to_at_most_three_processes(reading: ModelReading) -> None:
    async def crash() -> int:
        model = Doomed("tiny", reading, ENGINE, policy=QUICK)
        await model.start()
        with pytest.raises(WorkerError, match="signal 9"):
            await whole(model, job_of(2), "poison")
        await model.close()
        return model.gave

    assert asyncio.run(crash()) == 3


def test_processes_that_end_repeatedly_are_not_restarted(reading: ModelReading) -> None:
    async def crash() -> None:
        async with started(reading, policy=replace(QUICK, ends=2)) as model:
            os.kill(pid_of(model), signal.SIGKILL)
            await until(lambda: model.state == "loading")
            await until(lambda: model.pid is not None, 10)
            os.kill(pid_of(model), signal.SIGKILL)
            await until(lambda: model.state == "failed", 10)
            assert isinstance(model.error, WorkerError)
            with pytest.raises(WorkerError, match="is not available"):
                await whole(model, job_of(1), "late")

    asyncio.run(crash())


def test_a_process_that_hangs_is_ended_and_another_one_started(reading: ModelReading) -> None:
    async def hang() -> RequestOutput:
        async with started(reading) as model:
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
        await WorkerModel("broken", replace(reading, path=path), ENGINE | engine, policy=QUICK).start()

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
from twofold.server.models.reading import read_file
from twofold.server.workers.client import WorkerModel

async def serve():
    reading = read_file(Path(sys.argv[1]), CacheFolders.of().create())
    model = WorkerModel("tiny", reading, {"kv_cache_memory_bytes": 1 << 23, "swap_space_bytes": 0})
    await model.start()
    print(model.pid, flush=True)
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
        model = WorkerModel("tiny", reading, ENGINE, policy=QUICK)
        starting = asyncio.create_task(model.start())
        await until(lambda: model.pid is not None)
        os.kill(pid_of(model), signal.SIGKILL)
        with pytest.raises(WorkerError, match="signal 9"):
            await starting

    asyncio.run(kill())


def test_a_cancelled_load_leaves_no_process(reading: ModelReading) -> None:
    async def leave() -> int:
        model = WorkerModel("tiny", reading, ENGINE, policy=QUICK)
        starting = asyncio.create_task(model.start())
        await until(lambda: model.pid is not None)
        pid = pid_of(model)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return pid

    assert not alive(asyncio.run(leave()))
