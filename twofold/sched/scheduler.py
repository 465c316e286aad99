"""Which sequences advance in the next step, and by how many tokens. Pure: no arrays, and time is an argument.

The rules, in order:
    1. Every running sequence with one token to compute (it generates, or its prompt is all but done) gets its row.
    2. What is left of the step's rows goes to running sequences with more to compute, oldest first.
    3. Waiting sequences are admitted, first come first served, while rows, sequences and blocks last. The first that
       does not fit holds back those behind it, so none starves.

Admission takes the blocks for a sequence's whole limit. A running sequence therefore never runs out of blocks, and
nothing has to be preempted; the price is that blocks stay unused until their tokens come.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from twofold.core.errors import ContextLengthError, ParameterError
from twofold.core.step import FinishReason, SequenceOutcome, SequenceStep, StepOutcome, StepPlan, TokenEvent
from twofold.kv.pool import BlockPool, blocks_for
from twofold.sched.sequence import Sequence, State


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What one step may hold: sequences, rows (tokens), and rows whose logits are wanted.

    Every running sequence may need a row and its logits in the same step, so ``sequences`` is the least of the three.
    """

    sequences: int
    rows: int
    logit_rows: int

    def __post_init__(self) -> None:
        if self.sequences < 1:
            raise ParameterError(f"max_num_seqs must be at least 1, not {self.sequences}.", param="max_num_seqs")
        if self.sequences > min(self.rows, self.logit_rows):
            raise ParameterError(
                f"max_num_seqs is {self.sequences}, but a step has {self.rows} rows, {self.logit_rows} with logits.",
                param="max_num_seqs",
                hint="Lower max_num_seqs, or raise max_num_batched_tokens.",
            )


@dataclass(slots=True)
class _Room:
    """What is left of a step's limits while it is planned."""

    rows: int
    logit_rows: int

    def fit(self, sequence: Sequence) -> int:
        """Rows of the sequence that still fit; law 2 of sequences: reaching ``known`` takes logits for the draw."""
        rows = min(sequence.pending, self.rows)
        if sequence.scores_prompt:
            return min(rows, self.logit_rows)
        if rows == sequence.pending and not self.logit_rows:
            return rows - 1
        return rows

    def take(self, sequence: Sequence, rows: int) -> None:
        self.rows -= rows
        if sequence.scores_prompt:
            self.logit_rows -= rows
        elif rows == sequence.pending:
            self.logit_rows -= 1


class Scheduler:
    """Sequences wait, run and finish; ``plan`` and ``commit`` move them, ``cancel`` ends them at any moment."""

    def __init__(self, pool: BlockPool, limits: StepLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._running: dict[int, Sequence] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Puts a new sequence at the end of the queue. Raises ContextLengthError for one that could never run."""
        needed = blocks_for(sequence.positions_needed, self._pool.block_size)
        if needed > self._pool.blocks:
            raise ContextLengthError(
                f"The sequence may need {sequence.positions_needed} tokens of KV cache, "
                f"which holds {self._pool.blocks * self._pool.block_size}.",
                hint="Lower max_tokens, shorten the prompt, or allow the KV cache more memory.",
            )
        self._waiting[sequence.sequence_id] = sequence

    def plan(self, now: float) -> StepPlan:
        """The next step; empty when there is nothing to do. ``now``, in seconds, stamps admissions."""
        room = _Room(self._limits.rows, self._limits.logit_rows)
        steps: list[SequenceStep] = []
        longer = []
        for sequence in self._running.values():
            if sequence.pending > 1:
                longer.append(sequence)
            else:
                _give_rows(sequence, room, steps)
        for sequence in longer:
            _give_rows(sequence, room, steps)
        if self._waiting:
            self._admit(room, steps, now)
        return StepPlan(tuple(steps))

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> list[TokenEvent]:
        """Moves the cursors of the plan's sequences; those that were cancelled meanwhile are passed over."""
        events = []
        for step, result in zip(plan.steps, outcome.sequences, strict=True):
            assert step.sequence_id == result.sequence_id, "an outcome belongs to another sequence"
            sequence = self._running.get(step.sequence_id)
            if sequence is not None:
                sequence.advance(len(step.tokens))
                event = self._gain(sequence, result)
                if event is not None:
                    events.append(event)
        return events

    def cancel(self, sequence_id: int) -> bool:
        """Ends a sequence as aborted and frees what it holds; False when there is no such sequence any more."""
        return self._end(sequence_id, "abort")

    def stop(self, sequence_id: int) -> bool:
        """Ends a sequence as stopped, for reasons that tokens alone do not show: a stop string."""
        return self._end(sequence_id, "stop")

    def check_idle(self) -> None:
        """Asserts that nothing is held when nothing waits or runs; otherwise only that the pool is consistent."""
        self._pool.check()
        if not self.has_work:
            assert self._pool.held == 0, f"{self._pool.held} KV blocks leaked"

    def _end(self, sequence_id: int, reason: FinishReason) -> bool:
        sequence = self._waiting.pop(sequence_id, None) or self._running.pop(sequence_id, None)
        if sequence is None:
            return False
        sequence.finish(reason)
        return True

    def _admit(self, room: _Room, steps: list[SequenceStep], now: float) -> None:
        while self._waiting and len(self._running) < self._limits.sequences:
            sequence = next(iter(self._waiting.values()))
            needed = blocks_for(sequence.positions_needed, self._pool.block_size)
            if needed > self._pool.free or not room.fit(sequence):
                return
            del self._waiting[sequence.sequence_id]
            sequence.admit(self._pool, now)
            self._running[sequence.sequence_id] = sequence
            _give_rows(sequence, room, steps)

    def _gain(self, sequence: Sequence, result: SequenceOutcome) -> TokenEvent | None:
        """Appends what was drawn; the event, if there is anything to tell."""
        tokens = sequence.append(result.tokens) if result.tokens else ()
        if sequence.state is State.FINISHED:
            del self._running[sequence.sequence_id]
        if not tokens and not result.prompt_logprobs:
            return None
        return TokenEvent(
            sequence.sequence_id,
            tokens,
            result.logprobs[: len(tokens)],
            result.prompt_logprobs,
            sequence.finish_reason,
            sequence.stop_token,
        )


def _give_rows(sequence: Sequence, room: _Room, steps: list[SequenceStep]) -> None:
    rows = room.fit(sequence)
    if rows:
        room.take(sequence, rows)
        steps.append(sequence.next_step(rows))
