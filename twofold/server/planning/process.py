"""The planner for callers of the server: one process at low priority, so that no stream is delayed.

The process starts with the first task and ends when it was idle. It computes one task at a time; callers share it
fairly (``Lane``, with milliseconds as sizes), and the tasks of one can hold at most half of the queue. A task that
takes too long or too much memory ends with an error, and so does one whose process ended twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import orjson

from twofold.core.child import ChildEndedError, ChildProcess
from twofold.core.errors import ModelNotFoundError, ParameterError, ResourceError, TimeLimitError, TwofoldError
from twofold.server.planning.bodies import Values
from twofold.server.planning.child import DONE, MEMORY, REFUSED, TOO_LARGE
from twofold.server.pool import ByteBudget, Lane

log = logging.getLogger("twofold.serve")

SECONDS: Final = 10.0
"""Maximum processor time of a task."""
IDLE_S: Final = 30.0
QUEUED_MS: Final = 60_000
COSTS_MS: Final[Mapping[str, int]] = {"explain": 100, "curve": 100, "price": 50, "plan": 2000, "scale": 2000}
"""Estimates, by which callers share the process; a plan is worth many explanations."""
FEWER: Final = "Ask for less at once: fewer machines, batches, chunks or alternatives."


@dataclass(slots=True)
class Ticket:
    """One task: ``running`` on the process now; ``cancelled`` by its caller."""

    running: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class PlannerProcess:
    """The process and its queue. Used on the event loop; ``close`` it before the loop ends.

    started   number of processes started so far
    """

    seconds: float = SECONDS
    idle_s: float = IDLE_S
    started: int = 0
    _lane: Lane = field(
        default_factory=lambda: Lane("planner", 1, ByteBudget(QUEUED_MS, full="Too many calculations are waiting."))
    )
    _child: ChildProcess | None = None
    _resting: asyncio.TimerHandle | None = None

    async def run(self, caller: str, task: str, values: Values, ticket: Ticket | None = None) -> bytes:
        """The document of a task in JSON.

        Raises ParameterError and ModelNotFoundError for values that the planner refuses, BusyError if too much is
        waiting, TimeLimitError, and ResourceError if the process ended or needed too much memory.
        """
        text = orjson.dumps({"task": task, "values": values}).decode()
        ticket = ticket or Ticket()
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        try:
            return await self._lane.run(caller, COSTS_MS[task], partial(self._ask, text, ticket))
        except asyncio.CancelledError:
            ticket.cancelled = True  # one that runs goes on: a new process would cost more
            raise
        finally:
            if self._lane.idle:
                self._resting = asyncio.get_running_loop().call_later(self.idle_s, self._rest)

    def cancel(self, ticket: Ticket) -> None:
        """Stops a task: one that runs ends with its process."""
        ticket.cancelled = True
        if ticket.running and self._child is not None:
            self._child.popen.kill()

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        child = self._child
        return None if child is None else child.popen.pid

    def close(self) -> None:
        """Ends the process and its thread."""
        if self._resting is not None:
            self._resting.cancel()
        if self._child is not None:
            self._child.popen.kill()
        self._lane.close()

    def _rest(self) -> None:
        self._resting = None
        if self._lane.idle:
            self._end()

    def _ask(self, text: str, ticket: Ticket) -> bytes:
        """The reply to a task; on the lane's thread. If something outside ended the process, another one is asked."""
        for last in (False, True):
            if ticket.cancelled:
                break
            child = self._child = self._child or self._start()
            ticket.running = True
            try:
                kind, reply = child.ask(text)
                if kind == DONE:
                    return reply.encode()
                raise _error(kind, reply)
            except ChildEndedError as ended:
                self._end()
                if ended.timed_out:
                    raise TimeLimitError(
                        f"The calculation was stopped: it takes more than {self.seconds:g} s of processor time.",
                        hint=FEWER,
                    ) from None
                if last or ended.by_work:
                    log.error("the helper process ended: status %s", ended.status)
            finally:
                ticket.running = False
        raise ResourceError("The process that computes this ended.", hint="Retry.")

    def _start(self) -> ChildProcess:
        self.started += 1
        return ChildProcess(
            "twofold.server.planning.child",
            [str(self.seconds)],
            name="that computes explanations and plans",
            hint=f"It needs up to {MEMORY >> 20} MiB of memory.",
        )

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()


def _error(kind: str, reply: str) -> TwofoldError:
    """The error that the process described."""
    if kind == TOO_LARGE:
        return ResourceError("The calculation was stopped: it needs too much memory.", hint=FEWER)
    if kind != REFUSED:
        log.error("a calculation failed: %s", reply)
        return TwofoldError("The calculation failed.", hint="The server log has the cause.")
    fault = json.loads(reply)
    message, hint, param = fault["message"], fault["hint"], fault["param"]
    if fault["unknown_model"]:
        return ModelNotFoundError(message, hint=hint)
    return ParameterError(message, param=param or "scenario", hint=hint)
