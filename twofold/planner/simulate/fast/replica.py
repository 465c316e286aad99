"""The scheduler's rules without its steps: between two events all steps that only decode are taken at once.

An event is whatever can change which sequences run: a job arrives, is admitted, has its prompt computed, ends, or
blocks run out. Steps with prompts are planned one by one, as the engine's scheduler plans them: decoding sequences
first, then running prompts, then the head of the waiting queue while rows, slots and blocks last. Between events each
sequence has one token more in each step, so the seconds of the steps are linear in their number wherever the step-time
function is linear in the positions read; where it is not, fewer steps are taken at once.

Limits: the budget is the fixed one, nothing is swapped to the host, and of models with several windows only the blocks
of the widest group are counted."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import Final

from twofold.core.model import read_positions, visible
from twofold.engine.scheduler.blocks import HORIZON, MIN_AHEAD
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.fast.cache import CountedCache
from twofold.planner.simulate.fast.decodes import Decodes, Lines, Running, steps_begun, stretch
from twofold.planner.simulate.jobs import Done, Replica, SimulatedJob
from twofold.planner.simulate.setting import EngineSetting, StepSeconds

NEVER: Final = math.inf


class FastReplica(Replica):
    """One replica. ``windows`` are those of ``seconds``."""

    def __init__(self, setting: EngineSetting, seconds: StepSeconds, windows: tuple[int | None, ...] = (None,)) -> None:
        super().__init__()
        self._setting, self._seconds, self._windows = setting, seconds, windows
        self._size = setting.block_size
        self._cache = CountedCache(setting.blocks, setting.block_size, keeps=setting.prefix_caching)
        self._decodes = Decodes(setting.block_size, windows)
        self._lines = None if len(windows) > 1 or windows[0] else Lines(seconds, setting.blocks * setting.block_size)
        self._waiting: deque[Running] = deque()
        self._returning: list[tuple[tuple[float, int], Running]] = []
        self._prompts: dict[int, Running] = {}
        self._chunks: dict[int, tuple[Running, int]] = {}
        self._preemptions = 0
        self._stuck = False
        self._shares = False
        self._refused: tuple[int, int] | None = None

    @property
    def next_s(self) -> float:
        if self._prompts or self._admits():
            return math.nextafter(self._now, NEVER)
        if self._decodes.count:
            steps = self._quiet_steps()
            if not steps:
                return math.nextafter(self._now, NEVER)
            first, slope, steps = self._stretch(steps)
            return self._now + steps * first + slope * (steps * (steps - 1) / 2)
        return math.nextafter(max(self._now, self._inbox[0][0]), NEVER) if self._inbox else NEVER

    def advance(self, until_s: float) -> None:
        inbox, decodes = self._inbox, self._decodes
        while True:
            if not (decodes.count or self._prompts or self._waiting or self._returning):
                if not inbox or inbox[0][0] >= until_s:
                    return
                self._now = max(self._now, inbox[0][0])
            elif self._now >= until_s:
                return
            while inbox and inbox[0][0] <= self._now:
                self._arrive(*inbox.popleft())
            if self._prompts or self._admits():
                self._planned_step()
            elif decodes.count:
                self._quiet(until_s)

    def matched(self, job: SimulatedJob) -> int:
        return self._cache.find(job, job.prompt - 1)[0]

    def check_idle(self) -> None:
        """Asserts that an idle replica holds no blocks."""
        assert not self.open_jobs, f"{self.open_jobs} jobs did not end"
        self._cache.check()

    # -- the waiting queue ---------------------------------------------------------------------------------------------

    def _arrive(self, at_s: float, job: SimulatedJob) -> None:
        limit = job.prompt + job.output
        if limit > self._setting.context or limit - 1 > self._cache.total * self._size:
            self._end(Done(job, None, None, None))
        else:
            self._waiting.append(Running(job, at_s))

    def _admits(self) -> bool:
        """Whether the head of the waiting queue may be admitted."""
        if self._stuck or not (self._waiting or self._returning):
            return False
        running = self._decodes.count + len(self._prompts)
        return running < self._setting.sequences and self._decodes.count < self._setting.rows

    def _admit(self, rows: int) -> None:
        """Admits from the waiting queue while rows, slots and blocks last."""
        while rows and (self._waiting or self._returning):
            if self._decodes.count + len(self._prompts) >= self._setting.sequences:
                return
            sequence = self._returning[0][1] if self._returning else self._waiting[0]
            if not self._start(sequence):
                self._stuck = True
                return
            if self._returning:
                heappop(self._returning)
            else:
                self._waiting.popleft()
            rows -= self._place(sequence, rows)

    def _start(self, sequence: Running) -> bool:
        """Starts the head if its blocks will last; else returns False and changes nothing."""
        number, free = sequence.job.number, self._cache.obtainable
        alone = not (self._decodes.count or self._prompts)
        if not alone and self._refused is not None and self._refused[0] == number and free <= self._refused[1]:
            self._refused = (number, free)
            return False
        if not self._lasts(sequence, free, alone=alone):
            self._refused = (number, free)
            return False
        most = sequence.job.given or sequence.known - 1
        self._shares = self._shares or sequence.job.shares
        job_blocks, found = self._cache.open(sequence.job, most, shares=self._shares or sequence.preemptions > 0)
        sequence.job_blocks = job_blocks
        sequence.computed = sequence.job.given or found
        if sequence.job.given:
            self._cache.take(job_blocks, -(-sequence.job.given // self._size) - job_blocks.published)
        if sequence.admitted_s is None:
            sequence.admitted_s = self._now
            sequence.cached = min(found, sequence.job.prompt)
        self._prompts[number] = sequence
        return True

    def _lasts(self, sequence: Running, free: int, *, alone: bool) -> bool:
        """The rule of ``engine.scheduler.blocks``: blocks for what it and all running sequences will need."""
        found = idle = 0
        if self._shares or sequence.job.shares or sequence.preemptions:
            found, idle = self._cache.find(sequence.job, sequence.job.given or sequence.known - 1)
        next_one = min(sequence.known + 1, sequence.limit - 1)
        positions = next_one if alone else self._expected(sequence, sequence.known)
        free -= idle + -(-max(positions, found) // self._size) - found // self._size
        if free < 0 or alone:
            return free >= 0
        decodes = self._decodes
        most = HORIZON // self._size + 1
        prompts = sum(-(-(each.known + HORIZON) // self._size) for each in self._prompts.values())
        if free >= decodes.count * most + prompts:
            return True
        for member in decodes.members.values():
            known = decodes.known_of(member)
            free -= self._lacks(self._expected(member, known), known)
        for each in self._prompts.values():
            positions = self._expected(each, each.known)
            free -= max(0, -(-positions // self._size) - each.held.blocks)
        return free >= 0

    def _lacks(self, positions: int, held: int) -> int:
        return max(0, -(-positions // self._size) - -(-held // self._size))

    @staticmethod
    def _expected(sequence: Running, known: int) -> int:
        ahead = min(max(sequence.limit - known, MIN_AHEAD), HORIZON)
        return min(known + ahead, sequence.limit - 1)

    # -- a step with prompts ------------------------------------------------------------------------------------------

    def _planned_step(self) -> None:
        before = self._preemptions
        while self._decodes.takes_next > self._cache.obtainable:
            self._preempt(self._least_urgent(), grown=False)
        self._cache.take_many(self._decodes.takes_next)
        self._chunks = {}
        for sequence in list(self._prompts.values()):
            rows = self._rows_left()
            if rows and sequence.job.number in self._prompts:
                self._place(sequence, rows)
        if self._stuck:
            self._note_refusal()
        elif self._preemptions == before:
            self._admit(self._rows_left())
        self._run()

    def _rows_left(self) -> int:
        taken = sum(rows for number, (_, rows) in self._chunks.items() if number in self._prompts)
        return self._setting.rows - self._decodes.count - taken

    def _place(self, sequence: Running, rows: int) -> int:
        """Adds as many of a prompt's rows to the step as fit, and returns how many."""
        rows = min(rows, sequence.known - sequence.computed)
        while rows > 1 and self._lacking(sequence, rows) > self._cache.obtainable:
            rows //= 2
        while (lacking := self._lacking(sequence, rows)) > self._cache.obtainable:
            victim = self._least_urgent()
            self._preempt(victim, grown=True)
            if victim is sequence:
                return 0
        self._cache.take(sequence.held, lacking)
        self._chunks[sequence.job.number] = sequence, rows
        return rows

    def _lacking(self, sequence: Running, rows: int) -> int:
        return max(0, -(-(sequence.computed + rows) // self._size) - sequence.held.blocks)

    def _run(self) -> None:
        """Computes the step and commits it."""
        decodes = self._decodes
        prompts = self._prompts
        chunks = [chunk for number, chunk in self._chunks.items() if number in prompts]
        size = self._step_size(chunks)
        seconds = self._seconds(size)
        self._now += seconds
        prefill = sum(rows for sequence, rows in chunks if sequence.computed < sequence.job.prompt)
        self.busy.add(seconds, prefill, size.rows - prefill, self._cache.held)
        decodes.advance(1)
        for sequence in decodes.ended():
            self._finish(sequence)
        for sequence, rows in chunks:
            sequence.computed += rows
            self._gain(sequence)

    def _gain(self, sequence: Running) -> None:
        """After a chunk: publishes its blocks, and at the end of the prompt adds a token."""
        if sequence.job.shares:
            self._cache.publish(sequence.held, sequence.computed)
        if sequence.computed < sequence.known:
            return
        sequence.known += 1
        if sequence.first_s is None:
            sequence.first_s = self._now
        del self._prompts[sequence.job.number]
        if sequence.known == sequence.limit:
            self._finish(sequence)
        else:
            self._decodes.enter(sequence)

    def _step_size(self, chunks: list[tuple[Running, int]]) -> StepSize:
        count = self._decodes.count
        seen = self._decodes.seen()
        rows = logit_rows = 0
        for sequence, chunk in chunks:
            rows += chunk
            logit_rows += sequence.computed + chunk == sequence.known
        if not chunks:
            return StepSize(count, count, count, seen, seen)
        pairs, positions = list(seen), list(seen)
        for at, window in enumerate(self._windows):
            for sequence, chunk in chunks:
                pairs[at] += visible(sequence.computed, chunk, window)
                positions[at] += read_positions(sequence.computed, chunk, window)
        prompts = tuple((1, SequenceRows(chunk, sequence.computed)) for sequence, chunk in chunks if chunk > 1)
        return StepSize(count + rows, count + logit_rows, count + len(chunks), tuple(pairs), tuple(positions), prompts)

    # -- steps that only decode ----------------------------------------------------------------------------------------

    def _quiet(self, until_s: float) -> None:
        """Takes steps until something can change, at least one, while they begin before ``until_s``."""
        decodes = self._decodes
        steps = self._quiet_steps()
        if not steps:
            self._planned_step()
            return
        first, slope, steps = self._stretch(steps)
        stop = until_s
        if self._inbox and not (self._waiting or self._returning) and decodes.count < self._setting.sequences:
            stop = min(stop, self._inbox[0][0])
        steps = steps_begun(stop - self._now, first, slope, steps)
        seconds = steps * first + slope * (steps * (steps - 1) / 2)
        cache, busy = self._cache, self.busy
        before = cache.held
        cache.take_many(decodes.takes(steps))
        held = cache.held
        self._now += seconds
        busy.add(seconds, 0, decodes.count, (before + held) / 2, steps)
        busy.max_blocks = max(busy.max_blocks, held)
        decodes.advance(steps)
        if self._refused is not None:
            self._note_refusal()
        for sequence in decodes.ended():
            self._finish(sequence)

    def _quiet_steps(self) -> int:
        return self._decodes.max_steps(self._cache.obtainable, self._decodes.alike())

    def _stretch(self, steps: int) -> tuple[float, float, int]:
        """Seconds of the next step, what each later one takes more, and for how many of ``steps`` that holds."""
        line = None if self._lines is None else self._lines.of(self._decodes.count)
        if line is None:
            return stretch(self._seconds, self._decode_size, steps)
        fixed, each = line
        return fixed + each * self._decodes.known, each * self._decodes.count, steps

    def _decode_size(self, step: int) -> StepSize:
        seen = self._decodes.seen(step)
        count = self._decodes.count
        return StepSize(count, count, count, seen, seen)

    def _note_refusal(self) -> None:
        """The free blocks at the last step in which the scheduler refused the head."""
        if self._refused is not None:
            self._refused = self._refused[0], self._cache.obtainable

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _least_urgent(self) -> Running:
        return max((*self._decodes.members.values(), *self._prompts.values()), key=lambda running: running.key)

    def _preempt(self, victim: Running, *, grown: bool) -> None:
        """Returns a sequence to the waiting queue; ``grown``: those that decode have the blocks of the planned step."""
        if victim.since >= 0:
            self._decodes.leave(victim)
            self._settle(victim, victim.known if grown else victim.computed)
        else:
            del self._prompts[victim.job.number]
        self._cache.close(victim.held, victim.computed, victim.job)
        victim.job_blocks = None
        victim.computed = 0
        victim.preemptions += 1
        self._preemptions += 1
        victim.job = victim.job._replace(given=0)
        heappush(self._returning, (victim.key, victim))
        self._stuck = False

    def _settle(self, sequence: Running, positions: int) -> None:
        """Counts the blocks that a sequence took while it decoded."""
        sequence.held.own = -(-positions // self._size) - sequence.held.published

    def _finish(self, sequence: Running) -> None:
        computed = sequence.known - 1
        self._settle(sequence, computed)
        self._cache.close(sequence.held, computed)
        self._stuck = False
        times = (sequence.admitted_s, sequence.first_s, self._now)
        self._end(Done(sequence.job, *times, sequence.cached, sequence.preemptions))
