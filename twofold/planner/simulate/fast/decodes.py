"""All decoding sequences as a few sums: each step adds one token to each of them.

A sequence that entered at step e with k known tokens has k + s − e at step s. So the steps at which it ends, grows
beyond a window or needs a new block are known when it enters. Where step times grow linearly with each step, any number
of steps is one computation: ``stretch``, ``LinearStepTimes`` and ``steps_begun``."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.fast.cache import JobBlocks
from twofold.planner.simulate.jobs import SimulatedJob
from twofold.planner.simulate.setting import StepSeconds

STRAIGHT: Final = 1e-6
"""Relative deviation of a step's seconds that still counts as linear."""


def stretch(seconds: StepSeconds, size: Callable[[int], StepSize], steps: int) -> tuple[float, float, int]:
    """Seconds of the first step, the increase with each later one, and for how many steps this holds.

    The first, the last and the middle step are evaluated, which is enough for convex or concave step times.
    """
    first = seconds(size(0))
    while steps > 1:
        slope = (seconds(size(steps - 1)) - first) / (steps - 1)
        middle = steps // 2
        off = seconds(size(middle)) - (first + slope * middle) if steps > 2 else 0.0
        if abs(off) <= STRAIGHT * first:
            return first, slope, steps
        steps = (steps + 1) // 2
    return first, 0.0, 1


class LinearStepTimes:
    """Seconds of decode steps as linear functions of the positions seen, one for each number of sequences.

    Each function is fitted once, from evaluations at a few points up to ``max_seen`` positions.
    """

    def __init__(self, seconds: StepSeconds, max_seen: int) -> None:
        self._seconds, self._max_seen = seconds, max_seen
        self._found: dict[int, tuple[float, float] | None] = {}

    def of(self, count: int) -> tuple[float, float] | None:
        """Seconds at 0 positions, and the increase with each position; None if not linear."""
        if count not in self._found:
            self._found[count] = self._fit(count)
        return self._found[count]

    def _fit(self, count: int) -> tuple[float, float] | None:
        def at(seen: int) -> float:
            return self._seconds(StepSize(count, count, count, (seen,), (seen,)))

        shortest, end = at(count), max(self._max_seen, 2 * count)
        each = (at(end) - shortest) / (end - count)
        for seen in (self._max_seen // part + count for part in (2, 8, 64, 512)):
            if abs(at(seen) - (shortest + (seen - count) * each)) > STRAIGHT * shortest:
                return None
        return shortest - count * each, each


def steps_begun(time_s: float, first: float, slope: float, limit: int) -> int:
    """How many of ``limit`` steps begin before ``time_s``; at least one.

    Step k, counted from 0, begins at k · first + slope · k · (k − 1) / 2.
    """
    if time_s == math.inf or limit == 1 or first <= 0:
        return limit
    steps = time_s / first
    if steps < limit or slope < 0:
        half = slope / 2
        linear = first - half
        root = linear * linear + 4 * half * time_s
        if half and root >= 0:
            steps = 2 * time_s / (linear + math.sqrt(root))
    begun = min(limit, max(1, math.ceil(steps)))
    while begun > 1 and (begun - 1) * first + slope * ((begun - 1) * (begun - 2) / 2) >= time_s:
        begun -= 1
    while begun < limit and begun * first + slope * (begun * (begun - 1) / 2) < time_s:
        begun += 1
    return begun


class Running:
    """A running sequence with the scheduler's cursors: computed < known ≤ limit.

    While it decodes, ``since`` is the step at which it entered, and the cursors are those of that step; else it is −1.
    ``past``: for each window, whether the sequence is longer.
    """

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "cached",
        "computed",
        "first_s",
        "job",
        "job_blocks",
        "known",
        "limit",
        "loaded",
        "past",
        "preemptions",
        "since",
    )

    def __init__(self, job: SimulatedJob, arrival_s: float) -> None:
        self.job = job
        self.arrival_s = arrival_s
        self.known = job.prefilled + 1 if job.prefilled else job.prompt
        self.limit = job.prompt + job.output
        self.computed = 0
        self.cached = 0
        self.loaded = 0
        self.since = -1
        self.job_blocks: JobBlocks | None = None
        self.admitted_s: float | None = None
        self.first_s: float | None = None
        self.preemptions = 0
        self.past: list[bool] = []

    @property
    def held(self) -> JobBlocks:
        assert self.job_blocks is not None, "running sequences have blocks"
        return self.job_blocks

    @property
    def key(self) -> tuple[float, int]:
        """Order of admission: first come, first served."""
        return self.arrival_s, self.job.number


