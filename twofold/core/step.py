"""The records of the loop: the plan of a step, its outcome, and the events of sequences.

plan    = scheduler.plan(now)                   StepPlan     which sequences advance, by which tokens
handle  = runner.execute(plan)                  StepInput    the part of a plan that a model runner needs
outcome = handle.result(masks)                  StepOutcome  one entry for each entry of the plan, same order
events  = scheduler.commit(plan, outcome, now)  TokenEvent   one for each sequence that gained something
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from twofold.core.errors import TwofoldError
from twofold.core.params import SamplingParams
from twofold.core.timeline import TokensMade

if TYPE_CHECKING:
    IntArray: TypeAlias = array[int]
    FloatArray: TypeAlias = array[float]
else:  # msgspec evaluates annotations, and before Python 3.12 arrays have no type parameters
    IntArray = FloatArray = array

NO_TOKENS: Final = array("i")
"""Shared: it is never changed."""
FinishReason = Literal["stop", "length", "abort", "deadline", "repetition"]
"""stop: an end-of-sequence token, stop token or stop string. length: max_tokens or the context. abort: cancelled.
deadline: the request reached its deadline. repetition: the completion repeats itself, and the engine stops loops."""

HeldBy = Literal["nothing", "budget", "rows", "blocks", "slots", "loading"]
"""What kept prompts from more rows in a step. nothing: all prompts were computed. budget: the token budget. rows: the
maximum of rows, or of rows with logits. blocks: the KV cache. slots: the maximum of running sequences. loading: the
only ones that wait load their prefix from the KV store."""


class MoveKind(IntEnum):
    """Where a block's keys and values go: between blocks of the cache, out to a host slot, in from one."""

    COPY = 0
    OUT = 1
    IN = 2


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens with which both begin."""
    for index, (token, same) in enumerate(zip(one, other, strict=False)):
        if token != same:
            return index
    return min(len(one), len(other))


def _no_tokens() -> IntArray:
    return NO_TOKENS


@dataclass(frozen=True, slots=True)
class BlockMove:
    """The contents of block or host slot ``source`` of a KV group, to be copied to ``target`` before a step's rows."""

    kind: MoveKind
    group: int
    source: int
    target: int


class TokenConstraint(Protocol):
    """The tokens allowed next in a completion. It belongs to one sequence and follows its tokens."""

    def masks(self) -> Sequence[memoryview | None]:
        """The tokens that may be sampled now, and those after each of the drafts of the last ``prepare``, up to the
        first draft that is not allowed or ends the output: at least one mask. 32-bit words, bit t % 32 of word t // 32
        for token t; valid until ``advance``. None if all are allowed. Calling it again costs nothing."""
        ...

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """Computes the next masks, or requests them from another process; raises nothing. Called again before
        ``advance``, it computes nothing: ``masks`` returns those of the drafts that both calls begin with."""
        ...

    @property
    def ready(self) -> bool:
        """Whether ``masks`` and ``finished`` return without waiting for another process."""
        ...

    def wait(self) -> bool:
        """Waits a short time for ``ready``; returns whether it is ready."""
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Takes sampled tokens, which the masks allowed: prepared drafts, and at most one token after them."""
        ...

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that spell what must follow; they need not be the ones that will be sampled."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the output is complete and no token can follow. False may become True if it is not ``ready``."""
        ...

    @property
    def shortened(self) -> bool:
        """Whether tokens were forbidden in order to complete the output within its limit."""
        ...


Pooling = Literal["mean", "last"]
"""How the hidden states of a text become one vector: their mean, or the last one."""
HIDDEN_SCALE: Final = 2.0**24
"""Hidden states are added in whole units of 1 / HIDDEN_SCALE."""


SAMPLED: Final = -1
"""Stands for the token that the previous step samples. The runner replaces it by that token."""

SAMPLED_TOKEN: Final = array("i", [SAMPLED])
"""The tokens of a step that computes only that token. Shared: it is never changed."""

