"""All sequences that decode, as a few sums: a step does the same to each of them.

Steps are counted. A sequence that entered at step e with k tokens known has k + s − e at step s, so the steps at which
it ends, leaves a window or needs a new block are known when it enters. Where the seconds of steps are linear in their
number, any number of them is one computation: ``stretch``, ``Lines`` and ``steps_begun``."""

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
    """Seconds of the first step, the increase with each later one, and for how many steps that holds.

    The first, the last and the middle step are evaluated: enough for convex or concave seconds.
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


class Lines:
    """Seconds of steps in which ``count`` sequences decode, where they are linear in the positions seen.

    Evaluated once for each count, at some points between none and ``most`` positions.
    """

    def __init__(self, seconds: StepSeconds, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._found: dict[int, tuple[float, float] | None] = {}

    def of(self, count: int) -> tuple[float, float] | None:
        """Seconds without any position, and the increase with each; None if not linear."""
        if count not in self._found:
            self._found[count] = self._look(count)
        return self._found[count]

    def _look(self, count: int) -> tuple[float, float] | None:
        def at(seen: int) -> float:
            return self._seconds(StepSize(count, count, count, (seen,), (seen,)))

        least = at(count)
        each = (at(max(self._most, 2 * count)) - least) / (max(self._most, 2 * count) - count)
        for seen in (self._most // part + count for part in (2, 8, 64, 512)):
            if abs(at(seen) - (least + (seen - count) * each)) > STRAIGHT * least:
                return None
        return least - count * each, each


def steps_begun(time_s: float, first: float, slope: float, most: int) -> int:
    """How many of ``most`` steps begin before ``time_s``; at least one.

    The k-th begins at k · first + slope · k · (k − 1) / 2.
    """
    if time_s == math.inf or most == 1 or first <= 0:
        return most
    steps = time_s / first
    if steps < most or slope < 0:
        half = slope / 2
        linear = first - half
        root = linear * linear + 4 * half * time_s
        if half and root >= 0:
            steps = 2 * time_s / (linear + math.sqrt(root))
    begun = min(most, max(1, math.ceil(steps)))
    while begun > 1 and (begun - 1) * first + slope * ((begun - 1) * (begun - 2) / 2) >= time_s:
        begun -= 1
    while begun < most and begun * first + slope * (begun * (begun - 1) / 2) < time_s:
        begun += 1
    return begun


class Running:
    """A running sequence with the scheduler's cursors: computed < known ≤ limit.

    While it decodes, ``since`` is the step at which it entered, with the cursors of that time; else −1.
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
        self._takes_at = [0] * block_size
        self._ends: list[tuple[int, int]] = []
        self._windows = windows
        self._narrow = any(window is not None for window in windows)
        self._passed = [0] * len(windows)
        self._hidden = [0] * len(windows)
        self._crossings: list[tuple[int, int, int]] = []

    def enter(self, sequence: Running) -> None:
        """Adds a sequence, which decodes from the next step on; all its known tokens but the last are computed."""
        number = sequence.job.number
        sequence.since = self.steps
        self.count += 1
        self.known += sequence.known
        self.members[number] = sequence
        self._takes_at[(sequence.known - 1 - self.steps) % self._block_size] += 1
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
        self._takes_at[(sequence.known - 1 - self.steps) % self._block_size] -= 1

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
        """Removes and returns the members that have all their tokens, in order of entering."""
        found = []
        while self._ends and self._ends[0][0] <= self.steps:
            step, number = heappop(self._ends)
            member = self.members.get(number)
            if member is not None and self._end_of(member) == step:
                self.leave(member)
                found.append(member)
        return found

    def alike(self) -> int:
        """Steps until a member ends or leaves a window."""
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
    def takes_next(self) -> int:
        """New blocks that the next step needs."""
        return self._takes_at[-self.steps % self._block_size]

    def takes(self, steps: int) -> int:
        """New blocks that the next ``steps`` steps need."""
        size, takes = self._block_size, self._takes_at
        whole, rest = divmod(steps, size)
        taken = whole * self.count
        for step in range(self.steps, self.steps + rest):
            taken += takes[-step % size]
        return taken

    def max_steps(self, blocks: int, steps: int) -> int:
        """How many of the next ``steps`` steps ``blocks`` new blocks suffice for."""
        size = self._block_size
        if blocks >= (steps // size + 1) * self.count:
            return steps
        low, high = 0, steps + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.takes(middle) <= blocks else (low, middle)
        return low

    def seen(self, steps: int = 0) -> tuple[int, ...]:
        """Positions that the members' rows see together, by window, ``steps`` steps from now."""
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
        """Known tokens of the members past a window."""
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
