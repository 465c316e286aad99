"""How many rows of a step prompts may take beside the sequences that generate.

Prompts always get some rows, or they would starve: MIN_PREFILL_ROWS, or what is left of them. Without a sequence that
generates nobody is delayed, and prompts get all rows that a step has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from twofold.core.errors import ParameterError
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

MIN_PREFILL_ROWS: Final = 4
STRAINED: Final = 0.8
"""Share of its target that a step may take without prompts before the target is given up."""
AIM: Final = 0.85
"""Share of a target that is aimed at: predictions err, and a mean that is missed by little is missed."""
LENT: Final = 0.8
"""Share of what a sequence will gain on its schedule that is lent to prompts now."""
MOST_AHEAD: Final = 64
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
            ahead = min(share * (sequence.limit - sequence.prompt_length) - sequence.generated, MOST_AHEAD)
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
