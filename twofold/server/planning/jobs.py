"""Plans as jobs: they take seconds, so a caller asks for one and looks for its result later.

Jobs are in memory, of each tenant and of all tenants a few: the oldest that ended are dropped. No tenant keeps another
one out that has fewer than its share. A restart forgets them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Raw

from twofold.core.errors import BusyError, NotFoundError, TwofoldError, quoted
from twofold.server.planning.bodies import Values
from twofold.server.planning.process import PlannerProcess, Ticket
from twofold.server.planning.replies import PlanError, PlanJobReply, PlanStatus

MAX_JOBS: Final = 64
MAX_OF_TENANT: Final = 16
RETRY_S: Final = 5.0


@dataclass(slots=True)
class PlanJob:
    """A plan of a tenant."""

    id: str
    tenant: str
    created: float
    ticket: Ticket = field(default_factory=Ticket)
    task: asyncio.Task[bytes] | None = None

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def status(self) -> PlanStatus:
        task = self.task
        if task is None or not task.done():
            return "running" if self.ticket.running else "queued"
        return "failed" if task.cancelled() or task.exception() is not None else "done"

    def reply(self) -> PlanJobReply:
        status = self.status
        error = None
        if status == "failed" and self.task is not None and not self.task.cancelled():
            cause = self.task.exception()
            error = PlanError(message="Internal server error.", hint="The server log has the cause.")
            if isinstance(cause, TwofoldError):
                error = PlanError(message=str(cause), hint=cause.hint)
        result: Any = Raw(self.task.result()) if status == "done" and self.task is not None else None
        return PlanJobReply(id=self.id, status=status, created_at=self.created, error=error, result=result)


class PlanJobs:
    """All jobs, by id."""

    def __init__(self, planner: PlannerProcess) -> None:
        self._planner = planner
        self._jobs: OrderedDict[str, PlanJob] = OrderedDict()

    def create(self, tenant: str, caller: str, values: Values) -> PlanJobReply:
        """Starts a plan. Raises BusyError if too many have not ended."""
        own = [job for job in self._jobs.values() if job.tenant == tenant]
        self._make_room(MAX_OF_TENANT, own)
        tenants = {tenant, *(job.tenant for job in self._jobs.values())}
        if len(own) >= MAX_JOBS // len(tenants):  # one with fewer than its share is admitted in any case
            self._make_room(MAX_JOBS, list(self._jobs.values()))
        job = PlanJob(f"plan_{secrets.token_hex(12)}", tenant, time.time())
        job.task = asyncio.create_task(self._planner.run(caller, "plan", values, job.ticket))
        job.task.add_done_callback(_retrieve)
        self._jobs[job.id] = job
        return job.reply()

    def _make_room(self, limit: int, jobs: list[PlanJob]) -> None:
        if len(jobs) < limit:
            return
        oldest = next((job for job in jobs if job.ended), None)
        if oldest is None:
            raise BusyError(
                f"{limit} plans have not ended yet.", retry_after_s=RETRY_S, hint="Wait for one, or delete one."
            )
        del self._jobs[oldest.id]

    def get(self, tenant: str, id: str) -> PlanJobReply:
        """Raises NotFoundError."""
        return self._find(tenant, id).reply()

    def delete(self, tenant: str, id: str) -> None:
        """Drops a job, and stops it if it has not ended. Raises NotFoundError."""
        job = self._find(tenant, id)
        del self._jobs[id]
        self._planner.cancel(job.ticket)
        if job.task is not None:
            job.task.cancel()

    def _find(self, tenant: str, id: str) -> PlanJob:
        job = self._jobs.get(id)
        if job is None or job.tenant != tenant:
            raise NotFoundError(
                f"There is no plan {quoted(id)}.", hint=f"The last {MAX_OF_TENANT} are kept until the server ends."
            )
        return job


def _retrieve(task: asyncio.Task[bytes]) -> None:
    """Marks the error of a job as seen: the reader of the job gets it."""
    if not task.cancelled():
        task.exception()
