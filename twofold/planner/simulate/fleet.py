"""Many replicas on one virtual clock: jobs are routed to them, and jobs that follow from ended ones are sent.

Routers (``fleet.routing``) know how many jobs are open at each replica, as far as their ends were reported, what is in
its cache, and the work before it. If ended jobs affect nothing (an open load, and a router that ignores open jobs), the
replicas run independently. Otherwise they run together, each at most to the next step in which a job may end
(``Replica.next_s``).

With disaggregation (Splitwise, Patel et al. 2024; DistServe, Zhong et al. 2024) a prefill replica computes the prompt
and the first token; then keys and values are sent to a decode replica, which continues."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from twofold.bench.load.base import Outcome
from twofold.core.report import StoreCounts
from twofold.engine.scheduler.forecast import WorkAhead
from twofold.fleet.routing.router import Choice, LeastLoaded, RoutedRequest, Router
from twofold.planner.simulate.jobs import JobColumns, JobResult, Replica, ReplicaWork, SimulatedJob

ROUND: Final = 4096
"""Jobs submitted at a time to replicas that run independently."""


@dataclass(frozen=True, slots=True)
class Handover:
    """Decode replicas, and the seconds of a transfer of keys and values to them, by number of tokens."""

    replicas: Sequence[Replica]
    seconds: Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Simulated:
    """Results of jobs, and the work of each replica; with disaggregation prefill replicas are first. ``stored``: the
    counts of each KV store."""

    jobs: JobColumns
    work: tuple[ReplicaWork, ...]
    prefill_replicas: int
    stored: tuple[StoreCounts, ...] = ()


class Source(Protocol):
    """A source of jobs: ``Jobs`` of a load, or ``IndependentJobs``."""

    @property
    def follows(self) -> bool:
        """Whether jobs can follow from the ends of others."""
        ...

    @property
    def max_open(self) -> int | None: ...

    def begin(self) -> Iterator[SimulatedJob]:
        """The jobs that follow from no other, ascending in time."""
        ...

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> SimulatedJob | None:
        """The job that follows from the end of another, or None."""
        ...


def simulate(
    jobs: Source,
    replicas: Sequence[Replica],
    router: Router,
    handover: Handover | None = None,
    *,
    delay_s: float = 0.0,
) -> Simulated:
    """Runs all jobs to their ends. A job reaches its replica ``delay_s`` after it was sent."""
    columns = JobColumns()
    watches = router.watches and len(replicas) > 1
    independent = not (watches or jobs.follows or jobs.max_open is not None or handover)
    if independent:
        _run_independently(jobs.begin(), replicas, router, columns, delay_s)
    else:
        _OrderedRun(jobs, replicas, router, handover, columns, delay_s).run()
    every = [*replicas, *(handover.replicas if handover else ())]
    stored = tuple(each.stored for each in every if each.stored is not None)
    return Simulated(columns, tuple(each.work for each in every), len(replicas), stored)


def _run_independently(
    jobs: Iterable[SimulatedJob], replicas: Sequence[Replica], router: Router, columns: JobColumns, delay_s: float
) -> None:
    members = [_Member(replica) for replica in replicas]
    for number, job in enumerate(jobs, 1):
        replicas[_chosen(router, job, members).replica].submit(job, job.due_s + delay_s)
        if number % ROUND == 0:
            _collect(replicas, columns, job.due_s + delay_s)
    _collect(replicas, columns, math.inf)


def _collect(replicas: Sequence[Replica], columns: JobColumns, until_s: float) -> None:
    for number, replica in enumerate(replicas):
        replica.advance(until_s)
        for done in replica.done:
            columns.add(done, number)
        replica.done.clear()


class _Member:
    """A replica in the eyes of a router, with the number of its open jobs."""

    ready = True

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.open = 0
        self.now = 0.0

    def ahead(self) -> WorkAhead:
        return self.replica.ahead(self.now)


def _chosen(router: Router, job: SimulatedJob, members: Sequence[_Member]) -> Choice:
    def matched() -> list[int]:
        return [member.replica.matched(job) if job.shares else 0 for member in members]

    choice = router.choose(RoutedRequest(job.prompt, matched), members)
    assert choice is not None, "simulated replicas are always ready"
    return choice


class _Pool:
    """Replicas that a router chooses from, with a heap of the times to which they advance next."""

    def __init__(self, replicas: Sequence[Replica], router: Router) -> None:
        self.replicas, self._router = replicas, router
        self.members = [_Member(replica) for replica in replicas]
        self._due: list[tuple[float, int]] = []
        self._next = [math.inf] * len(replicas)

    @property
    def next_s(self) -> float:
        while self._due and self._next[self._due[0][1]] != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def submit(self, job: SimulatedJob, at_s: float) -> Iterator[tuple[JobResult, int]]:
        """Submits a job to a replica, and returns results with the replica's number."""
        for member in self.members:
            member.now = at_s
        choice = _chosen(self._router, job, self.members)
        number = choice.replica
        replica = self.replicas[number]
        replica.advance(at_s)
        replica.submit(job._replace(matched=choice.cached or 0), at_s)
        self.members[number].open += 1
        return self._drain(number)

    def advance(self) -> Iterator[tuple[JobResult, int]]:
        """Advances the replica whose time is next, and returns results with its number."""
        time, number = heappop(self._due)
        self.replicas[number].advance(time)
        return self._drain(number)

    def _drain(self, number: int) -> Iterator[tuple[JobResult, int]]:
        replica = self.replicas[number]
        ended, replica.done = replica.done, []
        self._next[number] = replica.next_s
        if self._next[number] < math.inf:
            heappush(self._due, (self._next[number], number))
        return ((done, number) for done in ended)


