"""The outputs of requests, in the shape of vLLM's offline API."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.core.errors import TwofoldError
from twofold.core.report import RequestMetrics
from twofold.core.step import FinishReason, PositionLogprobs
from twofold.core.timeline import TokensMade
from twofold.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log-probability of one token; rank 1 is the most likely; ``decoded_token`` is its text alone."""

    logprob: float
    rank: int
    decoded_token: str


Logprobs = dict[int, Logprob]
"""The log-probabilities at one position: of its token and of the most likely ones, by token id."""


def readable(position: PositionLogprobs, tokenizer: Tokenizer) -> Logprobs:
    """One position of the output: the chosen token first, then the most likely ones."""

    def text(token: int) -> str:
        known = token < tokenizer.vocab_size  # models may have more rows than their tokenizer has tokens
        return tokenizer.decode([token], skip_special_tokens=False, continuation=True) if known else ""

    tokens = (position.chosen, *position.top)
    return {each.token: Logprob(each.logprob, each.rank, text(each.token)) for each in tokens}


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion. ``stop_reason`` is the stop string or token id that ended it, None for end of sequence or length.

    ``token_ids`` holds every sampled token, also those whose text a stop string cut off.
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
    """A request with its completions. ``prompt`` is None if token ids were given.

    ``prompt_logprobs`` has an entry for each prompt token; the first is None, because no token precedes it.
    ``embedding`` is the vector of an embedding request, None for other requests.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None
    outputs: tuple[CompletionOutput, ...]
    metrics: RequestMetrics
    finished: bool
    embedding: tuple[float, ...] | None = None

    @property
    def report(self) -> RequestMetrics:
        """``metrics``, which has times, work and waits."""
        return self.metrics

    @property
    def cumulative_logprob(self) -> float:
        """The sum of ``prompt_logprobs`` for the prompt's tokens after the first; 0 if they were not requested."""
        tokens = zip(self.prompt_token_ids, self.prompt_logprobs or (), strict=False)
        return sum(position[token].logprob for token, position in tokens if position is not None)


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """Log-probabilities of the tokens of a prompt from token ``start`` on, as ``RequestOutput.prompt_logprobs``."""

    start: int
    logprobs: tuple[Logprobs | None, ...]


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """The part of a completion that one step added. ``request`` is the whole output, in the last delta of a request.

    ``error`` is the reason if the engine itself aborted the request. ``made`` says when and how the tokens were made,
    if the request asks for its timeline; None where several steps made them. ``scored`` is the part of the prompt whose
    log-probabilities the step computed, if the request asks for them; all parts come before the first token. Where a
    request goes on elsewhere, they start over. ``cached`` is how many tokens of the prompt came from a cache, in the
    first delta with a token; there also ``open_ended``, as in ``RequestMetrics``.
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
    made: TokensMade | None = None
    scored: ScoredPrompt | None = None
    cached: int | None = None
    open_ended: bool = False