DRAFTED: Final = -2
"""Stands for a token that the draft model proposes. The runner replaces it by that token."""


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How the tokens of a sequence are sampled: before position ``suppressed_until``, no ``suppressed`` token is."""

    params: SamplingParams
    seed: int
    prompt_length: int
    suppressed: tuple[int, ...] = ()
    suppressed_until: int = 0


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """What a runner keeps of a sequence from a step on, until the sequence is in a step's ``ended`` or starts again.

    ``sampling`` is None if nothing will be sampled. ``tokens`` are the tokens before the rows of the step, if penalties
    need them, else empty.
    """

    sampling: SamplingSpec | None = None
    tokens: IntArray = field(default_factory=_no_tokens)


@dataclass(frozen=True, slots=True)
class TableChange:
    """New entries of a KV group's block table, from number ``first`` on; they replace the runner's entries."""

    group: int
    first: int
    blocks: IntArray


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Known tokens from position ``start`` on that the draft model computes before a step. They end before the step's
    first row, or earlier if there are too many for one step."""

    start: int
    tokens: IntArray

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """The tokens at positions ``start`` … ``start + len(tokens) − 1`` of one sequence, to be computed in this step.

    begin         what the runner keeps of the sequence; None if the runner has it from an earlier step
    changes       changes of its block tables; entries that a window has passed are never read
    samples       number of rows, counted from the last, after which a token is sampled: one, and one for each draft
    drafts        number of last tokens that are proposals: each is accepted if it equals the token sampled there
    candidates    for beam search: the number of most likely tokens to return instead of a sample
    scored        tokens whose log-probabilities are returned, with those of the ``alternatives`` most likely tokens:
                  the first follows the first row, and so on
    pooling       return hidden states: the sum of all rows (mean) or the last row (last)
    decode        whether the step generates; otherwise it computes a prompt
    draft         rows of the draft model. If the drafts are DRAFTED, it also computes the step's first row, and each
                  draft but the last
    """

    sequence_id: int
    tokens: IntArray
    start: int
    changes: tuple[TableChange, ...] = ()
    samples: int = 0
    drafts: int = 0
    candidates: int = 0
    scored: IntArray = field(default_factory=_no_tokens)
    alternatives: int = 0
    pooling: Pooling | None = None
    decode: bool = False
    begin: SequenceStart | None = None
    draft: DraftRows | None = None

    @property
    def end(self) -> int:
        """The position after its rows, which the token sampled by the last row will have."""
        return self.start + len(self.tokens)

    @property
    def draft_tokens(self) -> IntArray:
        """Its last tokens that are proposals."""
        return self.tokens[len(self.tokens) - self.drafts :] if self.drafts else NO_TOKENS

    @property
    def model_drafts(self) -> int:
        """Number of its drafts that the draft model proposes: all or none."""
        return self.drafts if self.drafts and self.tokens[-1] == DRAFTED else 0

    @property
    def logit_rows(self) -> int:
        """How many of its last rows need logits."""
        return len(self.tokens) if self.scored else self.samples


@dataclass(frozen=True, slots=True)
class StepInput:
    """What a model runner computes in one step: blocks to move, in order, then rows of many sequences.

    It is plain data, and ``backends.wire`` makes bytes of it. ``ended`` sequences ended before the step, and the runner
    forgets them.
    """

    steps: tuple[SequenceStep, ...]
    moves: tuple[BlockMove, ...] = ()
    ended: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps or self.moves)

    @property
    def rows(self) -> int:
        return sum(len(step.tokens) for step in self.steps)


@dataclass(frozen=True, slots=True)
class StepPlan(StepInput):
    """One step of the loop, sequences that generate first, with fields that only the loop needs.

    ``predicted_s`` is the predicted time in seconds; None before the first prediction. ``decode_rows`` rows compute
    generated tokens, the others prompts. ``constraints`` are the token constraints of the sequences that sample, by
    sequence. ``attended`` and ``read`` are the positions that rows see, summed over rows, and that sequences read, in
    layers without a window. ``held_by`` is what kept prompts from more rows; ``budget`` is the number of prompt rows
    that the budget allowed, None if nothing generated, no prompt was computed, or lanes are not watched.
    """

    predicted_s: float | None = None
    decode_rows: int = 0
    constraints: Mapping[int, TokenConstraint] = field(default_factory=dict)
    attended: int = 0
    read: int = 0
    held_by: HeldBy = "nothing"
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The results of a step's constraints: for each of their sequences the masks of the rows that are sampled (None
    allows all tokens; after the last drafts there may be none, and nothing is sampled), and the sequences that are not
    sampled in this step."""

    allowed: Mapping[int, tuple[bytes | None, ...]] = field(default_factory=dict)
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
    """The outcome of a SequenceStep: the sampled tokens, and log-probabilities of them and of the prompt, if requested.

    Of several sampled tokens all but the last are accepted drafts.

    ``candidates`` are the most likely tokens, descending, if they were requested. ``error`` ends this sequence; others
    are not affected. ``deferred``: the token mask was not ready, so the last row must be computed again. ``complete``:
    no further token can follow; this was not known yet when the last token was sampled.

    ``hidden`` is float64 [hidden_size]. For ``last`` it is the step's last row. For ``mean`` it is the sum of the rows
    in units of 1 / HIDDEN_SCALE, each rounded to whole units: sums of whole numbers are exact, so the sum over a text
    is the same however it was cut into steps (as long as tokens · |hidden| stays below 2²⁹). Divide by HIDDEN_SCALE ·
    tokens.
    """

    sequence_id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    candidates: tuple[TokenLogprob, ...] = ()
    hidden: FloatArray | None = None
    error: TwofoldError | None = None
    deferred: bool = False
    complete: bool = False


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One outcome for each entry of the plan, in the plan's order.

    ``seconds`` is the time of the step's rows, from the first operation to the last sample, ``moves_s`` that of the
    block moves before them. ``forward_s`` is the part of the forward pass in ``seconds``, ``sample_s`` that of
    sampling. ``overlap_s`` is the time of the caller's work during ``forward_s``. ``draft_s`` are the times of the
    draft model's passes before the forward pass, also in ``seconds``.
    """

    sequences: tuple[SequenceOutcome, ...]
    seconds: float = 0.0
    moves_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    overlap_s: float = 0.0
    draft_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one sequence gained in a committed step. ``stop_token`` is the token that ended the sequence, if one did.

    ``candidates``, ``hidden`` and ``error`` are those of the outcome. ``made`` says when and how the tokens were made,
    if the request asks for that.
    """

    sequence_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    finish: FinishReason | None = None
    stop_token: int | None = None
    candidates: tuple[TokenLogprob, ...] = ()
    hidden: FloatArray | None = None
    error: TwofoldError | None = None
    made: TokensMade | None = None
