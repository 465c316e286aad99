"""The records of the loop: what one step shall do, what came of it, and what that means for a sequence.

    plan    = scheduler.plan(now)                   StepPlan     which sequences advance, by which tokens
    outcome = executor.run(plan)                    StepOutcome  one entry for each entry of the plan, same order
    events  = scheduler.commit(plan, outcome, now)  TokenEvent   one for each sequence that gained something

They hold plain numbers and no arrays, so an executor may be local, remote or simulated.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from twofold.core.params import SamplingParams

FinishReason = Literal["stop", "length", "abort"]
"""stop: an end-of-sequence token, stop token or stop string. length: max_tokens or the context. abort: cancelled."""


class Logits(Enum):
    """Which rows of a sequence's step need logits."""

    NONE = 0
    LAST = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Everything a draw depends on beside the logits.

    ``position`` is the index in the sequence that the drawn token will have. ``prompt`` and ``answer`` are the tokens
    before it, empty unless penalties need them. ``suppressed`` tokens cannot be drawn.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()
    suppressed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """The tokens at positions ``start`` … ``start + len(tokens) − 1`` of one sequence, to be computed in this step.

    ``blocks`` holds the KV block of positions j·block_size …; it belongs to the sequence and is read, never kept.
    ``draw`` asks for a token after the last row. ``scored`` asks for the log-probabilities of these given tokens, the
    ones that follow the first rows, with ``alternatives`` most likely others.
    """

    sequence_id: int
    tokens: array[int]
    start: int
    blocks: array[int]
    logits: Logits
    draw: DrawRequest | None = None
    scored: Sequence[int] = ()
    alternatives: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of the loop: rows of many sequences, those that generate first."""

    steps: tuple[SequenceStep, ...]

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def rows(self) -> int:
        return sum(len(step.tokens) for step in self.steps)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token in the model's own distribution; rank 1 is the most likely token."""

    token: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The token at one position, and the most likely ones there in descending order."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceOutcome:
    """What a SequenceStep gave: the drawn tokens, their log-probabilities where asked for, those of the prompt."""

    sequence_id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One outcome for each entry of the plan, in the plan's order."""

    sequences: tuple[SequenceOutcome, ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What a committed step means for one sequence. ``stop_token`` is the token that ended it, if one did."""

    sequence_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    prompt_logprobs: tuple[PositionLogprobs, ...]
    finish: FinishReason | None = None
    stop_token: int | None = None
