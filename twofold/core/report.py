"""What the engine tells about itself: a report of each step that ran and of each request that ended.

Times are seconds on the engine's clock. A step lies on it like this:

    │ host_s │ moves_s │ seconds │
             └ started           └ ended
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twofold.core.record import SequenceRecord
from twofold.core.step import FinishReason


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks of the KV cache, over all groups: free, unused but findable (cached), and held by sequences."""

    free: int
    cached: int
    held: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step. Rows by phase; the first of them are those that generate.

    number      counts the engine's steps from 0
    moves       blocks that were copied or swapped before its rows
    predicted_s how long its rows should have taken; None before anything was learned
    seconds     how long they took, ``moves_s`` the moves before them
    host_s      the engine's own time since the step before; waiting for requests is none of it
    waiting, running, blocks    as they were when it was planned
    forward_s   of ``seconds`` the forward pass, ``sample_s`` sampling
    overlap_s   of ``forward_s`` what the engine did meanwhile
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

    @property
    def ended(self) -> float:
        return self.started + self.moves_s + self.seconds


@dataclass(frozen=True, slots=True)
class RequestReport:
    """A request that ended. Queue (arrival → admitted), prefill (→ first token) and decode (→ last token) follow each
    other without a gap; what did not happen is None.

    cached_tokens   of the prompt that came from the cache
    record          what its answers did and waited for, together
    """

    request_id: str
    arrival: float
    admitted: float | None
    first_token: float | None
    last_token: float | None
    finished: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reasons: tuple[FinishReason, ...]
    record: SequenceRecord

    @property
    def completions(self) -> int:
        """How many it has; at least one, so that a request that ended early counts too."""
        return max(1, len(self.finish_reasons))

    @property
    def queue_s(self) -> float:
        return (self.finished if self.admitted is None else self.admitted) - self.arrival

    @property
    def prefill_s(self) -> float:
        if self.admitted is None:
            return 0.0
        return (self.finished if self.first_token is None else self.first_token) - self.admitted

    @property
    def decode_s(self) -> float:
        if self.first_token is None or self.last_token is None:
            return 0.0
        return self.last_token - self.first_token


class Observer(Protocol):
    """Hears of every step and every request, on the engine's thread: it must not raise and should not take long."""

    def on_step(self, report: StepReport) -> None: ...

    def on_request(self, report: RequestReport) -> None: ...


@dataclass(frozen=True, slots=True)
class PinCounts:
    """Tokens of cache pins of one time to live, since the engine began: as ``kv.counters.PinTokens``."""

    ttl_s: float
    written: int
    read: int
    expired: int
    refused: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine at one moment. Counts are since it began; those of tokens and blocks as ``kv.counters`` has them.

    pinned             blocks that a pin protects, over all groups
    prediction_error   how far predicted step times were off lately, as a share of the measured ones; None before any
    """

    waiting: int
    running: int
    blocks: BlockCounts
    pinned: int
    block_size: int
    queries: int
    hits: int
    evicted: int
    pins: tuple[PinCounts, ...]
    preemptions: int
    swaps: int
    prediction_error: float | None
