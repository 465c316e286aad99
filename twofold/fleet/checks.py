"""What a peer's message may contain: ``check_numbers`` sees the message alone, ``OutputCheck`` also its request.

A worker or node that sends something else is at fault: its connection ends, and its requests go on elsewhere. So its
numbers are safe to use as indices, lengths and keys, and no client gets an error for what it sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import inf
from typing import Any, Final

import msgspec

from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.params import MAX_STOP_CHARS, MAX_TOKEN_ID, BeamSearchParams, SamplingParams
from twofold.core.report import RequestMetrics
from twofold.core.request import DeliveredCompletion, EngineRequest, PoolingParams, ScoringParams
from twofold.core.timeline import RequestSteps
from twofold.engine.outputs import CompletionOutput, Logprobs, OutputDelta, RequestOutput

MAX_NUMBER: Final = 1 << 53
"""Larger integers are no counts, and JSON readers lose their digits."""
SIGNED: Final = frozenset(
    ("parent", "logprob", "cumulative_logprob", "embedding", "step_weights", "saved_s", "token_times", "arrival")
) | {"first_scheduled", "first_token", "finished", "started", "at", "start", "end"}
"""Fields whose numbers may be negative: differences, logarithms, and times on a clock that begins anywhere."""
LANE_VALUES: Final = {
    **dict.fromkeys((LaneKind.FIRST, LaneKind.HOLD, LaneKind.QUEUE), 0),
    **dict.fromkeys((LaneKind.DRAFTS, LaneKind.RETURN), 2),
    LaneKind.ADMIT: 3,
}
"""Number of values of the events of lanes; of the other kinds one."""
MAX_VECTOR_BYTES: Final = 1 << 20
MAX_OPEN_TOKENS: Final = 1 << 17
"""Tokens of a completion without a limit."""
OUTSIDE: Final = "a token is outside of the vocabulary"
WITHHELD_CHARS: Final = 2 * MAX_STOP_CHARS
"""Characters of a completion that an engine withholds at most, beside those of its last token."""


class PeerError(ValueError):
    """A peer's message cannot be true."""


def check_numbers(value: Any, name: str = "") -> None:
    """Raises PeerError for a number in a decoded message that is not finite, is too large, or is negative in a field
    that counts or measures something. ``name`` is the field of ``value``."""
    if isinstance(value, str | bytes | bool) or value is None:
        return
    if isinstance(value, int | float):
        low = -MAX_NUMBER if name in SIGNED else 0
        if not low <= value < MAX_NUMBER and not (value == -inf and name == "logprob"):
            raise PeerError(f"{name or 'a number'} is {value}")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            check_numbers(key)
            check_numbers(each, name)
    elif names := _fields(value.__class__):
        for field in names:
            check_numbers(getattr(value, field), field)
    elif isinstance(value, Collection) and not (value and isinstance(next(iter(value)), bytes)):
        for each in value:
            check_numbers(each, name)


