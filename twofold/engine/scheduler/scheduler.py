"""Which sequences advance in the next step, and by how many tokens. Deterministic, without I/O: time is an argument.

    plan      1. Every running sequence with one token to compute gets its row, except those whose token mask is not
                 ready. Drafts get rows that prompts leave.
              2. The budget limits the rows of prompts; running prompts get them, urgent classes first.
              3. Waiting sequences are admitted in the order of the queue, while rows, slots and blocks last. The first
                 that does not fit blocks those behind it, so none starves.
              4. If it does not fit and its tenant runs at least two sequences fewer than another tenant, the least
                 urgent sequence of that tenant is preempted, unless its class is more urgent. So tenants that want
                 slots share them evenly, and a single tenant gets all of them.
    plan_ahead  Plans the rows of the next step that do not depend on the tokens of this one.
    commit    Moves cursors, emits tokens, publishes full blocks, and teaches the step-time model.
    end       Ends a sequence at any moment; ``expire`` ends those whose time is up.

Blocks are taken as rows need them. When they run out, the least urgent running sequence is preempted, again and again,
until the blocks suffice or the sequence that needs them was preempted itself. So the most urgent running sequence is
never stopped, and a sequence that fits alone always ends. A plan that preempts admits no sequence.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

from twofold.core.errors import ContextLengthError, ResourceError
from twofold.core.record import WaitReason
from twofold.core.report import KVPicture
from twofold.core.step import FinishReason, SequenceOutcome, SequenceStep, StepOutcome, StepPlan, TokenEvent
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.store import KVStore, StoreResult
from twofold.engine.scheduler.blocks import (
    LookAhead,
    PreemptionCost,
    SequenceBlocks,
    least_urgent,
    sequences_above_share,
)
from twofold.engine.scheduler.budget import MIN_PREFILL_ROWS, Budget, StepBuilder, StepLimits, StepPace
from twofold.engine.scheduler.feature import FORKED, NEW, TURN, Gain, StepFeature, Wait
from twofold.engine.scheduler.forecast import QueueAhead
from twofold.engine.scheduler.lanes import Lanes
from twofold.engine.scheduler.queue import COMPLETION_WEIGHT, PROMPT_WEIGHT, WaitingQueue
from twofold.engine.scheduler.records import WorkRecords
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.step_time import StepTimeModel, StepWork
from twofold.engine.scheduler.waits import ParallelGroups, TimeLimits, WaitTimes


class Scheduler:
    """Sequences wait, run and finish; ``plan`` and ``commit`` move them, ``end`` ends them at any moment.

    manager       the owner of KV blocks
    step_time     the model that predicts how long steps take
    features      such as speculation and loading from ``store``, the KV store
    max_waiting   maximum number of waiting sequences
    ageing_s      seconds of waiting after which a class is as urgent as the next more urgent one

    ``steps`` counts the committed steps, ``preemptions`` all preemptions so far, ``swaps`` those that moved blocks to
    the host; ``drafts`` counts draft tokens. ``lanes`` has the slots of running sequences, and events while watched.
    ``features``: all of them, in the order of calls: records first, because others read them, and ``lanes`` last.
    """

    def __init__(
        self,
        manager: BlockManager,
        limits: StepLimits,
        *,
        budget: Budget,
        step_time: StepTimeModel,
        features: Iterable[StepFeature] = (),
        store: KVStore | None = None,
        max_waiting: int = 100_000,
        ageing_s: float = 10.0,
    ) -> None:
        self.manager, self.store = manager, store
        self.limits, self._budget = limits, budget
        self.step_time, self._max_waiting = step_time, max_waiting
        self.queue: WaitingQueue[Sequence] = WaitingQueue(ageing_s)
        self._live: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._parked: dict[int, Sequence] = {}
        self._ended: list[int] = []
        self._ahead: dict[int, SequenceStep] = {}
        self.steps = self.preemptions = self.swaps = 0
        self.lanes = Lanes()
        self._blocks = SequenceBlocks(manager, store)
        self._look_ahead, self._cost = LookAhead(manager, self._blocks, limits.rows), PreemptionCost(manager, step_time)
        self._waits, self._times, self._groups = WaitTimes(), TimeLimits(), ParallelGroups(self.queue)
        records = WorkRecords(manager, step_time)
        own = records, self._look_ahead, self._cost, self._waits, self._times, self._groups
        self.features: tuple[StepFeature, ...] = (*own, *features, self.lanes)
        self.drafts = records.drafts

    @property
    def waiting(self) -> int:
        """Sequences without a slot, preempted ones included."""
        return len(self._live) - len(self._running)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def defers(self) -> bool:
        """Whether a running sequence waits for its token mask."""
        return any(sequence.deferred for sequence in self._running.values())

    @property
    def has_work(self) -> bool:
        return bool(self._live) or self._stores

    @property
    def _stores(self) -> bool:
        """Whether the store reads or writes blocks."""
        return self.store is not None and self.store.busy

    def add(self, sequence: Sequence, now: float) -> None:
        """Queues a new sequence, or lets it wait for its parent, if that will compute the prompt.

        Raises ContextLengthError for a sequence that could never run, ResourceError if too many wait.
        """
        largest = self.manager.largest()
        if sequence.positions_needed > largest:
            raise ContextLengthError.of_cache(sequence.prompt_length, sequence.positions_needed, largest)
        if self.waiting >= self._max_waiting:
            raise ResourceError(f"{self.waiting} sequences are queued, the maximum.", hint="Raise max_waiting_seqs.")
        self._enter(sequence, NEW, now)
        self._groups.add(sequence)

    def fork(self, parent_id: int, child: Sequence, now: float) -> None:
        """Adds a sequence that begins with its parent's computed tokens. It shares their blocks and runs at once. If a
        slot or blocks are missing, or the parent does not run, it is queued instead and computes the tokens itself."""
        self._enter(child, FORKED, now)
        parent = self._running.get(parent_id) if len(self._running) < self.limits.sequences else None
        if parent is not None and self._blocks.branch(child, parent, min(parent.computed, child.max_cached), now):
            self._run(child, now)
        else:
            self.queue.put_back(child)

    def expire(self, now: float) -> list[TokenEvent]:
        """Ends sequences that have reached their deadline, or their queue limit before they ran. To be called in every
        turn of the loop, before ``plan``."""
        self.manager.expire(now)
        events = []
        while (event := self._times.reached(now)) is not None:
            self.end(event.sequence_id, now, event.finish or "abort")
            events.append(event)
        return events

    def take_stored(self, results: Iterable[StoreResult], now: float) -> None:
        """Takes results of the store. Sequences whose loads have ended are queued before new ones of their class."""
        for sequence in [each for feature in self.features for each in feature.take_stored(results, now)]:
            self.queue.put_back(sequence)
            self._wait(sequence, TURN, now)

    def watch(self, now: float) -> None:
        """Starts to keep the events of ``lanes``."""
        self.lanes.watch(((sequence, self._waits.cause(sequence)) for sequence in self._live.values()), now)

    def picture(self) -> KVPicture:
        """The KV cache with its owners. It takes up to a millisecond, so it is not for every step."""
        running = self._running.items()
        return self.manager.picture((number, each.tables) for number, each in running if each.tables is not None)

    def queue_ahead(self, priority: int, now: float) -> QueueAhead:
        """What is before a request of this priority that arrives now."""
        waiting, share = self.queue.before(priority, now), self._look_ahead.share
        return QueueAhead(self.limits, self._budget, self.step_time, self._running.values(), waiting, share)

    def plan(self, now: float) -> StepPlan:
        """The next step; empty when there is nothing to do."""
        step, before = StepBuilder(self.limits), self.preemptions
        self._unpark()
        for sequence in self._blocks.lost(self._running.values()):
            self._preempt(step, sequence, now)
        running = self._running.values()
        decoding = [sequence for sequence in running if sequence.decodes and not (sequence.resting or sequence.waits)]
        prompts = [sequence for sequence in running if not sequence.decodes]
        self._place_decodes(step, decoding, len(prompts), now)
        shape, delayed = step.shape, decoding if prompts or self.queue else ()
        allowance = self._budget.allowance(delayed, shape, self._look_ahead.share, now, self._extend(step))
        pace = StepPace(self._budget, shape, allowance)
        for sequence in sorted(prompts, key=lambda sequence: sequence.options.priority):
            self._place_prompt(step, sequence, pace, now)
        if self.preemptions != before:
            step.short = step.blocked = True
        elif not self._admit(step, pace, now):
            self._share_slots(step, now)
        if not step.steps:
            self._unblock(step, pace, now)
        predicted = self.step_time.predict(step.shape) if step.shape.rows else None
        if predicted is not None:
            predicted += self._extend(step)
        moves = self.manager.take_moves()
        for feature in self.features:
            feature.planned(step, moves, now)
        ended = tuple(self._ended) if step.steps else ()
        self._ended = self._ended[len(ended) :]
        held = self.waiting - len(self.queue) - len(self._parked) - len(self._groups)  # by features
        steps, held_by = tuple(step.steps.values()), step.held_by(running, len(self.queue), held)
        self._blocks.issue(steps, self._running)
        work, budget = step.shape[2:], pace.allowed(step) if self.lanes.watched else None
        return StepPlan(steps, moves, ended, predicted, step.decode_rows, step.constraints, *work, held_by, budget)

    def plan_ahead(self, plan: StepPlan) -> None:
        """Plans the next rows of generating sequences while ``plan`` is computed; the runner puts the sampled tokens
        into them (``SAMPLED``). The next ``plan`` uses the rows of sequences that continue. Nothing else changes: rows
        that need a new block are left to ``plan``.
        """
        for step in plan.steps:
            sequence = self._running.get(step.sequence_id)
            following = None if sequence is None else sequence.following(step)
            if following is not None:
                self._ahead[step.sequence_id] = following
        for feature in self.features:
            feature.overlap(self._running.values())

    def commit(self, plan: StepPlan, outcome: StepOutcome, now: float) -> list[TokenEvent]:
        """Moves the cursors of the plan's sequences; those that have ended since are skipped."""
        work = StepWork.measure(plan, outcome, self.step_time)
        self.step_time.observe(work.shape, work.seconds - sum(outcome.draft_s))
        for feature in self.features:
            feature.computed(plan, outcome, work)
        live = []
        for step, result in zip(plan.steps, outcome.sequences, strict=True):
            assert step.sequence_id == result.sequence_id, "an outcome belongs to another sequence"
            sequence = self._running.get(step.sequence_id)
            if sequence is not None and sequence.computed == step.start:
                sequence.pass_on(result)
                live.append((sequence, step, result))
        gained = [self._gain(sequence, step, result, work, now) for sequence, step, result in live]
        self.steps += 1
        self.lanes.add_tokens(self._running.values(), now)
        return [event for event in gained if event is not None]

    def end(self, sequence_id: int, now: float, reason: FinishReason = "abort") -> bool:
        """Ends a sequence at any moment and frees what it holds; False if it has ended already."""
        sequence = self._live.get(sequence_id)
        if sequence is None:
            return False
        sequence.finish(reason)
        self._leave(sequence, now)
        return True

    def pause(self, sequence_id: int, now: float) -> None:
        """Pauses a sequence until ``resume``: it gives up its slot and its blocks."""
        sequence = self._live.get(sequence_id)
        if sequence is None or sequence.paused:
            return
        sequence.paused = True
        self._leave(sequence, now)
        self._parked[sequence_id] = sequence
        self._wait(sequence, Wait(WaitReason.READER), now)

    def resume(self, sequence_id: int, now: float) -> None:
        """Queues a paused sequence again, ahead of sequences of its tenant that arrived later."""
        sequence = self._live.get(sequence_id)
        if sequence is not None and sequence.paused:
            sequence.paused = False
            self._wait(sequence, TURN, now)
            if not sequence.resting:
                del self._parked[sequence_id]
                self.queue.add(sequence)

    def check_idle(self) -> None:
        """Asserts that the blocks are consistent. If no sequence waits or runs, asserts that none of them is held."""
        self.manager.check()
        if self.store is not None:
            self.store.check()
        if not self.has_work:
            assert not any(self.manager.held), f"{self.manager.held} KV blocks leaked"
            left = [len(self.queue), len(self._parked), len(self._groups), len(self._times)]
            assert not any(left), "a sequence was not removed"
            assert self._waits.idle(), "a wait was not ended"
            assert not self.lanes.slots, "a slot was not freed"

    def _place_decodes(self, step: StepBuilder, decoding: list[Sequence], prompts: int, now: float) -> None:
        prompts += min(len(self.queue), self.limits.sequences - len(self._running))
        kept = max(prompts, MIN_PREFILL_ROWS) if prompts else 0  # drafts get only what prompts leave
        drafts: dict[int, array[int]] = {}
        for feature in self.features:
            drafts |= feature.propose(decoding, min(step.rows, step.logit_rows) - len(decoding) - kept)
        ahead, self._ahead = self._ahead, {}
        for sequence in decoding:
            number = sequence.sequence_id
            if not (step.rows and step.logit_rows and sequence.state is SequenceState.RUNNING):
                continue
            if number in ahead and number not in drafts:
                step.add(sequence, sequence.prepared(ahead[number]))
            elif self._grow(step, sequence, 1, now) and number not in drafts:
                step.add(sequence, sequence.next_step(1))
        for sequence in decoding if drafts else ():  # all rows have their blocks: nothing is preempted for drafts
            draft = drafts.get(sequence.sequence_id)
            if draft and sequence.state is SequenceState.RUNNING:
                fits = self._blocks.grow(sequence, 1 + len(draft), now)
                step.add(sequence, sequence.next_step(1, draft if fits else ()))

    def _extend(self, step: StepBuilder) -> float:
        """The predicted seconds of what features add to a step."""
        return sum((feature.extend(step) for feature in self.features), 0.0)

    def _place_prompt(self, step: StepBuilder, sequence: Sequence, pace: StepPace, now: float) -> None:
        if sequence.state is not SequenceState.RUNNING:
            return
        rows = pace.rows(step, sequence)
        while rows > 1 and not self._blocks.grow(sequence, rows, now):
            rows //= 2
            step.short = True
        if rows and self._grow(step, sequence, rows, now):
            step.add(sequence, sequence.next_step(rows))

    def _admit(self, step: StepBuilder, pace: StepPace, now: float) -> bool:
        """Admits waiting sequences; False if slots or blocks did not suffice for all."""
        step.blocked = False
        while len(self._running) < self.limits.sequences and (head := self.queue.head()) is not None:
            if self._hold(head, now):
                continue
            if not pace.rows(step, head):
                break
            step.blocked = not self._look_ahead.start(head, self._running.values(), now)
            if step.blocked:
                break
            self.queue.remove(head)
            self._run(head, now)
            self._place_prompt(step, head, pace, now)
        return not (step.blocked or (self.queue and len(self._running) >= self.limits.sequences))

    def _share_slots(self, step: StepBuilder, now: float) -> None:
        """Preempts a sequence of the tenant that runs most, for the head of the queue."""
        head = self.queue.head()
        movable = [] if head is None else sequences_above_share(self._running.values(), head.options)
        if movable:
            self._preempt(step, least_urgent(movable, self.queue.urgency), now, cause="tenant")

    def _unblock(self, step: StepBuilder, pace: StepPace, now: float) -> None:
        """Preempts resting sequences one by one, and finally drops all pins, until a sequence can advance."""
        while self.queue and not step.steps:
            self._admit(step, pace, now)
            resting = [sequence for sequence in self._running.values() if sequence.resting]
            if resting and not step.steps:
                self._preempt(step, least_urgent(resting, self.queue.urgency), now)
            elif any(self.manager.pinned) and not self._running and not self._stores:
                self.manager.expire(math.inf)
            else:
                return

    def _hold(self, head: Sequence, now: float) -> bool:
        """Takes the head from the queue if a feature lets it wait for something else."""
        running = self._running.values()
        for feature in self.features:
            wait = feature.hold(head, lambda: self._look_ahead.lasts(head, running), now, alone=not running)
            if wait is not None:
                self.queue.remove(head)
                self._wait(head, wait, now)
                return True
        return False

    def _run(self, sequence: Sequence, now: float) -> None:
        """Counts a sequence that has its blocks as running."""
        self._running[sequence.sequence_id] = sequence
        sequence.account = self.queue.account(sequence)
        first = sequence.admitted_at is None
        if first:
            sequence.admitted_at = now
            sequence.account.service += PROMPT_WEIGHT * max(sequence.prompt_length - sequence.cached, 0)
        for feature in self.features:
            feature.started(sequence, now, first=first)

    def _grow(self, step: StepBuilder, sequence: Sequence, rows: int, now: float) -> bool:
        """Takes blocks for the rows of a running sequence, preempting less urgent ones if necessary; False if it was
        preempted itself."""
        while not self._blocks.grow(sequence, rows, now):
            victim = least_urgent(self._running.values(), self.queue.urgency)
            self._preempt(step, victim, now)
            if victim is sequence:
                return False
        return True

    def _preempt(self, step: StepBuilder, victim: Sequence, now: float, cause: str = "blocks") -> None:
        """Preempts a running sequence. For ``blocks``, it goes before new ones; for a ``tenant``, it is queued as a new
        one."""
        step.drop(victim)
        self.preemptions += 1
        self._leave(victim, now)
        self._wait(victim, Wait(WaitReason.PREEMPTED, cause), now)
        if victim.resting:
            self._parked[victim.sequence_id] = victim
        elif cause == "blocks":
            self.queue.put_back(victim)
        else:
            self.queue.add(victim)

    def _leave(self, sequence: Sequence, now: float) -> None:
        """Takes a sequence from its slot or from the queue, and its blocks. If it runs and has not ended, it is swapped
        out if that is cheaper and the host has room."""
        number, state = sequence.sequence_id, sequence.state
        if self._running.pop(number, None) is not None:
            self._ended.append(number)
        elif sequence in self.queue:
            self.queue.remove(sequence)
        if state is SequenceState.FINISHED:
            del self._live[number]
            self._parked.pop(number, None)
            self._blocks.release(sequence, now)
        elif state is SequenceState.RUNNING:
            sequence.paced_from = None
            if self._cost.prefers_swap(sequence) and self._blocks.swap_out(sequence):
                self.swaps += 1
            else:
                self._cost.lose(sequence)
                self._blocks.preempt(sequence, now)
        for feature in self.features:
            feature.left(sequence, now)

    def _wait(self, sequence: Sequence, wait: Wait, now: float) -> None:
        for feature in self.features:
            feature.waits(sequence, wait, now)

    def _unpark(self) -> None:
        """Queues preempted beams again after they were extended, unless they are paused."""
        for sequence in [parked for parked in self._parked.values() if not (parked.resting or parked.paused)]:
            del self._parked[sequence.sequence_id]
            self.queue.put_back(sequence)

    def _gain(
        self, sequence: Sequence, step: SequenceStep, result: SequenceOutcome, work: StepWork, now: float
    ) -> TokenEvent | None:
        """Advances one sequence; its event, or None without a result."""
        sequence.advance(len(step.tokens) - step.drafts, deferred=result.deferred)
        tokens = sequence.take(result)
        self._blocks.publish(sequence, now)
        first = sequence.first_token_at is None and bool(tokens or result.candidates)
        if first:
            sequence.first_token_at = now
        gain = Gain(sequence, step, tokens, work, now, first)
        for feature in self.features:
            feature.advanced(gain)
        sequence.account.service += COMPLETION_WEIGHT * len(tokens)
        if sequence.paced_from is None and tokens:
            sequence.paced_from = now, sequence.generated
        if sequence.state is SequenceState.FINISHED:
            self._leave(sequence, now)
        return sequence.event(tokens, result, now, self.steps)

    def _enter(self, sequence: Sequence, wait: Wait, now: float) -> None:
        number = sequence.sequence_id
        assert number not in self._live, f"sequence {number} exists already"
        self._live[number] = sequence
        self._wait(sequence, wait, now)
