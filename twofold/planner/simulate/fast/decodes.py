"""All sequences that generate, as a few sums: what a step does to each of them is the same.

Steps are counted. A sequence that entered at step e with k tokens known has k + s − e at step s, so when it ends,
when it leaves a window, and at which steps it needs a new block are known when it enters.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

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


if TYPE_CHECKING:
    from twofold.planner.simulate.fast.decodes import Running


class Decodes:
    """``count`` sequences at step ``steps``; ``known`` is the sum of their tokens."""

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
        """A sequence generates from the next step on; all it knows but the last token is computed."""
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
        """A sequence generates no longer; its cursors say how far it came."""
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
        """Tokens that a member knows now."""
        return sequence.known + self.steps - sequence.since

    def advance(self, steps: int) -> None:
        """Each member has so many tokens more."""
        self.steps += steps
        self.known += steps * self.count
        while self._crossings and self._crossings[0][0] <= self.steps:
            _, number, at = heappop(self._crossings)
            member = self.members.get(number)
            window = self._windows[at]
            assert window is not None, "nobody leaves what has no window"
            if member is not None and self.known_of(member) >= window and not member.past[at]:
                self._pass(member, at)

    def ended(self) -> list[Running]:
        """Members that have all their tokens, in order of entering; they have left."""
        found = []
        while self._ends and self._ends[0][0] <= self.steps:
            step, number = heappop(self._ends)
            member = self.members.get(number)
            if member is not None and self._end_of(member) == step:
                self.leave(member)
                found.append(member)
        return found

    def alike(self) -> int:
        """Steps after which somebody ends or leaves a window."""
        while self._ends and not self._stands(*self._ends[0]):
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
        """The most of the next ``steps`` steps that ``blocks`` new blocks suffice for."""
        size = self._block_size
        if blocks >= (steps // size + 1) * self.count:
            return steps
        low, high = 0, steps + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.takes(middle) <= blocks else (low, middle)
        return low

    def seen(self, steps: int = 0) -> tuple[int, ...]:
        """Positions that a row of each sees, summed, by window, so many steps from now."""
        if not self._narrow:
            return (self.known + steps * self.count,) * len(self._windows)
        return tuple(
            self.known + steps * self.count
            if window is None
            else self.known - self._hidden_at(at) + self._passed[at] * window + steps * (self.count - self._passed[at])
            for at, window in enumerate(self._windows)
        )

    def _stands(self, step: int, number: int) -> bool:
        member = self.members.get(number)
        return member is not None and self._end_of(member) == step

    def _end_of(self, member: Running) -> int:
        return member.since + member.limit - member.known

    def _hidden_at(self, at: int) -> int:
        """Tokens known to those past a window."""
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