class Decodes:
    """``count`` decoding sequences at step ``steps``; ``known`` is the sum of their tokens."""

    def __init__(self, block_size: int, windows: tuple[int | None, ...]) -> None:
        self.steps = 0
        self.count = 0
        self.known = 0
        self.members: dict[int, Running] = {}
        self._block_size = block_size
        self._new_blocks_at = [0] * block_size
        self._ends: list[tuple[int, int]] = []
        self._windows = windows
        self._narrow = any(window is not None for window in windows)
        self._passed = [0] * len(windows)
        self._hidden = [0] * len(windows)
        self._crossings: list[tuple[int, int, int]] = []

    def enter(self, sequence: Running) -> None:
        """Adds a sequence that decodes from the next step on; all its known tokens but the last are computed."""
        number = sequence.job.number
        sequence.since = self.steps
        self.count += 1
        self.known += sequence.known
        self.members[number] = sequence
        self._new_blocks_at[(sequence.known - 1 - self.steps) % self._block_size] += 1
        heappush(self._ends, (self.steps + sequence.limit - sequence.known, number))
        if self._narrow:
            self._watch(sequence)

    def leave(self, sequence: Running) -> None:
        """Removes a sequence and updates its cursors."""
        number = sequence.job.number
        del self.members[number]
        if self._narrow:
            self._forget(sequence)
        sequence.known = self.known_of(sequence)
        sequence.computed = sequence.known - 1
        sequence.since = -1
        self.count -= 1
        self.known -= sequence.known
        self._new_blocks_at[(sequence.known - 1 - self.steps) % self._block_size] -= 1

    def known_of(self, sequence: Running) -> int:
        """Known tokens of a member now."""
        return sequence.known + self.steps - sequence.since

    def advance(self, steps: int) -> None:
        """Adds a token per step to each member."""
        self.steps += steps
        self.known += steps * self.count
        while self._crossings and self._crossings[0][0] <= self.steps:
            _, number, at = heappop(self._crossings)
            member = self.members.get(number)
            window = self._windows[at]
            assert window is not None, "only a window has crossings"
            if member is not None and self.known_of(member) >= window and not member.past[at]:
                self._pass(member, at)

    def ended(self) -> list[Running]:
        """Removes and returns the members that have all their tokens."""
        found = []
        while self._ends and self._ends[0][0] <= self.steps:
            step, number = heappop(self._ends)
            member = self.members.get(number)
            if member is not None and self._end_of(member) == step:
                self.leave(member)
                found.append(member)
        return found

    def steps_until_event(self) -> int:
        """Steps until a member ends or grows beyond a window."""
        while self._ends:
            step, number = self._ends[0]
            member = self.members.get(number)
            if member is not None and self._end_of(member) == step:
                break
            heappop(self._ends)
        left = self._ends[0][0] - self.steps
        if self._crossings:
            left = min(left, max(1, self._crossings[0][0] - self.steps))
        return left

    @property
    def next_blocks(self) -> int:
        """New blocks that the next step needs."""
        return self._new_blocks_at[-self.steps % self._block_size]

    def new_blocks(self, steps: int) -> int:
        """New blocks that the next ``steps`` steps need."""
        size, members = self._block_size, self._new_blocks_at
        whole, rest = divmod(steps, size)
        blocks = whole * self.count
        for step in range(self.steps, self.steps + rest):
            blocks += members[-step % size]
        return blocks

    def max_steps(self, blocks: int, steps: int) -> int:
        """How many of the next ``steps`` steps can run with ``blocks`` new blocks."""
        size = self._block_size
        if blocks >= (steps // size + 1) * self.count:
            return steps
        low, high = 0, steps + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.new_blocks(middle) <= blocks else (low, middle)
        return low

    def seen(self, steps: int = 0) -> tuple[int, ...]:
        """Positions that the rows of all members see, by window, ``steps`` steps from now."""
        if not self._narrow:
            return (self.known + steps * self.count,) * len(self._windows)
        return tuple(
            self.known + steps * self.count
            if window is None
            else self.known - self._hidden_at(at) + self._passed[at] * window + steps * (self.count - self._passed[at])
            for at, window in enumerate(self._windows)
        )

    def _end_of(self, member: Running) -> int:
        return member.since + member.limit - member.known

    def _hidden_at(self, at: int) -> int:
        """Known tokens of the members longer than a window."""
        return self._hidden[at] + self._passed[at] * self.steps

    def _watch(self, sequence: Running) -> None:
        sequence.past = [False] * len(self._windows)
        for at, window in enumerate(self._windows):
            if window is None:
                continue
            if sequence.known >= window:
                self._pass(sequence, at)
            else:
                heappush(self._crossings, (self.steps + window - sequence.known, sequence.job.number, at))

    def _pass(self, sequence: Running, at: int) -> None:
        sequence.past[at] = True
        self._passed[at] += 1
        self._hidden[at] += sequence.known - sequence.since

    def _forget(self, sequence: Running) -> None:
        for at, past in enumerate(sequence.past):
            if past:
                self._passed[at] -= 1
                self._hidden[at] -= sequence.known - sequence.since
