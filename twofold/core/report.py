"""The reports of an engine: of each step that ran and of each request that ended.

Times are seconds on the engine's clock. The times of a step:

    │ host_s │ moves_s │ seconds │
             └ started           └ ended
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from twofold.core.record import Repetition, SequenceRecord
from twofold.core.step import FinishReason, HeldBy
from twofold.core.step_basis import PLAIN, StepBasis
from twofold.core.timeline import RequestTimeline


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks of the KV cache, over all groups: free, unused but findable (cached), and held by sequences."""

    free: int
    cached: int
    held: int


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """The blocks of a KV group by what they are; the numbers add up to ``blocks``.

    free     without an owner
    cached   unused but findable; ``pinned``: those that also have a pin, so they cannot be evicted
    shared   held by several sequences, or by a sequence and the KV store
    store    held for the KV store alone
    held     (sequence, blocks that it alone holds)
    """

    blocks: int
    free: int
    cached: int
    pinned: int
    shared: int
    store: int
    held: tuple[tuple[int, int], ...]


class TreeNode(NamedTuple):
    """A run of blocks in the prefix tree: the index of the node before it (-1: none), the position of its first block
    in the prompt, its blocks, how many sequences hold its end, and the share of unused blocks that were used before it
    (None while it is held or pinned)."""

    parent: int
    start: int
    blocks: int
    holders: int
    age: float | None


