"""The engine's scheduler and cache on a virtual clock: every step is planned and committed, but not computed.

Token ids are made from the keys of a prompt's pieces and the number of its stream, so prompts share the prefixes that
their jobs share, also inside blocks. A sampled token is the next token of the stream."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twofold.core.errors import ContextLengthError
from twofold.core.model import read_positions, visible
from twofold.core.params import SamplingParams
from twofold.core.record import SequenceRecord
from twofold.core.report import StoreCounts
from twofold.core.request import MAX_PRIORITY, RequestOptions
from twofold.core.step import SequenceOutcome, StepOutcome, StepPlan
from twofold.engine.kv.manager import BlockManager
from twofold.engine.scheduler.budget import Budget, FixedBudget, LiveBudget, StepLimits
from twofold.engine.scheduler.forecast import WorkAhead
from twofold.engine.scheduler.loading import PrefixLoading
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepTimeModel
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.jobs import JobResult, Replica, SimulatedJob, spans
from twofold.planner.simulate.kv_store import PredictedTimes, SimulatedDisk, engine_store
from twofold.planner.simulate.layerwise import HostPrompt, HostPrompts, OpenOutput, computed_part
from twofold.planner.simulate.live import LiveRecording
from twofold.planner.simulate.setting import EngineSetting, StepSeconds

MAX_TOKEN: Final = (1 << 30) - 1
PARAMS: Final = SamplingParams(temperature=0, ignore_eos=True)
OPTIONS: Final = RequestOptions()


@dataclass(slots=True)
class _RunningJob:
    """A job and its sequence; the token at position p of its stream is ``base`` + p.

    ``held``: its prompt as it was computed layer by layer, once it has left host memory.
    """

    job: SimulatedJob
    sequence: Sequence
    base: int
    held: HostPrompt | None = None


class ExactReplica(Replica):
    """One replica. ``windows``: the windows whose positions ``seconds`` takes, in its order; None for no window."""

    def __init__(self, setting: EngineSetting, seconds: StepSeconds, windows: tuple[int | None, ...] = (None,)) -> None:
        super().__init__(setting.blocks)
        self._setting, self._seconds, self._windows = setting, seconds, windows
        self.scheduler = _make_scheduler(setting, PredictedTimes(seconds, windows))
        self._jobs: dict[int, _RunningJob] = {}
        lever = setting.layer_kv
        self._host = None if lever is None else HostPrompts(lever, setting.block_size, seconds)
        self._disk = None if setting.kv_store is None else SimulatedDisk(setting.kv_store.byte_s)
        self._loads_only = False
        self._recording: LiveRecording | None = None

    def record(self, recording: LiveRecording) -> None:
        """Adds each step to ``recording`` from now on."""
        self._recording = recording
        self.scheduler.watch(self._now)

    @property
    def next_s(self) -> float:
        if self.scheduler.has_work and not self._loads_only:
            return math.nextafter(self._now, math.inf)
        return math.nextafter(max(self._now, self._event_s), math.inf)

    @property
    def _event_s(self) -> float:
        """The next arrival or end of a job of the disk."""
        arrival = self._inbox[0][0] if self._inbox else math.inf
        return arrival if self._disk is None else min(arrival, self._disk.next_s)

    def advance(self, until_s: float) -> None:
        while True:
            if self._loads_only or not self.scheduler.has_work:
                if self._event_s >= until_s:
                    return
                self._now = max(self._now, self._event_s)
            elif self._now >= until_s:
                return
            self._loads_only = False
            if self._disk is not None and self._disk.next_s <= self._now:
                self.scheduler.take_stored(self._disk.take(self._now), self._now)
            while self._inbox and self._inbox[0][0] <= self._now:
                self._arrive(*self._inbox.popleft())
            if self.scheduler.has_work:
                self._step()

    @property
    def stored(self) -> StoreCounts | None:
        return None if self.scheduler.store is None else self.scheduler.store.snapshot()

    def matched(self, job: SimulatedJob) -> int:
        tokens, _ = tokens_of(job)
        return self.scheduler.manager.matched(tokens, "")

    def ahead(self, now: float) -> WorkAhead:
        work = self.scheduler.queue_ahead(MAX_PRIORITY, math.inf).work(self._cached, self._now)
        pending = work.pending
        for _, job in self._inbox:
            pending = pending.plus(job.matched, job.prompt - job.matched, 1)
        rows, busy_s = work.decode.rows + work.chunk, max(0.0, self._now - now)
        return WorkAhead(work.decode, pending, rows, self.scheduler.step_time, busy_s)

    def _cached(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that were cached when its job was routed; none after a preemption."""
        return 0 if sequence.admitted_at is not None else self._jobs[sequence.sequence_id].job.matched

    def check_idle(self) -> None:
        """Asserts that an idle replica holds no blocks."""
        self.scheduler.check_idle()
        if self._host is not None:
            self._host.check_idle()

    def _arrive(self, at_s: float, job: SimulatedJob) -> None:
        assert not job.prefilled, "the scheduler computes every prompt itself"
        tokens, base = tokens_of(job)
        limit = job.prompt + job.output
        record = SequenceRecord()
        sequence = Sequence(
            job.number, tokens, PARAMS, seed=0, limit=limit, options=OPTIONS, arrival=at_s, record=record
        )
        try:
            if limit > self._setting.context:
                raise ContextLengthError(f"{limit} tokens are more than the context of {self._setting.context}.")
            self.scheduler.add(sequence, self._now)
        except ContextLengthError:
            self._end(JobResult(job, None, None, None))
            return
        self._jobs[job.number] = _RunningJob(job, sequence, base)
        if self._host is not None:
            self._host.arrive(job)

    def _step(self) -> None:
        plan = self.scheduler.plan(self._now)
        if self._disk is not None and self._setting.kv_store is not None and self.scheduler.store is not None:
            self._disk.submit(self.scheduler.store.take_jobs(), self._setting.kv_store.block_bytes, self._now)
            self._loads_only = not plan
            if self._loads_only:
                return
        size, seconds = self._measured(plan)
        self.work.add(seconds, size.rows - plan.decode_rows, plan.decode_rows, self.scheduler.manager.held[0])
        began, self._now = self._now, self._now + seconds
        if self._host is not None:
            self._commit_host(self._host, plan, began)
        for event in self.scheduler.commit(plan, StepOutcome(self._outcomes(plan), seconds), self._now):
            if event.finish is not None:
                self._finish(self._jobs.pop(event.sequence_id))
        if self._recording is not None:
            self._recording.step(self.scheduler, plan, began, seconds)

    def _measured(self, plan: StepPlan) -> tuple[StepSize, float]:
        """The computed rows of a step, and its seconds."""
        host, steps = self._host, plan.steps
        if host is None:
            size = self._size([(step.start, len(step.tokens), step.samples) for step in steps])
            return size, self._seconds(size)
        parts = [(*computed_part(each.start, len(each.tokens), host.done(each.sequence_id)), each) for each in steps]
        size = self._size([(start, rows, step.samples) for start, rows, step in parts if rows])
        scheduler, rows = self.scheduler, self._setting.rows - plan.rows
        if rows and scheduler.waiting and scheduler.running < self._setting.sequences:
            host.plan(rows, self._is_admitted, self._findable)
        decodes = self._size([(step.start, 1, 1) for step in steps if step.decode])
        return host.take(size, plan.rows - size.rows, decodes, self._now, self._outputs)

    def _is_admitted(self, number: int) -> bool:
        return number not in self._jobs or self._jobs[number].sequence.admitted_at is not None

    def _findable(self, job: SimulatedJob) -> int:
        return self.scheduler.manager.matched(self._jobs[job.number].sequence.tokens, "")

    def _outputs(self) -> Iterator[OpenOutput]:
        assert self._host is not None, "only layer-wise prompts depend on the open outputs"
        yield from self._host.parked()
        for number, running in self._jobs.items():
            first_s = running.held.first_s if running.held else None
            first_s = running.sequence.first_token_at if first_s is None else first_s
            if first_s is not None and self._host.found(number) is None:
                yield OpenOutput(first_s, running.sequence.generated, running.job.output)

    def _commit_host(self, host: HostPrompts, plan: StepPlan, began: float) -> None:
        """Frees the host memory of prompts that the device has whole, and notes the first tokens of others."""
        for step in plan.steps:
            held = host.found(step.sequence_id)
            if held is not None and step.end >= held.done:
                self._jobs[step.sequence_id].held = held
                host.release(step.sequence_id)
        for held in host.commit(began, self._now):
            if held.first_s is not None and held.job.output == 1:
                self.scheduler.end(held.job.number, self._now)
                host.release(held.job.number)
                running = self._jobs.pop(held.job.number)
                running.held = held
                self._finish(running)

    def _size(self, ranges: list[tuple[int, int, int]]) -> StepSize:
        """The step of (first position, rows, samples) of each sequence."""
        each_rows = [(start, rows) for start, rows, _ in ranges]
        return StepSize(
            sum(rows for _, rows in each_rows),
            sum(samples for _, _, samples in ranges),
            len(each_rows),
            tuple(sum(visible(*each, window) for each in each_rows) for window in self._windows),
            tuple(sum(read_positions(*each, window) for each in each_rows) for window in self._windows),
            tuple((1, SequenceRows(new, start)) for start, new in each_rows if new > 1),
        )

    def _outcomes(self, plan: StepPlan) -> tuple[SequenceOutcome, ...]:
        return tuple(
            SequenceOutcome(step.sequence_id, (self._jobs[step.sequence_id].base + step.end,) if step.samples else ())
            for step in plan.steps
        )

    def _finish(self, running: _RunningJob) -> None:
        sequence, held = running.sequence, running.held
        record = sequence.record
        admitted, first, cached = sequence.admitted_at, sequence.first_token_at, record.cached
        if held is not None:
            admitted, cached = held.begun_s, held.copied
            first = first if held.first_s is None else held.first_s
        done = JobResult(running.job, admitted, first, self._now, cached, record.preemptions, record.loaded)
        self._end(done)
        if self._recording is not None:
            self._recording.job_ended(done, record.stalls)


