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
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from twofold.core.errors import ContextLengthError, ResourceError
from twofold.core.lanes import LaneKind
from twofold.core.record import WaitReason
from twofold.core.report import DraftCounts, KVPicture
from twofold.core.step import (
    SAMPLED_TOKEN,
    FinishReason,
    HeldBy,
    SequenceOutcome,
    SequenceStep,
    StepOutcome,
    StepPlan,
    TokenEvent,
)
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.store import StoreResult
from twofold.engine.scheduler.blocks import LookAhead, PreemptionCost, SequenceBlocks, least_urgent
from twofold.engine.scheduler.budget import MIN_PREFILL_ROWS, Budget, StepBuilder, StepLimits, StepPace
from twofold.engine.scheduler.forecast import QueueAhead
from twofold.engine.scheduler.lanes import Lanes
from twofold.engine.scheduler.loading import PrefixLoading
from twofold.engine.scheduler.queue import COMPLETION_WEIGHT, PROMPT_WEIGHT, TenantAccount, WaitingQueue
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.speculation import Speculator
from twofold.engine.scheduler.step_time import StepTimeModel, StepWork
from twofold.engine.scheduler.waits import ParallelGroups, TimeLimits, WaitTimes, will_compute_prompt


class Scheduler:
    """Sequences wait, run and finish; ``plan`` and ``commit`` move them, ``end`` ends them at any moment.

    manager       the owner of KV blocks
    step_time     the model that predicts how long steps take
    speculator    proposes draft tokens; None: no speculation
    max_waiting   maximum number of waiting sequences
    ageing_s      seconds of waiting after which a class is as urgent as the next more urgent one
    loading       loads prefixes from the disk; None: there is no KV store

    ``steps`` counts the committed steps, ``preemptions`` all preemptions so far, ``swaps`` those that moved blocks to
    the host; ``drafts`` counts draft tokens. ``lanes`` has the slots of running sequences, and events while watched.
    """

    def __init__(
        self,
        manager: BlockManager,
        limits: StepLimits,
        *,
        budget: Budget,
        step_time: StepTimeModel,
        speculator: Speculator | None = None,
        max_waiting: int = 100_000,
        ageing_s: float = 10.0,
        loading: PrefixLoading | None = None,
    ) -> None:
        self.manager = manager
        self.store = None if loading is None else loading.store
        self._loading = loading
        self.limits = limits
        self._budget = budget
        self.step_time = step_time
        self._speculator = speculator
        self._draft_model = None if speculator is None else speculator.model
        self._max_waiting = max_waiting
        self.queue: WaitingQueue[Sequence] = WaitingQueue(ageing_s)
        self._live: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._accounts: dict[int, TenantAccount] = {}
        self._parked: dict[int, Sequence] = {}
        self._ended: list[int] = []
        self._ahead: dict[int, SequenceStep] = {}
        self._groups = ParallelGroups()
        self._times = TimeLimits()
        self._windows = [window.positions for window in manager.windows if window.positions is not None]
        self._blocks = SequenceBlocks(manager, self.store)
        self._look_ahead = LookAhead(manager, self._blocks, limits.rows)
        self._cost = PreemptionCost(manager, step_time)
        self._waits = WaitTimes()
        self.steps = 0
        self.lanes = Lanes()
        self.preemptions = 0
        self.swaps = 0
        self.drafts = DraftCounts()

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
        self._enter(sequence)
        self.lanes.arrive(sequence, sequence.arrival)
        self._waits.enter_queue(sequence, now)
        self._times.wait(sequence)
        parent = sequence.parent
        if parent is not None and parent.sequence_id in self._live and will_compute_prompt(parent):
            self._groups.wait(sequence, parent)
        else:
            self.queue.add(sequence)

    def fork(self, parent_id: int, child: Sequence, now: float) -> None:
        """Adds a sequence that begins with its parent's computed tokens. It shares their blocks and runs at once. If a
        slot or blocks are missing, or the parent does not run, it is queued instead and computes the tokens itself."""
        self._enter(child)
        self.lanes.arrive(child, now)
        parent = self._running.get(parent_id)
        if parent is not None and len(self._running) < self.limits.sequences:
            shared = min(parent.computed, child.max_cached)
            if self._blocks.branch(child, parent, shared, now):
                self._run(child, now)
                return
        self._waits.enter_queue(child, now)
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
        assert self._loading is not None, "only a store has results"
        for result in results:
            for sequence in self._loading.finish(result, now):
                self._waits.leave_queue(sequence, now)
                self._waits.enter_queue(sequence, now)
                self.queue.put_back(sequence)
                self.lanes.add(LaneKind.QUEUE, sequence, now)

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
        running = self._running.values()
        decoding = [sequence for sequence in running if sequence.decodes and not (sequence.resting or sequence.waits)]
        prompts = [sequence for sequence in running if not sequence.decodes]
        self._place_decodes(step, decoding, len(prompts), now)
        shape = step.shape
        delayed = decoding if prompts or self.queue else ()
        draft_s = 0.0 if self._draft_model is None else self._draft_model.predict_steps(step.steps.values())
        allowance = self._budget.allowance(delayed, shape, self._look_ahead.share, now, draft_s)
        pace = StepPace(self._budget, shape, allowance)
        for sequence in sorted(prompts, key=lambda sequence: sequence.options.priority):
            self._place_prompt(step, sequence, pace, now)
        preempted = self.preemptions != before
        if preempted:
            self._waits.set_blocked(True, now)
        elif not self._admit(step, pace, now):
            self._share_slots(step, now)
        if not step.steps:
            self._unblock(step, pace, now)
        predicted = self.step_time.predict(step.shape) if step.shape.rows else None
        moves = self.manager.take_moves()
        if self._draft_model is not None:
            self._draft_model.move(moves)
            if predicted is not None:
                predicted += self._draft_model.predict_steps(step.steps.values())
        ended: tuple[int, ...] = ()
        if step.steps:
            ended, self._ended = tuple(self._ended), []
        steps, held_by = tuple(step.steps.values()), self._held_by(step, preempted=preempted)
        work, budget = step.shape[2:], pace.allowed(step) if self.lanes.watched else None
        return StepPlan(steps, moves, ended, predicted, step.decode_rows, step.constraints, *work, held_by, budget)

    def plan_ahead(self, plan: StepPlan) -> None:
        """Plans the next rows of generating sequences while ``plan`` is computed; the runner puts the sampled tokens
        into them (``SAMPLED``). The next ``plan`` uses the rows of sequences that continue. Nothing else changes: rows
        that need a new block are left to ``plan``.
        """
        for step in plan.steps:
            sequence = self._running.get(step.sequence_id)
            if step.decode and step.samples == 1 and sequence is not None and sequence.follows(step):
                self._ahead[step.sequence_id] = SequenceStep(
                    step.sequence_id, SAMPLED_TOKEN, step.end, samples=1, alternatives=step.alternatives, decode=True
                )
        if self._speculator is not None:
            self._speculator.feed(self._running.values())

    def commit(self, plan: StepPlan, outcome: StepOutcome, now: float) -> list[TokenEvent]:
        """Moves the cursors of the plan's sequences; those that have ended since are skipped."""
        work = StepWork.measure(plan, outcome, self.step_time)
        self.step_time.observe(work.shape, work.seconds - sum(outcome.draft_s))
        if self._draft_model is not None:
            self._draft_model.observe(plan.steps, outcome.draft_s)
        self._cost.learn_moves(plan, outcome)
        self._waits.add_prefill(work.prefill_s)
        live = []
        for step, result in zip(plan.steps, outcome.sequences, strict=True):
            assert step.sequence_id == result.sequence_id, "an outcome belongs to another sequence"
            sequence = self._running.get(step.sequence_id)
            if sequence is not None and sequence.computed == step.start:
                sequence.pass_on(result)
                live.append((sequence, step, result))
        gained = [self._gain(sequence, step, result, work, now) for sequence, step, result in live]
        self.steps += 1
        if self.lanes.watched:
            self.lanes.add_tokens(self._running.values(), now)
        return [event for event in gained if event is not None]

    def end(self, sequence_id: int, now: float, reason: FinishReason = "abort") -> bool:
        """Ends a sequence at any moment and frees what it holds; False if it has ended already."""
        sequence = self._live.get(sequence_id)
        if sequence is None:
            return False
        sequence.finish(reason)
        self._retire(sequence, now)
        return True

    def pause(self, sequence_id: int, now: float) -> None:
        """Pauses a sequence until ``resume``: it gives up its slot and its blocks."""
        sequence = self._live.get(sequence_id)
        if sequence is None or sequence.paused:
            return
        sequence.paused = True
        if sequence.state is SequenceState.RUNNING:
            self._displace(sequence, now)
        elif sequence in self.queue:
            self.queue.remove(sequence)
        self._groups.leave(sequence)
        if self._loading is not None:
            self._loading.leave(sequence)
        self._waits.leave_queue(sequence, now)
        self._waits.enter_queue(sequence, now, WaitReason.READER)
        self._parked[sequence_id] = sequence
        self.lanes.add(LaneKind.HOLD, sequence, now)

    def resume(self, sequence_id: int, now: float) -> None:
        """Queues a paused sequence again, ahead of sequences of its tenant that arrived later."""
        sequence = self._live.get(sequence_id)
        if sequence is not None and sequence.paused:
            sequence.paused = False
            self._waits.leave_queue(sequence, now)
            self._waits.enter_queue(sequence, now)
            self.lanes.add(LaneKind.QUEUE, sequence, now)
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
            left = [len(self._ahead), len(self.queue), len(self._parked), len(self._groups), len(self._times)]
            assert not any(left), "a sequence was not removed"
            assert self._waits.idle(), "a wait was not ended"
            assert not self.lanes.slots, "a slot was not freed"

    def _place_decodes(self, step: StepBuilder, decoding: list[Sequence], prompts: int, now: float) -> None:
        drafts: dict[int, array[int]] = {}
        if self._speculator is not None:
            prompts += min(len(self.queue), self.limits.sequences - len(self._running))
            kept = max(prompts, MIN_PREFILL_ROWS) if prompts else 0  # drafts get only what prompts leave
            drafts = self._speculator.propose(decoding, min(step.rows, step.logit_rows) - len(decoding) - kept)
        for sequence in decoding:
            room = step.rows and step.logit_rows and sequence.state is SequenceState.RUNNING
            ahead = self._ahead.pop(sequence.sequence_id, None)
            if room and ahead is not None and sequence.sequence_id not in drafts:
                step.add(sequence, sequence.prepared(ahead))
            elif room and self._grow(step, sequence, 1, now) and sequence.sequence_id not in drafts:
                step.add(sequence, sequence.next_step(1))
        for sequence in decoding if drafts else ():  # all rows have their blocks: nothing is preempted for drafts
            draft = drafts.get(sequence.sequence_id)
            if draft and sequence.state is SequenceState.RUNNING:
                fits = self._blocks.grow(sequence, 1 + len(draft), now)
                step.add(sequence, sequence.next_step(1, draft if fits else ()))
        if self._draft_model is not None:
            for number, rows in self._draft_model.planned.items():
                if number in step.steps:
                    step.steps[number] = replace(step.steps[number], draft=rows)

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
        blocked = False
        while len(self._running) < self.limits.sequences and (head := self.queue.head()) is not None:
            if self._load(head, now):
                continue
            if not pace.rows(step, head):
                break
            blocked = not self._start(head, now)
            if blocked:
                break
            self._place_prompt(step, head, pace, now)
        self._waits.set_blocked(blocked, now)
        return not (blocked or (self.queue and len(self._running) >= self.limits.sequences))

    def _share_slots(self, step: StepBuilder, now: float) -> None:
        """Preempts a sequence of the tenant that runs most, for the head of the queue."""
        head = self.queue.head()
        if head is None:
            return
        slots = Counter(sequence.options.tenant for sequence in self._running.values())
        greedy, most = slots.most_common(1)[0] if slots else ("", 0)
        if most < slots[head.options.tenant] + 2:
            return
        own = [each for each in self._running.values() if each.options.tenant == greedy and not each.resting]
        movable = [sequence for sequence in own if sequence.options.priority >= head.options.priority]
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

    def _held_by(self, step: StepBuilder, *, preempted: bool) -> HeldBy:
        """What kept prompts from more rows in a step that is planned."""
        if preempted or step.short or self._waits.blocked:
            return "blocks"
        if step.leaves_rows(self._running.values()) or (self.queue and len(self._running) < self.limits.sequences):
            return "budget" if step.rows and step.logit_rows else "rows"
        if self.queue:
            return "slots"
        return "loading" if self._loading is not None and self._loading.waits else "nothing"

    def _load(self, head: Sequence, now: float) -> bool:
        """Lets the head of the queue load its prefix from the store, if that pays and its blocks will last."""
        if self._loading is None:
            return False
        running = self._running.values()
        prefix = self._loading.find(head, alone=not running)
        if prefix is None or not self._look_ahead.lasts(head, running, self._blocks.shareable(head)):
            return False
        if not self._loading.begin(head, prefix, now, alone=not running):
            return False
        self.queue.remove(head)
        self._waits.leave_queue(head, now)
        self._waits.enter_queue(head, now, WaitReason.LOADING)
        self.lanes.add(LaneKind.LOAD, head, now, prefix.tokens)
        return True

    def _start(self, sequence: Sequence, now: float) -> bool:
        """Runs the head of the queue if its blocks will last; otherwise False, with nothing changed."""
        if not self._look_ahead.start(sequence, self._running.values(), now):
            return False
        self.queue.remove(sequence)
        self._waits.leave_queue(sequence, now)
        self._run(sequence, now)
        return True

    def _run(self, sequence: Sequence, now: float) -> None:
        """Counts a sequence that has its blocks as running."""
        self._running[sequence.sequence_id] = sequence
        record = sequence.record
        account = self._accounts[sequence.sequence_id] = self.queue.account(sequence)
        first = sequence.admitted_at is None
        if first:
            sequence.admitted_at = now
            self._times.admit(sequence.sequence_id)
            record.cached = min(sequence.cached, sequence.prompt_length)
            record.fresh = sequence.prompt_length - record.cached
            account.service += PROMPT_WEIGHT * record.fresh
        if self._loading is not None:
            self._loading.admit(sequence)
        record.recomputed += self._cost.recover(sequence)
        if sequence.first_token_at is not None:
            self._waits.begin_decode(sequence)
        self.lanes.run(sequence, now, first=first)

    def _grow(self, step: StepBuilder, sequence: Sequence, rows: int, now: float) -> bool:
        """Takes blocks for the rows of a running sequence, preempting less urgent ones if necessary; False if it was
        preempted itself."""
        while not self._blocks.grow(sequence, rows, now):
            victim = least_urgent(self._running.values(), self.queue.urgency)
            self._preempt(step, victim, now)
            if victim is sequence:
                return False
        return True

    def _preempt(
        self, step: StepBuilder, victim: Sequence, now: float, *, cause: Literal["blocks", "tenant"] = "blocks"
    ) -> None:
        """Preempts a running sequence. For ``blocks``, it goes before new ones; for a ``tenant``, it is queued as a new
        one."""
        step.drop(victim)
        self.preemptions += 1
        victim.record.preemptions += 1
        self._displace(victim, now)
        self.lanes.preempt(victim, now, cause)
        self._waits.enter_queue(victim, now, WaitReason.PREEMPTED)
        if victim.resting:
            self._parked[victim.sequence_id] = victim
        elif cause == "blocks":
            self.queue.put_back(victim)
        else:
            self.queue.add(victim)

    def _displace(self, victim: Sequence, now: float) -> None:
        """Frees the slot and the blocks of a running sequence."""
        del self._running[victim.sequence_id], self._accounts[victim.sequence_id]
        self.lanes.stop(victim)
        self._ended.append(victim.sequence_id)
        self._ahead.pop(victim.sequence_id, None)
        victim.paced_from = None
        self._waits.end_decode(victim)
        if not self._swap_out(victim):
            self._cost.lose(victim)
            self._blocks.preempt(victim, now)
            if self._draft_model is not None:
                self._draft_model.lose(victim)
        self._release_group(victim)

    def _swap_out(self, victim: Sequence) -> bool:
        """Swaps the sequence out if that is cheaper and the host has room."""
        if not (self._cost.prefers_swap(victim) and self._blocks.swap_out(victim)):
            return False
        assert victim.swapped is not None, "its blocks are on the host"
        self.swaps += 1
        victim.record.swapped += victim.swapped.blocks
        return True

    def _unpark(self) -> None:
        """Queues preempted beams again after they were extended, unless they are paused."""
        for sequence in [parked for parked in self._parked.values() if not (parked.resting or parked.paused)]:
            del self._parked[sequence.sequence_id]
            self.queue.put_back(sequence)

    def _gain(
        self, sequence: Sequence, step: SequenceStep, result: SequenceOutcome, work: StepWork, now: float
    ) -> TokenEvent | None:
        """Advances one sequence; its event, or None without a result."""
        record = sequence.record
        phase = record.decode if step.start >= sequence.prompt_length else record.prefill
        phase.add_step(
            step.start,
            len(step.tokens),
            step_rows=work.shape.rows,
            logit_rows=step.logit_rows,
            seconds=work.seconds,
            predicted_s=work.predicted_s,
            windows=self._windows,
        )
        if sequence.trace is not None:
            at_s, prompt = now - sequence.arrival, sequence.prompt_length
            sequence.trace.add(self.steps, at_s, step, work, self.step_time, prompt)
        sequence.advance(len(step.tokens) - step.drafts, deferred=result.deferred)
        if step.start < sequence.prompt_length and not will_compute_prompt(sequence):
            self._release_group(sequence)
        tokens = sequence.take(result)
        self._blocks.publish(sequence, now)
        if self._draft_model is not None:
            self._draft_model.commit(sequence, step)
        if self._speculator is not None and tokens:
            proposed = step.drafts - step.model_drafts
            accepted, predicted = len(tokens) - 1, self._speculator.predicted(sequence, proposed)
            record.speculate(step.drafts, accepted, predicted, work.plain_s * len(tokens) - work.seconds)
            self.drafts.add(step.drafts, accepted)
            self._speculator.learn(sequence, tokens)
        self._accounts[sequence.sequence_id].service += COMPLETION_WEIGHT * len(tokens)
        first = sequence.first_token_at is None and bool(tokens or result.candidates)
        if first:
            sequence.first_token_at = now
            self._waits.begin_decode(sequence)
        if self.lanes.watched:
            self.lanes.gain(sequence, step, now, first=first)
        if sequence.paced_from is None and tokens:
            sequence.paced_from = now, sequence.generated
        if sequence.state is SequenceState.FINISHED:
            self._retire(sequence, now)
        return sequence.event(tokens, result, now, self.steps)

    def _enter(self, sequence: Sequence) -> None:
        number = sequence.sequence_id
        assert number not in self._live, f"sequence {number} exists already"
        self._live[number] = sequence
        self._times.enter(sequence)

    def _retire(self, sequence: Sequence, now: float) -> None:
        """Removes a finished sequence and frees what it held."""
        number = sequence.sequence_id
        del self._live[number]
        if self._running.pop(number, None) is not None:
            self._ended.append(number)
            self._ahead.pop(number, None)
        self._accounts.pop(number, None)
        self._parked.pop(number, None)
        if sequence in self.queue:
            self.queue.remove(sequence)
        self._groups.leave(sequence)
        self._waits.leave_queue(sequence, now)
        self._waits.end_decode(sequence)
        self._cost.forget(sequence)
        if self._loading is not None:
            self._loading.leave(sequence)
        self._times.leave(number)
        self.lanes.end(sequence, now)
        self._blocks.release(sequence, now)
        if self._speculator is not None:
            self._speculator.forget(sequence)
        if sequence.finish_reason in {"stop", "length"}:
            self._look_ahead.learn(sequence)
        self._release_group(sequence)

    def _release_group(self, parent: Sequence) -> None:
        """Queues the sequences that waited for this parent."""
        for sibling in self._groups.release(parent):
            self.queue.add(sibling)
