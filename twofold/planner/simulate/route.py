"""Routing of jobs to replicas.

A router knows how many jobs are open at each replica, as far as their ends were reported, and nothing else of their
state; ``LongestMatch`` also knows their caches."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import ClassVar, Final, Protocol

from twofold.core.errors import ParameterError, did_you_mean
from twofold.planner.simulate.jobs import Replica, SimulatedJob

BOUND: Final = 1.25
"""Multiple of the mean number of open jobs above which a replica gets no job for its cache."""
POINTS: Final = 64
"""Points of each replica on the hash ring."""
PREFIX_TOKENS: Final = 1024
"""Length of the prefix that routes a prompt."""


class Router(Protocol):
    """``watches``: whether it needs the jobs that ended."""

    watches: ClassVar[bool]

    def choose(self, job: SimulatedJob, loads: Sequence[int], replicas: Sequence[Replica]) -> int:
        """The number of a replica. ``loads`` are their open jobs."""
        ...


class RoundRobin:
    """Replicas in turn."""

    watches: ClassVar[bool] = False

    def __init__(self) -> None:
        self._next = 0

    def choose(self, job: SimulatedJob, loads: Sequence[int], replicas: Sequence[Replica]) -> int:  # noqa: ARG002 - the seam
        chosen = self._next
        self._next = (chosen + 1) % len(replicas)
        return chosen


class LeastLoaded:
    """The replica with the fewest open jobs; of several the one after the last choice."""

    watches: ClassVar[bool] = True

    def __init__(self) -> None:
        self._last = -1

    def choose(self, job: SimulatedJob, loads: Sequence[int], replicas: Sequence[Replica]) -> int:  # noqa: ARG002 - the seam
        count, after = len(loads), self._last + 1
        self._last = min(range(count), key=lambda number: (loads[number], (number - after) % count))
        return self._last


class PrefixAffinity:
    """Prompts with a common prefix go to one replica: consistent hashing with bounded loads (Mirrokni et al. 2018).

    Other prompts go to the least loaded.
    """

    watches: ClassVar[bool] = True

    def __init__(self, replicas: int) -> None:
        ring = sorted((_hash(f"{number}/{point}"), number) for number in range(replicas) for point in range(POINTS))
        self._places = [place for place, _ in ring]
        self._owners = [number for _, number in ring]
        self._others = LeastLoaded()

    def choose(self, job: SimulatedJob, loads: Sequence[int], replicas: Sequence[Replica]) -> int:
        if not job.shares:
            return self._others.choose(job, loads, replicas)
        most = _most(loads)
        at = bisect_right(self._places, _hash(_prefix(job)))
        for step in range(len(self._owners)):
            owner = self._owners[(at + step) % len(self._owners)]
            if loads[owner] < most:
                return owner
        raise AssertionError("some replica has no more than the mean")


class LongestMatch:
    """The replica with the longest cached prefix, unless it has too many open jobs; of several the least loaded."""

    watches: ClassVar[bool] = True

    def choose(self, job: SimulatedJob, loads: Sequence[int], replicas: Sequence[Replica]) -> int:
        most = _most(loads)
        able = [number for number, load in enumerate(loads) if load < most]
        return max(able, key=lambda number: (replicas[number].matched(job) if job.shares else 0, -loads[number]))


def make_router(name: str, replicas: int) -> Router:
    """The router of that name. Raises ParameterError with the closest name for any other."""
    makers: Mapping[str, Callable[[], Router]] = {
        "round-robin": RoundRobin,
        "least-loaded": LeastLoaded,
        "affinity": lambda: PrefixAffinity(replicas),
        "longest-match": LongestMatch,
    }
    if name in makers:
        return makers[name]()
    raise ParameterError(f"There is no router {name!r:.40}.", param="router", hint=did_you_mean(name, makers))


def _most(loads: Sequence[int]) -> int:
    """Open jobs from which a replica gets no more for its cache; at least one above the mean."""
    return math.ceil(BOUND * (sum(loads) + 1) / len(loads))


def _prefix(job: SimulatedJob) -> str:
    names, start = [], 0
    for piece in job.pieces:
        if start >= PREFIX_TOKENS:
            break
        names.append(str(piece.key))
        start += piece.tokens
    if start < PREFIX_TOKENS and job.stream < 0:
        names.append(f"session {job.stream}")
    return "/".join(names)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