def tokens_of(job: SimulatedJob) -> tuple[array[int], int]:
    """The prompt's tokens, and the base of its stream, whose token at position p is ``base`` + p."""
    tokens, base = array("i"), 0
    for name, start, end in spans(job):
        base = _base(name)
        tokens.extend(range(base, base + min(end, job.prompt) - start))
        base -= start
    return tokens, base


def _base(name: int | tuple[int]) -> int:
    """A token for the start of a part. Hashes of −1 and −2 are equal in CPython, so the sign is hashed apart."""
    number = name if isinstance(name, int) else name[0]
    return hash((abs(number), number < 0, isinstance(name, tuple), 0x5EED)) & MAX_TOKEN


def _make_scheduler(setting: EngineSetting, predicted: PredictedTimes) -> Scheduler:
    manager = BlockManager(
        setting.groups, setting.block_size, prefix_caching=setting.prefix_caching, chunk=setting.attention_chunk
    )
    step_time, lever = StepTimeModel(setting.step_basis, setting.step_samples), setting.kv_store
    budget: Budget = FixedBudget(setting.rows)
    if setting.tpot_target_s is not None:
        budget = LiveBudget(step_time, setting.tpot_target_s, setting.itl_limit_s)
    store = None if lever is None else engine_store(lever, manager)
    return Scheduler(
        manager,
        StepLimits(setting.sequences, setting.rows, setting.sequences),
        budget=budget,
        step_time=step_time,
        features=[] if store is None else [PrefixLoading(store, predicted)],
        store=store,
        max_waiting=1 << 62,
    )
