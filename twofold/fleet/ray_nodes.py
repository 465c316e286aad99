"""The server's side of a Ray cluster: the process that talks to it (``fleet.ray``), its plans and its restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from twofold.core.errors import ResourceError, TwofoldError
from twofold.core.tasks import start_task
from twofold.fleet.link import END_S, python_command
from twofold.fleet.ray import MAX_PAUSE_S, MIN_PAUSE_S, DriverNote, RayPlan, node_name

log = logging.getLogger("twofold.serve")


class RayNodes:
    """``Cluster``: the driver process of a server, and its restarts. The caller of ``start`` closes it."""

    def __init__(
        self,
        plan: RayPlan,
        join: str,
        models: Iterable[tuple[str, str]],
        certificates: Path | None,
        draft: str | None = None,
    ) -> None:
        folder = None if certificates is None else str(certificates)
        placed = tuple((name, source, frozenset(range(plan.replicas))) for name, source in models)
        self._plan = msgspec.structs.replace(plan, join=join, models=placed, certificates=folder, draft=draft)
        self._waiting: dict[str, dict[int, str]] = {}
        self._input: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    def slots(self, model: str) -> frozenset[int]:
        return next(slots for name, _, slots in self._plan.models if name == model)

    def slot(self, model: str, node: str) -> int | None:
        """The slot of the node with this name; None if the model has no such slot."""
        return next((slot for slot in self.slots(model) if node == node_name(slot)), None)

    def place(self, model: str, slots: Iterable[int]) -> None:
        placed = [(name, source, frozenset(slots) if name == model else had) for name, source, had in self._plan.models]
        self._plan = msgspec.structs.replace(self._plan, models=tuple(placed))
        self._send_plan()

    def problems(self, model: str) -> Mapping[int, str]:
        if self._input is None:
            return dict.fromkeys(self.slots(model), "the connection to the Ray cluster is lost; it is made again")
        return self._waiting.get(model, {})

    def _send_plan(self) -> None:
        if self._input is not None:
            self._input.write(msgspec.json.encode(self._plan) + b"\n")

    async def start(self) -> None:
        """Starts the driver. Raises ResourceError if it cannot reach the cluster."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = start_task(
            self._run(reached), "ray driver", lambda error: None if reached.done() else reached.set_exception(error)
        )
        try:
            await reached
        except TwofoldError:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the driver, which removes the actors. Closing twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, reached: asyncio.Future[None]) -> None:
        """Runs one driver after the other; the first one has to reach the cluster."""
        pause = MIN_PAUSE_S
        while True:
            began = time.monotonic()
            problem = await self._run_driver(reached)
            if not reached.done():
                reached.set_exception(
                    ResourceError(f"Ray cannot be used: {problem}", hint="Is it running at the address of --ray?")
                )
                return
            if time.monotonic() - began > MAX_PAUSE_S:
                pause = MIN_PAUSE_S
            log.warning("the driver of Ray ended (%s); its next start is in %.0f s", problem, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    async def _run_driver(self, reached: asyncio.Future[None]) -> str:
        """Runs a driver until it ends. Returns the last problem that it named."""
        command = python_command("-c", "from twofold.fleet import ray; ray.main()")
        driver = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        problem = "it gave no reason"
        try:
            assert driver.stdin is not None
            assert driver.stdout is not None
            self._input = driver.stdin
            self._send_plan()
            while line := await driver.stdout.readline():
                note = msgspec.json.decode(line, type=DriverNote)
                if note.connected and not reached.done():
                    reached.set_result(None)
                if note.waiting is not None:
                    self._waiting = note.waiting
                if note.problem:
                    problem = note.problem
                    if reached.done():
                        log.warning("Ray: %s", problem)
        finally:
            self._input, self._waiting = None, {}
            await asyncio.shield(asyncio.ensure_future(_end(driver)))
        return problem


async def _end(driver: Process) -> None:
    """Ends a driver by the end of its input; kills it if it takes too long."""
    assert driver.stdin is not None
    driver.stdin.close()
    try:
        async with asyncio.timeout(2 * END_S):
            await driver.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            driver.kill()
        await driver.wait()
