"""A step while it is planned: what it holds, what is left of its limits, and how many rows prompts may take in it.

Prompts always get some rows beside the sequences that generate, or they would starve: MIN_PREFILL_ROWS, or what is left
of them. Without a sequence that generates no one is delayed, and prompts get all rows that a step has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from twofold.core.errors import ParameterError
from twofold.core.model import visible
from twofold.core.step import SequenceStep, TokenConstraint
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

MIN_PREFILL_ROWS: Final = 4
STRAINED: Final = 0.8
"""Share of its target that a step may take without prompts before the target is given up."""
AIM: Final = 0.85
"""Share of a target that is aimed at: predictions err, and a mean that is missed by little is missed."""
LENT: Final = 0.8
"""Share of what a sequence will gain on its schedule that is lent to prompts now."""
MAX_AHEAD: Final = 64
"""Tokens of an answer that are counted on to come."""
LONGEST_GAP: Final = 4
"""Targets that a single gap between two tokens may last."""
UNLEARNED_ROWS: Final = 64
"""Prompt rows of a step while nothing is known about step times."""


class Allowance(NamedTuple):
    """Seconds that the next step may take for the sake of those that generate, and the tightest of their targets."""

    seconds: float
    target_s: float


UNBOUNDED: Final = Allowance(float("inf"), float("inf"))


class Budget(Protocol):
    """The policy. A step is planned with one ``allowance`` and a call of ``rows`` for each prompt in it."""

    def allowance(self, decoding: Iterable[Sequence], decode: StepShape, share: float, now: float) -> Allowance:
        """What those that generate, in a step of shape ``decode``, allow the next step. Of what answers may be long,
        ``share`` is what they usually are."""
        ...

    def rows(self, decode: StepShape, step: StepShape, allowance: Allowance, start: int, most: int) -> int:
        """Rows, ``most`` at most, for a prompt computed up to ``start``, in a step that holds ``step`` so far, of
        which ``decode`` is of sequences that generate."""
        ...


class FixedBudget:
    """The same number of rows in every step that generates, whatever they cost."""

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise ParameterError(f"A budget has at least 1 row, not {rows}.", param="max_num_batched_tokens")
        self._rows = rows

    def allowance(self, decoding: Iterable[Sequence], decode: StepShape, share: float, now: float) -> Allowance:  # noqa: ARG002
        """Time does not matter."""
        return UNBOUNDED

    def rows(self, decode: StepShape, step: StepShape, allowance: Allowance, start: int, most: int) -> int:  # noqa: ARG002
        """What is left of the budget; without rows that generate, ``most``."""
        if not decode.rows:
            return most
        return _at_least(self._rows - step.rows, decode, step, most)


class LiveBudget:
    """As many rows as every sequence that generates can spare by the predicted time of the step.

    A TPOT is a mean, so what a sequence can spare is what is left of its target over its whole answer: the time until
    its next token is due by the schedule that AIM times the target (``tpot_target_s`` unless its request has its own)
    makes from its first token, and LENT of what it will gain on that schedule once nobody delays it. But no single gap
    may become longer than ``itl_limit_s``, or LONGEST_GAP targets. Where those that generate take nearly all of the
    target alone, it cannot be kept anyway: prompts may then double the step, up to a limit that was given.
    """

    def __init__(self, model: StepTimeModel, tpot_target_s: float, itl_limit_s: float | None = None) -> None:
        if not tpot_target_s > 0:
            raise ParameterError(f"A TPOT target is above 0 s, not {tpot_target_s}.", param="tpot_target_s")
        self._model = model
        self._target = tpot_target_s
        self._limit = itl_limit_s

    def allowance(self, decoding: Iterable[Sequence], decode: StepShape, share: float, now: float) -> Allowance:
        """What the sequence with least to spare can spare."""
        alone = self._model.predict(decode) or 0.0
        seconds = tightest = float("inf")
        for sequence in decoding:
            target = sequence.options.tpot_target_s or self._target
            tightest = min(tightest, target)
            ahead = min(share * (sequence.limit - sequence.prompt_length) - sequence.generated, MAX_AHEAD)
            spare = LENT * max(AIM * target - alone, 0.0) * max(ahead, 0.0)
            if sequence.first_token_at is not None:
                spare += sequence.first_token_at + sequence.generated * AIM * target - now
            seconds = min(seconds, self._limit or LONGEST_GAP * target, spare)
        return Allowance(seconds, tightest)

    def rows(self, decode: StepShape, step: StepShape, allowance: Allowance, start: int, most: int) -> int:
        """The most rows within the allowance, by bisection: a step takes longer the more rows it has."""
        if not decode.rows:
            return most
        alone = self._model.predict(decode)
        if alone is None:
            return _at_least(UNLEARNED_ROWS - (step.rows - decode.rows), decode, step, most)
        strained = alone > STRAINED * allowance.target_s
        allowed = min(2 * alone, self._limit or 2 * alone) if strained else allowance.seconds
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            seconds = self._model.predict(step.plus(start, middle))
            low, high = (middle, high) if seconds is None or seconds <= allowed else (low, middle)
        return _at_least(low, decode, step, most)


def _at_least(rows: int, decode: StepShape, step: StepShape, most: int) -> int:
    floor = MIN_PREFILL_ROWS - (step.rows - decode.rows)
    return min(most, max(rows, floor, 0))


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
        self._attended += visible(start, rows)
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
            self._attended -= visible(step.start, rows)
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