@dataclass(frozen=True, slots=True)
class TreeOutline:
    """The longest runs of the prefix tree under one salt, parents first. ``whole``: all runs are there."""

    salt: str
    nodes: tuple[TreeNode, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A KV group: its window in positions (None: no window), its blocks, and the bytes of a block."""

    window: int | None
    blocks: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change while an engine runs: ``slots`` sequences run at most, with ``rows`` rows a step.

    budget          whether the prompt rows of a step are "fixed", or "live": bounded by TPOT targets
    tpot_target_s   the target of requests without one of their own; None with a fixed budget
    attention_chunk positions that attention reads at a time (``Backend.attention_chunk``)
    step_basis      of its step-time model
    """

    slots: int
    rows: int
    block_size: int
    budget: Literal["live", "fixed"]
    tpot_target_s: float | None
    groups: tuple[GroupFacts, ...]
    attention_chunk: int = 1
    step_basis: StepBasis = PLAIN


@dataclass(frozen=True, slots=True)
class KVPicture:
    """The KV cache at one moment: its groups, and the prefix tree by salt."""

    groups: tuple[PoolPicture, ...]
    trees: tuple[TreeOutline, ...]


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: ``decode_rows`` computed generated tokens and drafts (``draft_rows``), ``prefill_rows`` prompts.

    number      counts the engine's steps from 0
    moves       blocks that were copied or swapped before the rows
    predicted_s predicted seconds of the rows; None before the first prediction
    seconds     how long the rows took; ``moves_s``: how long the moves before them took
    host_s      the engine's own time since the step before, without waiting for requests
    waiting, running, blocks    as they were when the step was reported
    forward_s   part of ``seconds`` for the forward pass; ``sample_s``: part for sampling
    overlap_s   work of the engine during ``forward_s``
    draft_s     part of ``seconds`` for the draft model
    attended, read, held_by, budget     as in ``StepPlan``
    """

    number: int
    started: float
    decode_rows: int
    prefill_rows: int
    sequences: int
    logit_rows: int
    moves: int
    predicted_s: float | None
    seconds: float
    moves_s: float
    host_s: float
    waiting: int
    running: int
    blocks: BlockCounts
    forward_s: float = 0.0
    sample_s: float = 0.0
    overlap_s: float = 0.0
    draft_rows: int = 0
    draft_s: float = 0.0
    attended: int = 0
    read: int = 0
    held_by: HeldBy = "nothing"
    budget: int | None = None

    @property
    def ended(self) -> float:
        return self.started + self.moves_s + self.seconds


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """A request that ended. Its phases follow each other without a gap: queue (arrival → first scheduled), prefill (→
    first token) and decode (→ last token). Times of phases that were not reached are None.

    token_times     the times of each completion's tokens, including completions that best_of dropped
    cached_tokens   tokens of the prompt that came from a cache; ``fresh_tokens`` were computed
    finish_reasons  of the completions that ended
    record          the work and the waits of its sequences together
    timeline        its steps, and those of each completion's tokens; None unless it asks for them
    repeats         the longest repetition in its completions (``text.loops``); None without one
    open_ended      no complete output of its grammar is known, so its limit may cut a completion
    """

    arrival: float
    first_scheduled: float | None
    first_token: float | None
    finished: float
    token_times: tuple[tuple[float, ...], ...]
    prompt_tokens: int
    cached_tokens: int = 0
    request_id: str = ""
    finish_reasons: tuple[FinishReason, ...] = ()
    record: SequenceRecord = field(default_factory=SequenceRecord)
    timeline: RequestTimeline | None = None
    repeats: Repetition | None = None
    open_ended: bool = False

    @property
    def completions(self) -> int:
        """Number of completions; at least one, so that requests that ended early count, too."""
        return max(1, len(self.finish_reasons))

    @property
    def last_token(self) -> float | None:
        return max((times[-1] for times in self.token_times if times), default=None)

    @property
    def loaded_tokens(self) -> int:
        """Cached tokens that came from the KV store on the disk."""
        return min(self.record.loaded, self.cached_tokens)

    @property
    def fresh_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def output_tokens(self) -> int:
        return sum(map(len, self.token_times))

    @property
    def queue_s(self) -> float:
        return (self.finished if self.first_scheduled is None else self.first_scheduled) - self.arrival

    @property
    def prefill_s(self) -> float:
        if self.first_scheduled is None:
            return 0.0
        return (self.finished if self.first_token is None else self.first_token) - self.first_scheduled

    @property
    def decode_s(self) -> float:
        last = self.last_token
        return 0.0 if self.first_token is None or last is None else last - self.first_token

    def phases(self) -> Iterator[tuple[str, float, float]]:
        """Name, start and end of each phase that the request reached."""
        admitted, first, last = self.first_scheduled, self.first_token, self.last_token
        yield "queue", self.arrival, self.finished if admitted is None else admitted
        if admitted is not None:
            yield "prefill", admitted, self.finished if first is None else first
        if first is not None and last is not None and last > first:
            yield "decode", first, last

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first, over all completions; None if no completion has two tokens."""
        gaps = sum(len(times) - 1 for times in self.token_times if times)
        return sum(times[-1] - times[0] for times in self.token_times if times) / gaps if gaps else None


class Observer(Protocol):
    """Receives every step and every request on the engine's thread. Its methods must return quickly and not raise."""

    def on_step(self, report: StepReport) -> None: ...

    def on_request(self, report: RequestMetrics) -> None: ...


@dataclass(slots=True)
class PinCounts:
    """Tokens of cache pins of one time to live, since the engine started: ``written`` were pinned for the first time,
    ``read`` by later prompts, ``expired`` are no longer pinned, ``refused`` found no space."""

    written: int = 0
    read: int = 0
    expired: int = 0
    refused: int = 0


@dataclass(slots=True)
class StoreCounts:
    """The KV store on the disk. Counts are since the engine started, ``bytes`` and ``segments`` are what it holds now.

    loads           prefixes that were loaded, with ``loaded`` tokens in ``load_s`` seconds
    declined        prefixes that the store had, and that were computed because that was predicted to be faster
    written         segments written; ``evicted`` ones were removed because the store was full
    bad             segments that were damaged or forged; they were removed and computed again
    failed_reads    reads, and ``failed_writes`` writes, that the system refused
    """

    bytes: int = 0
    segments: int = 0
    loads: int = 0
    loaded: int = 0
    load_s: float = 0.0
    declined: int = 0
    written: int = 0
    evicted: int = 0
    bad: int = 0
    failed_reads: int = 0
    failed_writes: int = 0


@dataclass(slots=True)
class DraftCounts:
    """Draft tokens since the engine started.

    drafts      steps with draft tokens, counted for each sequence; ``drafted``: the tokens in them
    accepted    drafted tokens that became tokens of a completion
    positions   accepted tokens by their place in the draft, as many places as the longest draft had
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    positions: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """Counts the draft of a sequence in a step."""
        if drafted:
            self.drafts += 1
            self.drafted += drafted
            self.accepted += accepted
            self.positions.extend([0] * (drafted - len(self.positions)))
            for position in range(accepted):
                self.positions[position] += 1


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine at one moment. Counts are since it started; ``queries``, ``hits`` and ``evicted`` as in ``kv.pins``.

    pinned             blocks that a pin protects, over all groups
    pins               by time to live in seconds
    prediction_error   recent mean of |predicted − measured| / measured step time; None before the first prediction
    step_weights       of the step-time model; None before the first prediction
    max_rows, max_logit_rows   limits of a step
    store              of the KV store on the disk; None without one
    drafts             of speculation; all are 0 without it
    masks_narrowed     masks of structured outputs in which the token limit forbade tokens that the grammar allows
    """

    waiting: int
    running: int
    blocks: BlockCounts
    pinned: int
    block_size: int
    queries: int
    hits: int
    evicted: int
    pins: Mapping[float, PinCounts]
    preemptions: int
    swaps: int
    prediction_error: float | None
    step_weights: tuple[float, ...] | None = None
    max_rows: int = 1
    max_logit_rows: int = 1
    store: StoreCounts | None = None
    drafts: DraftCounts = field(default_factory=DraftCounts)
    masks_narrowed: int = 0
