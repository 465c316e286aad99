"""A step while it is planned: its rows, what is left of its limits, and how many rows prompts may take.

Prompts always get MIN_PREFILL_ROWS rows of a step, or they would starve beside generating sequences. In a step without
generating sequences no one is delayed, and prompts get all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from twofold.core.errors import ParameterError
from twofold.core.model import visible
from twofold.core.step import HeldBy, SequenceStep, TokenConstraint
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

MIN_PREFILL_ROWS: Final = 4
STRAINED: Final = 0.8
"""If a step without prompts takes more than this share of the target, the target cannot be met."""
AIM: Final = 0.85
"""Share of the target that is planned for, since predictions have errors."""
LENT: Final = 0.8
"""Share of a sequence's future slack that prompts may use now."""
MAX_AHEAD: Final = 64
"""Future tokens of a completion whose slack counts."""
LONGEST_GAP: Final = 4
"""Targets that a single gap between two tokens may last."""
UNLEARNED_ROWS: Final = 64
"""Prompt rows of a step while nothing is known about step times."""


class Allowance(NamedTuple):
    """Seconds that the next step may take, and the tightest TPOT target of its generating sequences. ``draft_s`` of the
    step are the draft model's."""

    seconds: float
    target_s: float
    draft_s: float = 0.0


UNBOUNDED: Final = Allowance(float("inf"), float("inf"))


class Budget(Protocol):
    """The policy. A step is planned with one ``allowance`` and a call of ``rows`` for each prompt in it."""

    def allowance(
        self, decoding: Iterable[Sequence], decode: StepShape, share: float, now: float, draft_s: float = 0.0
    ) -> Allowance:
        """The allowance of the ``decoding`` sequences for the next step, in which their rows have the shape ``decode``
        and the draft model takes ``draft_s`` seconds. The usual length of a completion is ``share`` of its limit."""
        ...

    def sustained(self, decoding: Iterable[Sequence]) -> Allowance:
        """The allowance of the ``decoding`` sequences over many steps."""
        ...

    def rows(self, decode: StepShape, step: StepShape, allowance: Allowance, start: int, most: int) -> int:
        """The rows, at most ``most``, for a prompt computed up to ``start``, in a step of shape ``step`` so far.
        ``decode`` is the shape of the step's generating rows."""
        ...


class FixedBudget:
    """The same number of rows in every step with generating sequences."""

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise ParameterError(f"A budget has at least 1 row, not {rows}.", param="max_num_batched_tokens")
        self._rows = rows

    def allowance(
        self, decoding: Iterable[Sequence], decode: StepShape, share: float, now: float, draft_s: float = 0.0
    ) -> Allowance:
        """Unbounded: a fixed budget does not depend on time."""
        return UNBOUNDED

    def sustained(self, decoding: Iterable[Sequence]) -> Allowance:
        """Unbounded, too."""
        return UNBOUNDED

    def rows(self, decode: StepShape, step: StepShape, allowance: Allowance, start: int, most: int) -> int:
        """The rest of the budget; ``most`` without generating sequences."""
        if not decode.rows:
            return most
        return _at_least(self._rows - step.rows, decode, step, most)


class LiveBudget:
    """As many prompt rows as the targets of all generating sequences allow, by the predicted time of the step.

    TPOT is a mean, so the slack of a sequence covers its whole completion. By schedule, a token is due every
    AIM · target seconds from the first on; the target is that of the request, or ``tpot_target_s``. The slack is the
    time until the next token is due, plus the share LENT of the time that the sequence would gain on the schedule
    without delays. After a preemption the schedule starts anew; otherwise prompts would nearly stop until the sequence
    had made up for its time in the queue. No single gap may be longer than ``itl_limit_s``, or LONGEST_GAP targets. If
    the generating sequences alone take nearly all of the target, it cannot be met: prompts may then double the step, up
    to ``itl_limit_s``.
    """

    def __init__(self, model: StepTimeModel, tpot_target_s: float, itl_limit_s: float | None = None) -> None:
        if not tpot_target_s > 0:
            raise ParameterError(f"A TPOT target is above 0 s, not {tpot_target_s}.", param="tpot_target_s")
        self._model = model
        self._target = tpot_target_s
        self._limit = itl_limit_s

    def allowance(
        self, decoding: Iterable[Sequence], decode: StepShape, share: float, now: float, draft_s: float = 0.0
    ) -> Allowance:
        """The smallest slack of the sequences."""
        alone = (self._model.predict(decode) or 0.0) + draft_s
        seconds = tightest = float("inf")
        for sequence in decoding:
            target = sequence.options.tpot_target_s or self._target
            tightest = min(tightest, target)
            ahead = min(share * (sequence.limit - sequence.prompt_length) - sequence.generated, MAX_AHEAD)
            spare = LENT * max(AIM * target - alone, 0.0) * max(ahead, 0.0)
            if sequence.paced_from is not None:
                began, tokens = sequence.paced_from
                spare += began + (sequence.generated - tokens + 1) * AIM * target - now
            seconds = min(seconds, self._limit or LONGEST_GAP * target, spare)
        return Allowance(seconds, tightest, draft_s)

    def sustained(self, decoding: Iterable[Sequence]) -> Allowance:
        """The time that the schedule has for each token, without what was saved or lent."""
        tightest = min((each.options.tpot_target_s or self._target for each in decoding), default=self._target)
        return Allowance(AIM * tightest, tightest)

    def rows(self, decode: StepShape, step: StepShape, allowance: Allowance, start: int, most: int) -> int:
        """The maximum number of rows within the allowance, by bisection: more rows never take less time."""
        if not decode.rows:
            return most
        alone = self._model.predict(decode)
        if alone is None:
            return _at_least(UNLEARNED_ROWS - (step.rows - decode.rows), decode, step, most)
        alone += allowance.draft_s
        strained = alone > STRAINED * allowance.target_s
        allowed = min(2 * alone, self._limit or 2 * alone) if strained else allowance.seconds
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            seconds = self._model.predict(step.plus(start, middle))
            fits = seconds is None or seconds + allowance.draft_s <= allowed
            low, high = (middle, high) if fits else (low, middle)
        return _at_least(low, decode, step, most)


