"""The records of the loop: what one step shall do, what came of it, and what that means for a sequence.

plan    = scheduler.plan(now)                   StepPlan     which sequences advance, by which tokens
handle  = runner.execute(plan)                  StepInput    the part of a plan that a model runner needs
outcome = handle.result(masks)                  StepOutcome  one entry for each entry of the plan, same order
events  = scheduler.commit(plan, outcome, now)  TokenEvent   one for each sequence that gained something
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, Protocol

from twofold.core.errors import TwofoldError
from twofold.core.params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "deadline"]
"""stop: an end-of-sequence token, stop token or stop string. length: max_tokens or the context. abort: cancelled.
deadline: the request's time was up."""


class Logits(Enum):
    """Which rows of a sequence's step need logits."""

    NONE = 0
    LAST = 1
    ALL = 2


class MoveKind(Enum):
    """Where a block's keys and values go: between blocks of the cache, out to a host slot, in from one."""

    COPY = 0
    OUT = 1
    IN = 2


@dataclass(frozen=True, slots=True)
class BlockMove:
    """The contents of block or host slot ``source`` of a KV group, to be copied to ``target`` before a step's rows."""

    kind: MoveKind
    group: int
    source: int
    target: int


class TokenConstraint(Protocol):
    """What may come next in a constrained answer. It belongs to one sequence and knows the tokens that are known."""

    def mask(self) -> memoryview | None:
        """The tokens that may be drawn now: 32-bit words, bit t % 32 of word t // 32 for token t; valid until
        ``advance``. None where nothing is ruled out. Calling it again costs nothing."""
        ...

    def prepare(self) -> None:
        """Makes the next mask, or lets others begin with it; raises nothing."""
        ...

    @property
    def ready(self) -> bool:
        """Whether ``mask`` and ``finished`` need not be waited for: others may make them."""
        ...

    def wait(self) -> bool:
        """Waits a little until it is ready; whether it is."""
        ...

    def advance(self, token: int) -> None:
        """Takes a drawn token, one that the mask allowed."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing can follow: the answer is complete. Where it is not ``ready``, False may become True later."""
        ...

    @property
    def shortened(self) -> bool:
        """Whether tokens were ruled out so that the answer is complete before its limit."""
        ...


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Everything a draw depends on beside the logits.

    ``position`` is the index in the sequence that the drawn token will have. ``prompt`` and ``answer`` are the tokens
    before it, empty unless penalties need them. ``suppressed`` tokens cannot be drawn, nor those whose bit is 0 in
    ``mask`` (as ``TokenConstraint.mask``; None rules nothing out). ``candidates`` asks for that many most likely tokens
    instead of a draw, for beam search; penalties, bias and filters do not apply to them.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()
    suppressed: Sequence[int] = ()
    mask: bytes | memoryview | None = None
    candidates: int = 0


Pooling = Literal["mean", "last"]
"""How the hidden states of a text become one vector: their mean, or the last one."""
HIDDEN_SCALE: Final = 2.0**24
"""Units of 1 in which hidden states are added."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """The tokens at positions ``start`` … ``start + len(tokens) − 1`` of one sequence, to be computed in this step.

    ``tables`` holds for each KV group the block of positions j·block_size …; it belongs to the sequence and is read,
    never kept; entries that a window has passed are never read. ``draw`` asks for a token after the last row.
    ``scored`` asks for the log-probabilities of these given tokens, the ones that follow the first rows, with
    ``alternatives`` most likely others. ``pooling`` asks for the hidden states: the sum of all rows (mean) or the
    last row (last).
    """

    sequence_id: int
    tokens: array[int]
    start: int
    tables: tuple[array[int], ...]
    logits: Logits
    draw: DrawRequest | None = None
    scored: Sequence[int] = ()
    alternatives: int = 0
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class StepInput:
    """What a model runner computes in one step: blocks to move, in order, then rows of many sequences."""

    steps: tuple[SequenceStep, ...]
    moves: tuple[BlockMove, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps or self.moves)

    @property
    def rows(self) -> int:
        return sum(len(step.tokens) for step in self.steps)


@dataclass(frozen=True, slots=True)
class StepPlan(StepInput):
    """One step of the loop, sequences that generate first, with what only the loop needs of it.

    ``predicted_s`` is how long it should take; None before anything was learned. ``decode_rows`` compute generated
    tokens, the others prompts. ``constraints`` decide what may be sampled, by sequence.
    """

    predicted_s: float | None = None
    decode_rows: int = 0
    constraints: Mapping[int, TokenConstraint] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What constraints say of a step: the masks of sequences, and those that are not sampled in this step."""

    allowed: Mapping[int, bytes | memoryview] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()


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
    """What a SequenceStep gave: the drawn tokens, their log-probabilities where asked for, those of the prompt.

    ``candidates`` are the most likely tokens, descending, where a draw asked for them. ``error`` says why a draw could
    not be made: this sequence cannot go on, the others are not touched. ``deferred`` says that what may be drawn is not
    known yet: the last row has to be computed again for the draw. ``complete`` says that nothing can follow the tokens
    so far, which was not known when the last one was drawn.

    ``hidden`` is of float64. For ``last`` it is the step's last row. For ``mean`` it is the sum of its rows in units of
    1 / HIDDEN_SCALE, each rounded to whole units: sums of whole numbers are exact, so the sum over a text is the same
    however it was cut into steps (as long as tokens · |hidden| stays below 2²⁹). Divide by HIDDEN_SCALE · tokens.
    """

    sequence_id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    candidates: tuple[TokenLogprob, ...] = ()
    hidden: array[float] | None = None
    error: TwofoldError | None = None
    deferred: bool = False
    complete: bool = False


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One outcome for each entry of the plan, in the plan's order.

    ``seconds`` the step's rows took from the first operation to the last sample, ``moves_s`` its block moves before.
    Of ``seconds`` the forward pass took ``forward_s``, sampling ``sample_s``; ``overlap_s`` is what the caller did in
    ``forward_s``.
    """

    sequences: tuple[SequenceOutcome, ...]
    seconds: float = 0.0
    moves_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    overlap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What a committed step means for one sequence. ``stop_token`` is the token that ended it, if one did.

    ``candidates``, ``hidden`` and ``error`` are those of the outcome.
    """

    sequence_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    finish: FinishReason | None = None
    stop_token: int | None = None
    candidates: tuple[TokenLogprob, ...] = ()
    hidden: array[float] | None = None
    error: TwofoldError | None = None