def check_lanes(events: Collection[LaneEvent]) -> None:
    """Raises PeerError for an event with more or fewer values than its kind has."""
    for event in events:
        _equal("values of an event", len(event.values), LANE_VALUES.get(event.kind, 1))


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """The fields of a record; nothing for other types."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    named = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
    return getattr(kind, "__struct_fields__", named) if issubclass(kind, msgspec.Struct) else named


@dataclass(frozen=True, slots=True)
class OutputBounds:
    """Bounds of a model's outputs: its token ids are below ``vocabulary``, a prompt and its completion have at most
    ``context`` tokens, the text of a token has at most ``token_chars`` characters, and a vector ``hidden`` values."""

    vocabulary: int = MAX_TOKEN_ID + 1
    context: int = MAX_TOKEN_ID
    token_chars: int = MAX_NUMBER
    hidden: int | None = None

    def check_tokens(self, ids: Collection[int]) -> None:
        """Raises PeerError for a token outside of the vocabulary."""
        if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise PeerError(OUTSIDE)

    def check_logprobs(self, logprobs: Sequence[Logprobs | None], ids: Sequence[int], wanted: int) -> None:
        """Raises PeerError unless each of the tokens ``ids`` has its log-probability and at most ``wanted`` others."""
        _equal("log-probabilities", len(logprobs), len(ids))
        for token, position in zip(ids, logprobs, strict=True):
            if position is None:
                continue
            _most("alternatives", len(position), wanted + 1)
            self.check_tokens(position)
            if token not in position:
                raise PeerError("a token has no log-probability")
            _most("characters of a token", max(len(each.decoded_token) for each in position.values()), self.token_chars)


NO_BOUNDS: Final = OutputBounds()
REQUEST_BYTES: Final = 64 << 10
TOKEN_BYTES: Final = 512
LOGPROB_BYTES: Final = 192
"""Bytes of an output at most: beside its tokens, with its vector, of each token, and of each log-probability. The text
of a token seldom has more than a few bytes; these bounds have room for many times as much."""


def output_bytes(request: EngineRequest) -> int:
    """The maximum length of a message with the whole output of a request, and that of the messages before it."""
    params, prompt = request.params, len(request.token_ids)
    if isinstance(params, ScoringParams):
        return REQUEST_BYTES + prompt * (params.alternatives + 2) * LOGPROB_BYTES
    if isinstance(params, BeamSearchParams):
        return REQUEST_BYTES + params.beam_width * params.max_tokens * TOKEN_BYTES
    if not isinstance(params, SamplingParams):
        return REQUEST_BYTES + MAX_VECTOR_BYTES
    tokens = MAX_OPEN_TOKENS if params.max_tokens is None else min(params.max_tokens, MAX_OPEN_TOKENS)
    of_token = TOKEN_BYTES + (0 if params.logprobs is None else (params.logprobs + 2) * LOGPROB_BYTES)
    scored = 0 if params.prompt_logprobs is None else prompt * (params.prompt_logprobs + 2) * LOGPROB_BYTES
    return REQUEST_BYTES + 2 * (params.answers * tokens * of_token + scored)


class OutputCheck:
    """Whether what replicas send of a request can be its output, together with what they sent before.

    Its outputs grow, unless they are all sent at the end: then each replica starts over.
    """

    def __init__(self, request: EngineRequest) -> None:
        params = request.params
        self._request = request
        self._sampling = params if isinstance(params, SamplingParams) else None
        self._max_tokens = params.max_tokens if isinstance(params, SamplingParams | BeamSearchParams) else 0
        self._outputs = 1
        if isinstance(params, SamplingParams):
            self._outputs = params.n
        elif isinstance(params, BeamSearchParams):
            self._outputs = params.beam_width
        self.grows = self._sampling is not None and self._sampling.answers == self._outputs
        self._tokens = [0] * self._outputs
        self._finished = [False] * self._outputs
        self._chars = self._scored = 0

    def restart(self) -> None:
        """Another replica begins, and sends again what does not grow."""
        self._scored = 0
        if not self.grows:
            self._tokens = [0] * self._outputs
            self._finished = [False] * self._outputs
            self._chars = 0

    def check(self, delta: OutputDelta, begun: Sequence[DeliveredCompletion], bounds: OutputBounds) -> None:
        """Raises PeerError if a delta of the replica that began after ``begun`` cannot be; else it counts.

        It runs for each token, so that what each delta has is checked here, without further calls.
        """
        index, ids = delta.index, delta.token_ids
        if not 0 <= index < self._outputs:
            raise PeerError(f"completion {index} of {self._outputs}")
        if self._finished[index] and (ids or delta.text):
            raise PeerError("a completion goes on after its end")
        if ids and not 0 <= min(ids) <= max(ids) < bounds.vocabulary:
            raise PeerError(OUTSIDE)
        wanted = None if self._sampling is None else self._sampling.logprobs
        if delta.logprobs is not None:
            bounds.check_logprobs(delta.logprobs, ids, _wanted("logprobs", wanted))
        elif wanted is not None and ids:
            raise PeerError("log-probabilities are missing")
        if delta.scored is not None:
            self._check_prompt(delta.scored.start, delta.scored.logprobs, bounds)
            _equal("scored tokens of the prompt", delta.scored.start, self._scored)
        if delta.made is not None:
            _equal("origins", len(delta.made.origins), len(ids))
        tokens, limit = self._tokens[index] + len(ids), bounds.context - len(self._request.token_ids)
        if self._max_tokens is not None and self._max_tokens < limit:
            limit = self._max_tokens
        chars = self._chars + len(delta.text)
        if tokens > limit or chars > (sum(self._tokens) + len(ids) + 4) * bounds.token_chars + WITHHELD_CHARS:
            raise PeerError(f"{tokens} tokens of a completion, of at most {limit}, and {chars} characters")
        last = delta.request is not None or delta.error is not None
        ended = self._finished[index] or delta.finish_reason is not None
        all_ended = ended and sum(self._finished) + (not self._finished[index]) == self._outputs
        if self.grows and not last and (all_ended or (tokens == limit and not ended)):
            raise PeerError("a completion has reached its end, and the request goes on")
        if delta.request is not None:
            self.check_output(delta.request, begun, bounds)
        self._tokens[index], self._finished[index], self._chars = tokens, ended, chars
        self._scored += 0 if delta.scored is None else len(delta.scored.logprobs)

    def check_output(self, output: RequestOutput, begun: Sequence[DeliveredCompletion], bounds: OutputBounds) -> None:
        """Raises PeerError if the whole output of a request cannot be."""
        request, params, metrics = self._request, self._request.params, output.metrics
        count = 0 if isinstance(params, PoolingParams) else self._outputs
        if isinstance(params, BeamSearchParams):
            _most("completions", len(output.outputs), count)
        else:
            _equal("completions", len(output.outputs), count)
        _equal("tokens of the prompt", metrics.prompt_tokens, len(request.token_ids))
        _most("cached tokens", metrics.cached_tokens, len(request.token_ids))
        _most("finish reasons", len(metrics.finish_reasons), max(1, request.completions, count))
        if self.grows:
            _equal("lists of times", len(metrics.token_times), count)
        _most("times", sum(map(len, metrics.token_times)), max(1, request.completions) * self._limit(bounds))
        for place, each in enumerate(output.outputs):
            if each.index != place:
                raise PeerError(f"completion {each.index} at place {place}")
            known = begun[place] if self.grows and begun else DeliveredCompletion()
            self._check_completion(each, known, metrics.token_times[place] if self.grows else None, bounds)
        if output.prompt_logprobs is not None:
            self._check_prompt(0, output.prompt_logprobs, bounds)
        _check_timeline(metrics, asked=request.options.timeline)
        if output.embedding is not None and bounds.hidden is not None:
            _equal("values of the vector", len(output.embedding), bounds.hidden)

    def _check_completion(
        self, each: CompletionOutput, known: DeliveredCompletion, times: Sequence[float] | None, bounds: OutputBounds
    ) -> None:
        """A completion of which the replica got a part; it has no times and log-probabilities for that."""
        bounds.check_tokens(each.token_ids)
        _most("tokens of a completion", len(each.token_ids), self._limit(bounds))
        _most("characters", len(each.text), (len(each.token_ids) + 4) * bounds.token_chars + WITHHELD_CHARS)
        skipped = 0 if known.finish_reason is not None else len(known.token_ids)
        if each.token_ids[:skipped] != known.token_ids[:skipped] or (known.finish_reason and each.token_ids):
            raise PeerError("a completion has other tokens than those delivered")
        fresh = each.token_ids[skipped:]
        if times is not None:
            _equal("times", len(times), len(fresh))
        if (each.logprobs is None) != (self._sampling is None or self._sampling.logprobs is None):
            raise PeerError("log-probabilities do not fit the request")
        if each.logprobs is not None and self._sampling is not None:
            bounds.check_logprobs(each.logprobs, fresh, _wanted("logprobs", self._sampling.logprobs))

    def _check_prompt(self, start: int, logprobs: Sequence[Logprobs | None], bounds: OutputBounds) -> None:
        """The log-probabilities of the prompt from token ``start`` on. Those of an aborted request may be fewer."""
        params, ids = self._request.params, self._request.token_ids[start:]
        wanted = params.alternatives if isinstance(params, ScoringParams) else getattr(params, "prompt_logprobs", None)
        _most("log-probabilities", len(logprobs), len(ids))
        bounds.check_logprobs(logprobs, ids[: len(logprobs)], _wanted("prompt_logprobs", wanted))

    def _limit(self, bounds: OutputBounds) -> int:
        """The maximum number of tokens of a completion."""
        room = max(0, bounds.context - len(self._request.token_ids))
        return room if self._max_tokens is None else min(room, self._max_tokens)


def _check_timeline(metrics: RequestMetrics, *, asked: bool) -> None:
    made = metrics.timeline
    if made is None:
        return
    if not asked:
        raise PeerError("a timeline that nobody asked for")
    if len({len(getattr(made.steps, name)) for name in _fields(RequestSteps)}) > 1:
        raise PeerError("the columns of a timeline have different lengths")
    lengths = [[*map(len, each)] for each in (made.token_steps, made.origins, metrics.token_times)]
    if lengths[0] != lengths[1] or lengths[0] != lengths[2]:
        raise PeerError("a timeline has other tokens than its request")


def _wanted(name: str, count: int | None) -> int:
    if count is None:
        raise PeerError(f"{name} that nobody asked for")
    return count


def _equal(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise PeerError(f"{found} {what} instead of {expected}")


def _most(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise PeerError(f"{found} {what}, of at most {limit}")