def _at_least(rows: int, decode: StepShape, step: StepShape, most: int) -> int:
    floor = MIN_PREFILL_ROWS - (step.rows - decode.rows)
    return min(most, max(rows, floor, 0))


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The maxima of one step: sequences, rows (tokens), and rows with logits.

    Every running sequence may need a row and its logits in the same step, so ``sequences`` is the smallest maximum.
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
    """Collects the ``steps`` of sequences in a step, in order. ``rows`` and ``logit_rows`` are the rest of the limits.

    ``decode_rows`` counts rows of generated tokens. ``constraints`` are those of sequences that sample. For lack of
    blocks, the step is ``short`` of rows, or the queue is ``blocked``.
    """

    def __init__(self, limits: StepLimits) -> None:
        self.rows = limits.rows
        self.logit_rows = limits.logit_rows
        self._limits = limits
        self.decode_rows = 0
        self.short = self.blocked = False
        self._attended = 0
        self._read = 0
        self.steps: dict[int, SequenceStep] = {}
        self.constraints: dict[int, TokenConstraint] = {}

    @property
    def shape(self) -> StepShape:
        limits = self._limits
        return StepShape(limits.rows - self.rows, limits.logit_rows - self.logit_rows, self._attended, self._read)

    def fit(self, sequence: Sequence, most: int) -> int:
        """Rows of the sequence that still fit, at most ``most``; the row of its last known token needs logits."""
        rows = min(sequence.longest_chunk, self.rows, most)
        if sequence.scores_prompt:
            return min(rows, self.logit_rows)
        return rows if sequence.logit_rows(rows) <= self.logit_rows else rows - 1

    def add(self, sequence: Sequence, step: SequenceStep) -> None:
        """Adds the sequence's next rows to the step."""
        start, rows = step.start, len(step.tokens)
        self.rows -= rows
        self.logit_rows -= step.logit_rows
        self._attended += visible(start, rows)
        self._read += start + rows
        self.decode_rows += _generated(sequence, step)
        self.steps[sequence.sequence_id] = step
        if step.samples and sequence.constraint is not None:
            self.constraints[sequence.sequence_id] = sequence.constraint

    def held_by(self, running: Collection[Sequence], queued: int, held: int) -> HeldBy:
        """What kept prompts from more rows in the step, with ``queued`` sequences in the queue and ``held`` by
        features."""
        if self.short or self.blocked:
            return "blocks"
        if any(map(self._lacks, running)) or (queued and len(running) < self._limits.sequences):
            return "budget" if self.rows and self.logit_rows else "rows"
        return "slots" if queued else "loading" if held else "nothing"

    def _lacks(self, sequence: Sequence) -> bool:
        """Whether a running sequence is a prompt with rows that are not in the step."""
        step = self.steps.get(sequence.sequence_id)
        return not sequence.decodes and (step is None or step.end < sequence.known)

    def drop(self, sequence: Sequence) -> None:
        """Removes the sequence's rows, if it has any."""
        step = self.steps.pop(sequence.sequence_id, None)
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
    """The limit of prompts in one step: the budget, the shape of the generating rows, and their allowance."""

    budget: Budget
    decode: StepShape
    allowance: Allowance

    def rows(self, step: StepBuilder, sequence: Sequence) -> int:
        """Rows that the sequence's prompt gets in the step so far; 0 if nothing is left."""
        most = step.fit(sequence, sequence.pending)
        if not most:
            return 0
        return step.fit(sequence, self.budget.rows(self.decode, step.shape, self.allowance, sequence.computed, most))

    def allowed(self, step: StepBuilder) -> int | None:
        """Prompt rows that the budget allows in the whole step: those of its prompts, and more after the last of them.
        None without prompts or generating rows."""
        shape = step.shape
        prompt_rows = shape.rows - self.decode.rows
        if not (self.decode.rows and prompt_rows):
            return None
        last = next(reversed(step.steps.values()))
        return prompt_rows + self.budget.rows(self.decode, shape, self.allowance, last.end, step.rows)
