"""A step while it is planned: what it holds so far, and what is left of its limits."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.core.errors import ParameterError
from twofold.core.step import SequenceStep, TokenConstraint
from twofold.engine.scheduler.budget import Allowance, Budget
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, attended


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


class StepBuilder:
    """Sequences with their rows, in the order in which they came. ``rows`` and ``logit_rows`` are what is left.

    ``decode_rows`` of those that are in compute generated tokens. ``constraints`` are those of sequences that sample.
    """

    def __init__(self, limits: StepLimits) -> None:
        self.rows = limits.rows
        self.logit_rows = limits.logit_rows
        self._limits = limits
        self.decode_rows = 0
        self._attended = 0
        self._read = 0
        self._steps: dict[int, SequenceStep] = {}
        self.constraints: dict[int, TokenConstraint] = {}

    @property
    def steps(self) -> tuple[SequenceStep, ...]:
        return tuple(self._steps.values())

    @property
    def shape(self) -> StepShape:
        limits = self._limits
        return StepShape(limits.rows - self.rows, limits.logit_rows - self.logit_rows, self._attended, self._read)

    def fit(self, sequence: Sequence, most: int) -> int:
        """Rows of the sequence that still fit, ``most`` at most; reaching ``known`` takes logits for the draw."""
        rows = min(sequence.longest_chunk, self.rows, most)
        if sequence.scores_prompt:
            return min(rows, self.logit_rows)
        return rows if sequence.logit_rows(rows) <= self.logit_rows else rows - 1

    def add(self, sequence: Sequence, step: SequenceStep) -> None:
        """Puts the sequence's next rows into the step."""
        start, rows = step.start, len(step.tokens)
        self.rows -= rows
        self.logit_rows -= step.logit_rows
        self._attended += attended(start, rows)
        self._read += start + rows
        self.decode_rows += _generated(sequence, step)
        self._steps[sequence.sequence_id] = step
        if step.samples and sequence.constraint is not None:
            self.constraints[sequence.sequence_id] = sequence.constraint

    def drop(self, sequence: Sequence) -> None:
        """Takes the sequence's rows out again, if it has any."""
        step = self._steps.pop(sequence.sequence_id, None)
        self.constraints.pop(sequence.sequence_id, None)
        if step is not None:
            rows = len(step.tokens)
            self.rows += rows
            self.logit_rows += step.logit_rows
            self._attended -= attended(step.start, rows)
            self._read -= step.start + rows
            self.decode_rows -= _generated(sequence, step)


def _generated(sequence: Sequence, step: SequenceStep) -> int:
    return len(step.tokens) if step.start >= sequence.prompt_length else 0


@dataclass(frozen=True, slots=True)
class StepPace:
    """How far prompts may go in one step: its budget, its rows that generate, and what these allow."""

    budget: Budget
    decode: StepShape
    allowance: Allowance

    def rows(self, step: StepBuilder, sequence: Sequence) -> int:
        """Rows that the sequence's prompt gets in the step as it is; 0 where nothing is left."""
        most = step.fit(sequence, sequence.pending)
        if not most:
            return 0
        return step.fit(sequence, self.budget.rows(self.decode, step.shape, self.allowance, sequence.computed, most))
