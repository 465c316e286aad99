"""The helper process: one task at a time, fair to callers, within limits; its end is an error or nothing at all."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from twofold.core.child import ChildProcess
from twofold.core.errors import (
    BusyError,
    ModelNotFoundError,
    NotFoundError,
    ParameterError,
    ResourceError,
    TimeLimitError,
)
from twofold.planner.machines.known import known_machines
from twofold.planner.shapes.known import known_shapes
from twofold.server.planning.bodies import PlanRequest
from twofold.server.planning.child import MEMORY, NICENESS
from twofold.server.planning.jobs import MAX_JOBS, MAX_OF_TENANT, PlanJobs
from twofold.server.planning.plain import from_plain, to_plain
from twofold.server.planning.process import FEWER, QUEUED_MS, PlannerProcess, Ticket

SCENARIO: Final = {"model": "llama-3-8b", "hardware": "h100"}
PLAN: Final = {"models": ["llama-3-8b"], "hardware": ["h100"], "rate": 2.0, "input_tokens": 512, "output_tokens": 64}
SMALL: Final = {**PLAN, "tp": [1], "weights": ["stored"], "kv": ["bf16"], "chunks": [512], "simulate": False}


def with_a_process(test: Callable[[PlannerProcess], Awaitable[None]], **options: Any) -> PlannerProcess:
    planner = PlannerProcess(**options)

    async def run() -> None:
        try:
            await test(planner)
        finally:
            planner.close()

    asyncio.run(run())
    return planner


def test_one_process_at_low_priority_serves_all_and_survives_errors() -> None:
    async def test(planner: PlannerProcess) -> None:
        assert planner.pid is None
        found = json.loads(await planner.run("a", "explain", SCENARIO))
        assert found["schema"] == "twofold.explain/1"
        pid = planner.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        with pytest.raises(ParameterError, match="No machine 'h1000'") as refused:
            await planner.run("a", "explain", {**SCENARIO, "hardware": "h1000"})
        assert refused.value.param == "hardware"
        with pytest.raises(ParameterError, match="nothing to explain") as refused:
            await planner.run("a", "curve", {"machines": [{"hardware": "h100"}]})
        assert refused.value.param == "model"
        for path in ("/etc/passwd", "../model.gguf", "~/config.json", "."):
            with pytest.raises(ModelNotFoundError, match="No model"):
                await planner.run("a", "explain", {**SCENARIO, "model": path})
        assert json.loads(await planner.run("b", "curve", {**SCENARIO, "machines": [{"hardware": "h100"}]}))["curves"]
        assert planner.pid == pid
        os.kill(pid, signal.SIGKILL)  # something outside ends it: the next task starts another one
        assert json.loads(await planner.run("a", "explain", SCENARIO)) == found
        assert planner.pid not in (None, pid)

    assert with_a_process(test).started == 2


def test_a_task_beyond_its_time_ends_with_an_error_and_the_next_one_runs() -> None:
    async def test(planner: PlannerProcess) -> None:
        with pytest.raises(TimeLimitError, match=r"more than 0\.3 s of processor time"):
            await planner.run("a", "plan", {**PLAN, "hardware": ["h100", "h200", "l40s", "l4"], "attainment": 0.9})
        assert await planner.run("a", "explain", SCENARIO)

    assert with_a_process(test, seconds=0.3).started == 2


def test_a_task_that_needs_too_much_memory_ends_with_an_error_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(_: str, *arguments: Any, **options: Any) -> ChildProcess:
        return ChildProcess("tests.server.planning.greedy", *arguments, **options)

    async def test(planner: PlannerProcess) -> None:
        for _ in range(2):
            with pytest.raises(ResourceError, match="needs too much memory") as refused:
                await planner.run("a", "plan", SMALL)
            assert refused.value.hint == FEWER
            assert await planner.run("a", "explain", SCENARIO)
        assert MEMORY // 2 < peak(planner.pid) < MEMORY * 1.5

    monkeypatch.setattr("twofold.server.planning.process.ChildProcess", started)
    assert with_a_process(test).started == 1


def peak(pid: int | None) -> int:
    """The most bytes of address space that a process has had."""
    found = re.search(r"VmPeak:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_an_idle_process_ends() -> None:
    async def test(planner: PlannerProcess) -> None:
        await planner.run("a", "explain", SCENARIO)
        for _ in range(500):
            if planner.pid is None:
                return
            await asyncio.sleep(0.01)
        pytest.fail("the process is still there")

    with_a_process(test, idle_s=0.01)


def test_a_caller_with_many_tasks_delays_another_one_by_few(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def ask(_process: PlannerProcess, text: str, _ticket: Ticket) -> bytes:
        order.append(json.loads(text)["values"]["by"])
        return b""

    monkeypatch.setattr(PlannerProcess, "_ask", ask)

    async def test(planner: PlannerProcess) -> None:
        many = [asyncio.create_task(planner.run("a", "plan", {"by": "a"})) for _ in range(10)]
        await asyncio.sleep(0)
        one = asyncio.create_task(planner.run("b", "explain", {"by": "b"}))
        with pytest.raises(BusyError, match="Too many calculations are waiting"):
            await asyncio.gather(*(planner.run("a", "plan", {"by": "a"}) for _ in range(QUEUED_MS // 2000)))
        await asyncio.gather(*many, one)

    with_a_process(test)
    assert order.index("b") <= 2


def test_a_cancelled_task_stops_or_never_starts() -> None:
    async def test(planner: PlannerProcess) -> None:
        await planner.run("a", "explain", SCENARIO)
        ticket = Ticket()
        running = asyncio.create_task(planner.run("a", "plan", PLAN, ticket))
        waiting = asyncio.create_task(planner.run("a", "plan", PLAN))
        while not ticket.running:
            await asyncio.sleep(0.001)
        waiting.cancel()
        planner.cancel(ticket)
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert await planner.run("a", "explain", SCENARIO)

    assert with_a_process(test).started == 2


def test_plans_are_jobs_of_their_tenant() -> None:
    async def test(planner: PlannerProcess) -> None:
        jobs = PlanJobs(planner)
        job = jobs.create("red", "a", SMALL)
        assert job.status in ("queued", "running")
        for wrong in (("blue", job.id), ("red", "plan_0")):
            with pytest.raises(NotFoundError, match="no plan"):
                jobs.get(*wrong)
        while (seen := jobs.get("red", job.id)).status in ("queued", "running"):
            await asyncio.sleep(0.01)
        assert seen.status == "done"
        assert json.loads(bytes(seen.result))["plans"]  # type: ignore[call-overload]
        failed = jobs.create("red", "a", {**SMALL, "slo": {"tpot": 1e-9}})
        while (seen := jobs.get("red", failed.id)).status in ("queued", "running"):
            await asyncio.sleep(0.01)
        assert seen.status == "failed"
        assert seen.error is not None
        assert "None of 2 configurations" in seen.error.message
        jobs.delete("red", job.id)
        with pytest.raises(NotFoundError):
            jobs.delete("red", job.id)
        for _ in range(MAX_OF_TENANT):
            jobs.create("red", "a", SMALL)  # in place of those that ended
        with pytest.raises(BusyError, match=f"{MAX_OF_TENANT} plans have not ended"):
            jobs.create("red", "a", SMALL)
        for tenant in ("green", "white", "black"):
            for _ in range(MAX_OF_TENANT):
                jobs.create(tenant, "a", SMALL)
        assert len(jobs._jobs) == MAX_JOBS
        jobs.create("blue", "a", SMALL)  # others have more
        for id, each in list(jobs._jobs.items()):
            jobs.delete(each.tenant, id)

    with_a_process(test)


def test_descriptions_survive_as_plain_data() -> None:
    for each in (*known_shapes().values(), *known_machines().values()):
        assert from_plain(json.loads(json.dumps(to_plain(each)))) == each


def test_too_many_configurations_are_refused() -> None:
    with pytest.raises(ParameterError, match="1,920 configurations are too many"):
        PlanRequest.read({**PLAN, "models": ["a"] * 4, "tp": [1, 2, 3, 4, 5], "text": "prose", "draft": "b"})
