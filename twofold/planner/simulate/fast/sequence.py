"""A job on its way through a replica in fast mode."""

from __future__ import annotations

from twofold.planner.simulate.fast.cache import JobBlocks
from twofold.planner.simulate.jobs import SimulatedJob


class Running:
    """Cursors as of ``sched.sequence``: computed < known ≤ limit. Of one that generates, ``since`` is the step at which
    it entered and the cursors are as they were then; else it is −1."""

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "cached",
        "computed",
        "first_s",
        "holding",
        "job",
        "known",
        "limit",
        "past",
        "preemptions",
        "since",
    )

    def __init__(self, job: SimulatedJob, arrival_s: float) -> None:
        self.job = job
        self.arrival_s = arrival_s
        self.known = job.given + 1 if job.given else job.prompt
        self.limit = job.prompt + job.output
        self.computed = 0
        self.cached = 0
        self.since = -1
        self.holding: JobBlocks | None = None
        self.admitted_s: float | None = None
        self.first_s: float | None = None
        self.preemptions = 0
        self.past: list[bool] = []

    @property
    def key(self) -> tuple[float, int]:
        """Its place in every order: first come, first served."""
        return self.arrival_s, self.job.number
