"""What a caller gets back, shaped as vLLM's offline API shapes it."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.core.errors import TwofoldError
from twofold.core.report import RequestReport
from twofold.core.step import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log-probability of one token; rank 1 is the most likely; ``decoded_token`` is its text alone."""

    logprob: float
    rank: int
    decoded_token: str


Logprobs = dict[int, Logprob]
"""One position: the token that stands there, and the most likely ones, by token id."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds on the engine's clock.

    queue (arrival → first scheduled), prefill (→ first token) and decode (→ last token) follow each other without a
    gap. ``token_times`` has a row for each answer. ``cached_tokens`` of the prompt came from a cache,
    ``fresh_tokens`` were computed. ``first_scheduled`` and ``first_token`` are None where it did not come to that.
    """

    arrival: float
    first_scheduled: float | None
    first_token: float | None
    finished: float
    token_times: tuple[tuple[float, ...], ...]
    prompt_tokens: int
    cached_tokens: int = 0

    @property
    def fresh_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def output_tokens(self) -> int:
        return sum(len(times) for times in self.token_times)

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
        return (
            0.0
            if self.first_token is None
            else max(times[-1] for times in self.token_times if times) - self.first_token
        )

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first, over all answers; None where there is none."""
        gaps = sum(len(times) - 1 for times in self.token_times if times)
        return sum(times[-1] - times[0] for times in self.token_times if times) / gaps if gaps else None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. ``stop_reason`` is the stop string or token id that ended it, None for end of sequence or length.

    ``token_ids`` holds every drawn token, also those whose text a stop string cut off.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] | None
    cumulative_logprob: float | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request with its answers. ``prompt`` is None when token ids were given.

    ``prompt_logprobs`` has an entry for each prompt token; the first is None, for nothing comes before it. ``report``
    is what happened to it; ``embedding`` the vector that a request for one asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None
    outputs: tuple[CompletionOutput, ...]
    metrics: RequestMetrics
    finished: bool
    report: RequestReport
    embedding: tuple[float, ...] | None = None

    @property
    def cumulative_logprob(self) -> float:
        """Of the prompt's tokens after the first, where their log-probabilities were asked for."""
        tokens = zip(self.prompt_token_ids, self.prompt_logprobs or (), strict=False)
        return sum(position[token].logprob for token, position in tokens if position is not None)


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step added to one answer. ``request`` is the whole, in the last delta of a request.

    ``error`` says why a request ended as aborted although nobody asked for that.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    request: RequestOutput | None = None
    error: TwofoldError | None = None
