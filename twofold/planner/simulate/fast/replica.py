"""A replica that follows the scheduler's rules, but computes all decode-only steps between two events at once.

An event can change which sequences run: a job arrives, is admitted, ends its prompt or its completion, or blocks run
out. Steps with prompts are planned one by one, as the engine's scheduler plans them: decoding sequences first, then
running prompts, then the head of the waiting queue while rows, slots and blocks last. Between events each step adds one
token to each sequence. So step times grow linearly as long as the step-time function is linear in the positions read;
otherwise fewer steps are computed at once.

Limits: the token budget is fixed, no sequence is swapped to the host, and for models with several windows only the
widest group's blocks are counted."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from operator import add, sub
from typing import Final

from twofold.core.model import read_positions, visible
from twofold.core.report import StoreCounts
from twofold.engine.kv.pool import blocks_for
from twofold.engine.scheduler.blocks import HORIZON, expected, lasts
from twofold.engine.scheduler.forecast import WorkAhead
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.fast.cache import CountedCache
from twofold.planner.simulate.fast.decodes import Decodes, LinearStepTimes, Running, steps_begun, stretch
from twofold.planner.simulate.fast.store import CountedStore
from twofold.planner.simulate.jobs import JobResult, Replica, SimulatedJob
from twofold.planner.simulate.kv_store import PredictedTimes
from twofold.planner.simulate.layerwise import HostPrompts, OpenOutput, computed_part
from twofold.planner.simulate.setting import EngineSetting, StepSeconds

NEVER: Final = math.inf


class FastReplica(Replica):
    """One replica. ``windows``: the windows whose positions ``seconds`` takes, in its order; None for no window.

    _prompts   sequences in prefill, by job number; ``_chunks``: their rows in the planned step
    _returning preempted sequences, as a heap in order of admission; they are admitted before ``_waiting``
    _queued    rows of the prompts in ``_waiting`` and not arrived yet, as if they were one step
    _refused   the last job refused for lack of blocks, and the free blocks at its latest refusal
    _blocked   whether no sequence ended or was preempted since then
    _shares    whether any job so far may share a prefix; before that the cache is not searched
    _store     the KV store on disk, if the setting has one
    _host      prompts that are computed layer by layer, if the setting says so
    _unstarted jobs that were never admitted, by number; kept only with ``_host``
    _withheld  whether the latest step left layer-wise prompts out for the TPOT of others, and nothing changed since
    """

    def __init__(
        self,
        setting: EngineSetting,
        seconds: StepSeconds,
        windows: tuple[int | None, ...] = (None,),
        step_time: StepTimeModel | None = None,
    ) -> None:
        super().__init__(setting.blocks)
        self._setting, self._seconds, self._windows = setting, seconds, windows
        self._step_time = step_time or StepTimeModel(setting.step_basis)
        self._size = setting.block_size
        self._cache = CountedCache(setting.blocks, setting.block_size, enabled=setting.prefix_caching)
        self._decodes = Decodes(setting.block_size, windows)
        positions = setting.blocks * setting.block_size
        self._linear = None if len(windows) > 1 or windows[0] else LinearStepTimes(seconds, positions)
        self._waiting: deque[Running] = deque()
        self._queued = StepShape()
        self._returning: list[tuple[tuple[float, int], Running]] = []
        self._prompts: dict[int, Running] = {}
        self._chunks: dict[int, tuple[Running, int]] = {}
        self._preemptions = 0
        self._blocked = False
        self._shares = False
        self._refused: tuple[int, int] | None = None
        lever = setting.layer_kv
        self._host = None if lever is None else HostPrompts(lever, setting.block_size, seconds)
        self._unstarted: dict[int, Running] = {}
        self._withheld = False
        store = setting.kv_store
        self._store = None if store is None else CountedStore(store, self._cache, PredictedTimes(seconds, windows))

    @property
    def next_s(self) -> float:
        if self._prompts or self._admits() or self._computes_on_host():
            return math.nextafter(self._now, NEVER)
        if self._decodes.count:
            steps = self._decode_steps()
            if not steps:
                return math.nextafter(self._now, NEVER)
            first, slope, steps = self._stretch(steps)
            end = self._now + steps * first + slope * (steps * (steps - 1) / 2)
            return end if self._store is None else min(end, math.nextafter(max(self._now, self._store.next_s), NEVER))
        return math.nextafter(max(self._now, self._event_s), NEVER)

    @property
    def _event_s(self) -> float:
        """The next arrival or end of a job of the disk."""
        arrival = self._inbox[0][0] if self._inbox else NEVER
        return arrival if self._store is None else min(arrival, self._store.next_s)

    def advance(self, until_s: float) -> None:
        inbox, decodes = self._inbox, self._decodes
        while True:
            if not (decodes.count or self._prompts or self._admits() or self._computes_on_host()):
                if self._event_s >= until_s:
                    return
                self._now = max(self._now, self._event_s)
            elif self._now >= until_s:
                return
            if self._store is not None and self._store.next_s <= self._now:
                self._take_stored(self._store)
            while inbox and inbox[0][0] <= self._now:
                self._arrive(*inbox.popleft())
            if self._prompts or self._admits() or self._computes_on_host():
                self._planned_step()
            elif decodes.count:
                self._decode(until_s)

    @property
    def stored(self) -> StoreCounts | None:
        return None if self._store is None else self._store.counts

    def matched(self, job: SimulatedJob) -> int:
        return self._cache.find(job, job.prompt - 1)[0]

    def ahead(self, now: float) -> WorkAhead:
        count, seen = self._decodes.count, self._decodes.known
        pending = StepShape()
        for sequence in self._prompts.values():
            pending = pending.plus(sequence.computed, sequence.known - sequence.computed, 1)
        for _, sequence in self._returning:
            pending = pending.plus(0, sequence.known, 1)
        pending = StepShape(*map(add, pending, self._queued))
        decode = StepShape(count, count, seen, seen)
        return WorkAhead(decode, pending, self._setting.rows, self._step_time, max(0.0, self._now - now))

    def submit(self, job: SimulatedJob, at_s: float) -> None:
        super().submit(job, at_s)
        self._queued = self._queued.plus(job.matched, job.prompt - job.matched, 1)

    def _unqueue(self, job: SimulatedJob) -> None:
        self._queued = StepShape(*map(sub, self._queued, StepShape().plus(job.matched, job.prompt - job.matched, 1)))

    def check_idle(self) -> None:
        """Asserts that an idle replica holds no blocks."""
        assert not self.open_jobs, f"{self.open_jobs} jobs did not end"
        self._cache.check()
        if self._host is not None:
            self._host.check_idle()
        if self._store is not None:
            self._store.check()

    # -- the waiting queue ---------------------------------------------------------------------------------------------

    def _arrive(self, at_s: float, job: SimulatedJob) -> None:
        limit = job.prompt + job.output
        if limit > self._setting.context or limit - 1 > self._cache.total * self._size:
            self._unqueue(job)
            self._end(JobResult(job, None, None, None))
        else:
            sequence = Running(job, at_s)
            self._waiting.append(sequence)
            if self._host is not None:
                self._host.arrive(job)
                self._unstarted[job.number] = sequence

    def _admits(self) -> bool:
        """Whether the head of the waiting queue may be admitted."""
        if self._blocked or not (self._waiting or self._returning):
            return False
        running = self._decodes.count + len(self._prompts)
        return running < self._setting.sequences and self._decodes.count < self._setting.rows

    def _admit(self, rows: int) -> None:
        """Admits sequences while ``rows`` rows, slots and blocks last."""
        while (rows or self._store is not None) and (self._waiting or self._returning):
            if self._decodes.count + len(self._prompts) >= self._setting.sequences:
                return
            sequence = self._returning[0][1] if self._returning else self._waiting[0]
            if self._store is not None and self._load(self._store, sequence):
                self._leave_queue()
                continue
            if not rows:
                return
            if not self._start(sequence):
                self._blocked = True
                return
            self._leave_queue()
            added = self._add_chunk(sequence, rows)
            if not added:
                return
            rows -= added

    def _leave_queue(self) -> None:
        """Removes the head of the waiting queue."""
        if self._returning:
            heappop(self._returning)
        else:
            self._unqueue(self._waiting.popleft().job)

    def _load(self, store: CountedStore, head: Running) -> bool:
        """Lets the head of the queue load its prefix from the store, if that pays and its blocks will last."""
        if not (self._shares or head.job.shares or head.preemptions):
            return False
        alone = not (self._decodes.count or self._prompts)
        free = self._cache.obtainable
        return store.begin(head, self._now, alone=alone, lasts=lambda: self._lasts(head, free, alone=alone))

    def _take_stored(self, store: CountedStore) -> None:
        """Takes what the store has read and written; jobs that waited for it return to the queue."""
        for sequence in store.take(self._now):
            heappush(self._returning, (sequence.key, sequence))
        self._blocked = False

    def _start(self, sequence: Running) -> bool:
        """Starts a sequence if there are enough blocks; else returns False."""
        number, free = sequence.job.number, self._cache.obtainable
        alone = not (self._decodes.count or self._prompts)
        if not alone and self._refused is not None and self._refused[0] == number and free <= self._refused[1]:
            self._refused = (number, free)
            return False
        if not self._lasts(sequence, free, alone=alone):
            self._refused = (number, free)
            return False
        limit = sequence.job.prefilled or sequence.known - 1
        self._shares = self._shares or sequence.job.shares
        job_blocks, found = self._cache.open(sequence.job, limit, shares=self._shares or sequence.preemptions > 0)
        sequence.job_blocks = job_blocks
        sequence.computed = sequence.job.prefilled or found
        if sequence.job.prefilled:
            blocks = -(-sequence.job.prefilled // self._size) - job_blocks.published
            if blocks > self._cache.obtainable:
                self._cache.reclaim()
            self._cache.take(job_blocks, blocks)
        first = sequence.admitted_s is None
        if first:
            sequence.admitted_s = self._now
            sequence.cached = min(found, sequence.job.prompt)
        if self._store is not None:
            if found:
                self._store.hit(sequence, found, self._now)
            loaded = self._store.admit(sequence, sequence.cached)
            sequence.loaded = loaded if first else sequence.loaded
        self._prompts[number] = sequence
        self._unstarted.pop(number, None)
        self._withheld = False
        return True

    def _lasts(self, sequence: Running, free: int, *, alone: bool) -> bool:
        """Whether ``free`` blocks suffice for the expected tokens of this and all running sequences, as ``LookAhead``
        decides it. ``alone``: no other sequence runs."""
        found = idle = 0
        if self._shares or sequence.job.shares or sequence.preemptions:
            found, idle = self._cache.find(sequence.job, sequence.job.prefilled or sequence.known - 1)
        next_token = min(sequence.known + 1, sequence.limit - 1)
        positions = next_token if alone else self._expected(sequence, sequence.known)
        free -= idle + blocks_for(max(positions, found), self._size) - found // self._size
        if free < 0 or alone:
            return free >= 0
        prompts = sum(blocks_for(each.known + HORIZON, self._size) for each in self._prompts.values())
        if free >= self._decodes.count * (HORIZON // self._size + 1) + prompts:
            return True
        return lasts(free, self._growth())

    def _growth(self) -> Iterator[int]:
        """New blocks that each running sequence is expected to need."""
        for member in self._decodes.members.values():
            known = self._decodes.known_of(member)
            yield blocks_for(self._expected(member, known), self._size) - blocks_for(known, self._size)
        for each in self._prompts.values():
            yield max(0, blocks_for(self._expected(each, each.known), self._size) - each.held.blocks)

    @staticmethod
    def _expected(sequence: Running, known: int) -> int:
        """Positions that a sequence with ``known`` tokens is expected to need; at least ``known`` while it runs."""
        return min(expected(known, sequence.limit), sequence.limit - 1)

    # -- a step with prompts ------------------------------------------------------------------------------------------

    def _planned_step(self) -> None:
        before = self._preemptions
        while self._decodes.next_blocks > self._cache.obtainable:
            if not self._cache.reclaim():
                self._preempt(self._least_urgent(), grown=False)
        self._cache.take_many(self._decodes.next_blocks)
        self._chunks = {}
        for sequence in list(self._prompts.values()):
            rows = self._rows_left()
            if rows and sequence.job.number in self._prompts:
                self._add_chunk(sequence, rows)
        if self._blocked:
            self._note_refusal()
        elif self._preemptions == before:
            self._admit(self._rows_left())
        self._run()

    def _rows_left(self) -> int:
        taken = sum(rows for number, (_, rows) in self._chunks.items() if number in self._prompts)
        return self._setting.rows - self._decodes.count - taken

    def _add_chunk(self, sequence: Running, rows: int) -> int:
        """Adds up to ``rows`` rows of a prompt to the step, as many as fit, and returns their number."""
        rows = min(rows, sequence.known - sequence.computed)
        while rows > 1 and self._lacking(sequence, rows) > self._cache.obtainable:
            rows //= 2
        while (lacking := self._lacking(sequence, rows)) > self._cache.obtainable:
            if self._cache.reclaim():
                continue
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
        if self._store is not None and not (chunks or decodes.count):
            return
        size, seconds = self._measured(chunks)
        began, self._now = self._now, self._now + seconds
        again = sum(rows for sequence, rows in chunks if sequence.computed >= sequence.job.prompt)
        generated = decodes.count + again
        self.work.add(seconds, size.rows - generated, generated, self._cache.held)
        if self._host is not None:
            self._commit_host(self._host, chunks, began)
        decodes.advance(1)
        for sequence in decodes.ended():
            self._finish(sequence)
        for sequence, rows in chunks:
            sequence.computed += rows
            self._end_chunk(sequence)

    def _measured(self, chunks: list[tuple[Running, int]]) -> tuple[StepSize, float]:
        """The computed rows of a step, and its seconds."""
        host, count = self._host, self._decodes.count
        if host is None:
            size = self._step_size([(sequence, sequence.computed, rows) for sequence, rows in chunks])
            return size, self._seconds(size)
        parts = [
            (sequence, *computed_part(sequence.computed, rows, host.done(sequence.job.number)))
            for sequence, rows in chunks
        ]
        size = self._step_size([part for part in parts if part[2]])
        loaded = sum(rows for _, rows in chunks) - sum(rows for _, _, rows in parts)
        rows = self._rows_left()
        if rows and (self._waiting or self._returning) and count + len(self._prompts) < self._setting.sequences:
            host.plan(rows, self._is_admitted, self._findable)
        wanted = host.planned
        found = host.take(size, loaded, self._decode_size(0), self._now, self._outputs)
        self._withheld = wanted and not host.planned
        return found

    def _end_chunk(self, sequence: Running) -> None:
        """Publishes the blocks of a computed chunk; at the end of the prompt also adds a token."""
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

    def _step_size(self, chunks: list[tuple[Running, int, int]]) -> StepSize:
        """The step of the decoding sequences and of (sequence, first position, rows) of prompts."""
        count = self._decodes.count
        seen = self._decodes.seen()
        rows = logit_rows = 0
        for sequence, start, chunk in chunks:
            rows += chunk
            logit_rows += start + chunk == sequence.known
        if not chunks:
            return StepSize(count, count, count, seen, seen)
        pairs, positions = list(seen), list(seen)
        for at, window in enumerate(self._windows):
            for _, start, chunk in chunks:
                pairs[at] += visible(start, chunk, window)
                positions[at] += read_positions(start, chunk, window)
        prompts = tuple((1, SequenceRows(chunk, start)) for _, start, chunk in chunks if chunk > 1)
        return StepSize(count + rows, count + logit_rows, count + len(chunks), tuple(pairs), tuple(positions), prompts)

    # -- prompts that are computed layer by layer ----------------------------------------------------------------------

    def _computes_on_host(self) -> bool:
        """Whether the next step may compute a prompt layer by layer."""
        host, running = self._host, self._decodes.count + len(self._prompts)
        return (
            host is not None
            and not self._withheld
            and bool(self._waiting or self._returning)
            and running < self._setting.sequences
            and self._decodes.count < self._setting.rows
            and host.head(self._is_admitted) is not None
        )

    def _takes_arrivals(self) -> bool:
        """Whether a job that arrives now may be computed before those that wait have blocks."""
        if not (self._waiting or self._returning):
            return True
        return self._host is not None and self._host.head(self._is_admitted) is None and not self._host.waiting

    def _is_admitted(self, number: int) -> bool:
        return number not in self._unstarted

    def _findable(self, job: SimulatedJob) -> int:
        return self._cache.find(job, job.prompt - 1)[0] if self._shares or job.shares else 0

    def _outputs(self) -> Iterator[OpenOutput]:
        assert self._host is not None, "only layer-wise prompts depend on the open outputs"
        yield from self._host.parked()
        for each in self._decodes.members.values():
            assert each.first_s is not None, "decoding sequences have a token"
            yield OpenOutput(each.first_s, self._decodes.known_of(each) - each.job.prompt, each.job.output)
        for each in (*self._prompts.values(), *(sequence for _, sequence in self._returning)):
            if each.first_s is not None and self._host.found(each.job.number) is None:
                yield OpenOutput(each.first_s, each.known - each.job.prompt, each.job.output)

    def _commit_host(self, host: HostPrompts, chunks: list[tuple[Running, int]], began: float) -> None:
        """Frees the host memory of prompts that the device has whole, and notes the first tokens of others."""
        for sequence, rows in chunks:
            held = host.found(sequence.job.number)
            if held is not None and sequence.computed + rows >= held.done:
                host.release(sequence.job.number)
        for held in host.commit(began, self._now):
            sequence = self._unstarted[held.job.number]
            sequence.admitted_s, sequence.first_s, sequence.cached = held.begun_s, held.first_s, held.copied
            if held.first_s is not None and held.job.output == 1:
                self._waiting.remove(sequence)
                self._unqueue(sequence.job)
                del self._unstarted[held.job.number]
                host.release(held.job.number)
                self._end(JobResult(held.job, sequence.admitted_s, self._now, self._now, held.copied))

    # -- steps that only decode ----------------------------------------------------------------------------------------

    def _decode(self, until_s: float) -> None:
        """Takes decode-only steps up to the next event or ``until_s``, at least one."""
        decodes = self._decodes
        steps = self._decode_steps()
        if not steps:
            self._planned_step()
            return
        first, slope, steps = self._stretch(steps)
        stop = until_s
        if self._inbox and self._takes_arrivals() and decodes.count < self._setting.sequences:
            stop = min(stop, self._inbox[0][0])
        if self._store is not None:
            stop = min(stop, self._store.next_s)
        steps = steps_begun(stop - self._now, first, slope, steps)
        seconds = steps * first + slope * (steps * (steps - 1) / 2)
        cache, work = self._cache, self.work
        before = cache.held
        cache.take_many(decodes.new_blocks(steps))
        held = cache.held
        self._now += seconds
        work.add(seconds, 0, decodes.count, (before + held) / 2, steps)
        work.max_blocks = max(work.max_blocks, held)
        decodes.advance(steps)
        if self._refused is not None:
            self._note_refusal()
        for sequence in decodes.ended():
            self._finish(sequence)

    def _decode_steps(self) -> int:
        return self._decodes.max_steps(self._cache.obtainable, self._decodes.steps_until_event())

    def _stretch(self, steps: int) -> tuple[float, float, int]:
        """Seconds of the next step, the increase with each later one, and for how many of the ``steps`` this holds."""
        line = None if self._linear is None else self._linear.of(self._decodes.count)
        if line is None:
            return stretch(self._seconds, self._decode_size, steps)
        fixed, each = line
        return fixed + each * self._decodes.known, each * self._decodes.count, steps

    def _decode_size(self, step: int) -> StepSize:
        seen = self._decodes.seen(step)
        count = self._decodes.count
        return StepSize(count, count, count, seen, seen)

    def _note_refusal(self) -> None:
        """Updates the free blocks of the refused job: the scheduler refuses it again in each step."""
        if self._refused is not None:
            self._refused = self._refused[0], self._cache.obtainable

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _least_urgent(self) -> Running:
        return max((*self._decodes.members.values(), *self._prompts.values()), key=lambda running: running.key)

    def _preempt(self, victim: Running, *, grown: bool) -> None:
        """Returns a sequence to the waiting queue; ``grown``: decoding sequences have blocks for their next token."""
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
        victim.job = victim.job._replace(prefilled=0)
        heappush(self._returning, (victim.key, victim))
        self._blocked = self._withheld = False

    def _settle(self, sequence: Running, positions: int) -> None:
        """Assigns a sequence the blocks that it took while it decoded."""
        sequence.held.own = -(-positions // self._size) - sequence.held.published

    def _finish(self, sequence: Running) -> None:
        computed = sequence.known - 1
        self._settle(sequence, computed)
        self._cache.close(sequence.held, computed)
        if self._store is not None:
            self._store.ended(sequence, computed, self._now)
        self._blocked = self._withheld = False
        times = (sequence.admitted_s, sequence.first_s, self._now)
        self._end(JobResult(sequence.job, *times, sequence.cached, sequence.preemptions, sequence.loaded))