class _OrderedRun:
    """A run that handles ends in the order of their times.

    _held      jobs that are due while ``max_open`` jobs are open
    _halfway   jobs with separate prefill and decode that have not ended, with the result of their prefill
    """

    def __init__(
        self,
        jobs: Source,
        replicas: Sequence[Replica],
        router: Router,
        handover: Handover | None,
        columns: JobColumns,
        delay_s: float,
    ) -> None:
        self._jobs, self._columns, self._handover, self._delay_s = jobs, columns, handover, delay_s
        self._first = _Pool(replicas, router)
        self._second = _Pool(handover.replicas, LeastLoaded()) if handover else None
        self._pending = jobs.begin()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial = count()
        self._open = 0
        self._held: deque[SimulatedJob] = deque()
        self._halfway: dict[int, tuple[SimulatedJob, JobResult]] = {}

    def run(self) -> None:
        self._schedule_next()
        pools = [pool for pool in (self._first, self._second) if pool]
        while True:
            pool = min(pools, key=lambda pool: pool.next_s)
            time = self._events[0][0] if self._events else math.inf
            if pool.next_s < time:
                self._schedule_ends(pool, pool.advance())
            elif self._events:
                time, _, event = heappop(self._events)
                event(time)
            else:
                return

    def _schedule_next(self) -> None:
        """Schedules the next job that follows from no other."""
        job = next(self._pending, None)
        if job is not None:
            self._schedule(job.due_s, lambda _: self._arrive_and_schedule_next(job))

    def _arrive_and_schedule_next(self, job: SimulatedJob) -> None:
        self._arrive(job)
        self._schedule_next()

    def _arrive(self, job: SimulatedJob) -> None:
        if self._jobs.max_open is not None and self._open >= self._jobs.max_open:
            self._held.append(job)
        else:
            self._open += 1
            self._send(job, job.due_s)

    def _send(self, job: SimulatedJob, at_s: float) -> None:
        if self._delay_s:
            self._schedule(at_s + self._delay_s, lambda time: self._submit(job, time))
        else:
            self._submit(job, at_s)

    def _submit(self, job: SimulatedJob, at_s: float) -> None:
        if self._second is not None and job.output > 1:
            self._halfway[job.number] = job, JobResult(job, None, None, None)
            job = job._replace(output=1)
        self._schedule_ends(self._first, self._first.submit(job, at_s))

    def _schedule_ends(self, pool: _Pool, ended: Iterator[tuple[JobResult, int]]) -> None:
        for done, number in ended:
            time = done.job.due_s if done.last_s is None else done.last_s
            self._schedule(time, lambda time, done=done, number=number: self._end(pool, done, number, time))  # type: ignore[misc]

    def _end(self, pool: _Pool, done: JobResult, number: int, time: float) -> None:
        pool.members[number].open -= 1
        before = self._halfway.pop(done.job.number, None)
        if before is None:
            self._ended(done, number, time)
        elif pool is self._first:
            self._hand_over(before[0], done, number, time)
        else:
            job, prefilled = before
            preemptions = prefilled.preemptions + done.preemptions
            whole = prefilled._replace(job=job, last_s=done.last_s, preemptions=preemptions)
            if done.last_s is None:
                whole = JobResult(job, None, None, None)
            self._ended(whole, number, time)

    def _hand_over(self, job: SimulatedJob, done: JobResult, number: int, time: float) -> None:
        assert self._handover is not None
        if done.last_s is None:
            self._ended(done._replace(job=job), number, time)
            return
        self._halfway[job.number] = job, done
        continued = job._replace(prefilled=job.prompt)
        self._schedule(time + self._handover.seconds(job.prompt), lambda time: self._continue(continued, time))

    def _continue(self, job: SimulatedJob, time: float) -> None:
        assert self._second is not None
        self._schedule_ends(self._second, self._second.submit(job, time))

    def _ended(self, done: JobResult, number: int, time: float) -> None:
        self._columns.add(done, number)
        self._open -= 1
        following = self._jobs.ended(done.job, "failed" if done.last_s is None else "ok", time)
        if following is not None:
            self._schedule(max(time, following.due_s), lambda _: self._arrive(following))
        if self._held:
            self._open += 1
            self._send(self._held.popleft(), time)

    def _schedule(self, time: float, event: Callable[[float], None]) -> None:
        heappush(self._events, (time, next(self._serial), event))
