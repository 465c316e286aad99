"""A request while the engine has it: its sequences, and the outputs they give.

SequenceCompletion   the completion of one sequence: detokenisation and stop strings
ActiveRequest        what requests of all kinds have in common
Generation           n sampled completions, or the n best of more
Embedding            one vector

Beam search is in ``engine.beams``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from typing import Final

from twofold.core.clock import Clock
from twofold.core.errors import TwofoldError
from twofold.core.params import SamplingParams
from twofold.core.record import Repetition, SequenceRecord, WaitReason
from twofold.core.report import RequestMetrics
from twofold.core.request import DeliveredCompletion, EngineRequest, PoolingParams
from twofold.core.step import HIDDEN_SCALE, FinishReason, PositionLogprobs, TokenEvent
from twofold.core.timeline import RequestTimeline
from twofold.engine.outputs import CompletionOutput, Logprobs, OutputDelta, RequestOutput, ScoredPrompt, readable
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence
from twofold.text.detokenize import StopStrings, StreamDetokenizer
from twofold.text.loops import LoopFinder
from twofold.text.tokenizers.tokenizer import Tokenizer

MAX_CHARACTER_BYTES: Final = 4
"""A token has at least one byte, so an incomplete character lies in at most so many tokens."""


class SequenceCompletion:
    """The completion of one sequence. Its text is sent in whole characters, never with a stop string or its start."""

    def __init__(
        self,
        request_id: str,
        index: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        before: Iterable[int] = (),
        *,
        stop_loops: bool = False,
    ) -> None:
        """``params`` are the caller's; the sequence's own may request more log-probabilities. ``before`` are the last
        tokens before it that belong to the same text. ``stop_loops``: a repetition ends it, unless it has a form that
        it must complete or ignores ends."""
        self.index = index
        self.times: list[float] = []
        self.steps: list[int] = []
        self.origins = ""
        self.finish: FinishReason | None = None
        self._request_id = request_id
        self._tokenizer = tokenizer
        self._params = params
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[Logprobs] | None = None if params.logprobs is None else []
        self._cumulative = 0.0
        self._detokenizer = StreamDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, continuation=True
        )
        for token in before:
            self._detokenizer.push(token)  # leaves only the bytes of an incomplete character
        self._stops = StopStrings(params.stop_strings, include=params.include_stop_str_in_output)
        self._stop_reason: str | int | None = None
        self._loops = LoopFinder()
        self._stops_loops = stop_loops and params.structured_outputs is None and not params.ignore_eos
        self._looped = False

    def restore(self, known: DeliveredCompletion) -> None:
        """Takes the tokens that the caller has, whose text is not sent again."""
        self.finish = known.finish_reason
        if self.finish is None:
            self._text.append("".join([self._push(token, ends=False) for token in known.token_ids]))

    @property
    def repeats(self) -> Repetition | None:
        """Its longest repetition."""
        return self._loops.longest

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of its tokens, if the sequence reports them."""
        return self._cumulative / max(1, len(self._tokens))

    def take(self, event: TokenEvent, now: float) -> OutputDelta:
        """Adds the event's tokens up to a stop string; returns the delta to send."""
        taken, text = 0, ""
        for token in event.tokens:
            taken += 1
            text += self._push(token, ends=token == event.stop_token)
            if self._stops.stopped is not None or self._looped:
                break
        logprobs = self._add_logprobs(event.logprobs[:taken])
        self.times.extend([now] * taken)
        made = event.made
        if made is not None:
            made = replace(made, origins=made.origins[:taken])
            self.steps.extend([made.step] * taken)
            self.origins += made.origins
        if self._stops.stopped is not None:
            self.finish, self._stop_reason = "stop", self._stops.stopped
        elif self._looped:
            text += self._end("repetition", None)
        elif event.finish is not None:
            text += self._end(event.finish, event.stop_token)
        if text:
            self._text.append(text)
        return OutputDelta(
            self._request_id,
            self.index,
            text,
            event.tokens[:taken],
            logprobs,
            self.finish,
            self._stop_reason,
            made=made,
        )

    def abort(self) -> None:
        """Ends the completion as aborted, with the text that was withheld."""
        self._text.append(self._end("abort", None))

    def output(self) -> CompletionOutput:
        """The completion so far."""
        return CompletionOutput(
            self.index,
            "".join(self._text),
            tuple(self._tokens),
            None if self._logprobs is None else tuple(self._logprobs),
            None if self._logprobs is None else self._cumulative,
            self.finish,
            self._stop_reason,
        )

    def _push(self, token: int, *, ends: bool) -> str:
        """The text to send after this token. The first ``min_tokens`` tokens are not searched for stop strings."""
        self._tokens.append(token)
        repeats = self._loops.push(token)
        self._looped = repeats and self._stops_loops and len(self._tokens) > self._params.min_tokens
        if not self._params.detokenize or (ends and not self._params.include_stop_str_in_output):
            return ""
        text = self._detokenizer.push(token) if token < self._tokenizer.vocab_size else ""
        if not text or len(self._tokens) <= self._params.min_tokens:
            return text
        return self._stops.push(text)[0]

    def _end(self, finish: FinishReason, stop_token: int | None) -> str:
        """Sets the finish reason; returns the text that was withheld."""
        self.finish = finish
        if stop_token is not None and stop_token in self._params.stop_tokens:
            self._stop_reason = stop_token
        rest = self._stops.push(self._detokenizer.flush())[0]
        return rest + self._stops.flush()

    def _add_logprobs(self, positions: tuple[PositionLogprobs, ...]) -> tuple[Logprobs, ...] | None:
        for position in positions:  # one by one, so that the sum does not depend on how many tokens come at once
            self._cumulative += position.chosen.logprob
        if self._logprobs is None:
            return None
        added = tuple(readable(position, self._tokenizer) for position in positions)
        self._logprobs.extend(added)
        return added


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state that an engine's requests share. ``owners`` maps sequences to the requests that get their events.
    ``stop_loops`` is that of ``EngineOptions``."""

    scheduler: Scheduler
    tokenizer: Tokenizer
    clock: Clock
    stop_loops: bool = False
    owners: dict[int, ActiveRequest] = field(default_factory=dict)


class ActiveRequest(ABC):
    """A request from its arrival to its end. ``sequences`` includes those that have ended; ``compile_s`` is how many
    seconds the request waited for its grammar. ``open_ended`` as in ``RequestMetrics``."""

    def __init__(self, request: EngineRequest, engine: EngineState, sequences: List[Sequence]) -> None:
        self.request = request
        self.sequences = [*sequences]
        self.compile_s, self.open_ended = 0.0, False
        self._engine = engine
        self._prompt_logprobs: list[Logprobs | None] | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    @abstractmethod
    def finished(self) -> bool: ...

    @abstractmethod
    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:
        """Applies an event of one of its sequences; returns the deltas to send."""

    @abstractmethod
    def completions(self) -> tuple[CompletionOutput, ...]:
        """Its completions so far, without those that ``best_of`` drops."""

    @abstractmethod
    def end(self) -> None:
        """Ends unfinished completions as aborted."""

    @abstractmethod
    def finish_reasons(self) -> tuple[FinishReason, ...]:
        """The finish reasons of the completions that have ended."""

    @abstractmethod
    def token_times(self) -> tuple[tuple[float, ...], ...]:
        """When the tokens of each completion were sampled."""

    def output(self, now: float) -> RequestOutput:
        """The whole output so far."""
        return RequestOutput(
            self.request_id,
            self.request.prompt,
            self.request.token_ids,
            None if self._prompt_logprobs is None else tuple(self._prompt_logprobs),
            self.completions(),
            self.metrics(now),
            self.finished,
        )

    def enter(self) -> None:
        """Queues all its sequences, or none if one is refused. Raises as ``Scheduler.add``."""
        try:
            for sequence in self.sequences:
                self._engine.scheduler.add(sequence, self._engine.clock.now())
                self._engine.owners[sequence.sequence_id] = self
        except TwofoldError:
            self._cancel_all()
            raise

    def abort(self) -> None:
        """Removes its sequences from the scheduler, and ends unfinished completions as aborted."""
        self._cancel_all()
        self.end()

    def _whole_deltas(self) -> list[OutputDelta]:
        """Each completion as one delta."""
        return [
            OutputDelta(self.request_id, c.index, c.text, c.token_ids, c.logprobs, c.finish_reason, c.stop_reason)
            for c in self.completions()
        ]

    def _cancel_all(self) -> None:
        """Removes its sequences from the scheduler; their events are ignored from now on."""
        for sequence in self.sequences:
            self._cancel(sequence)

    def _cancel(self, sequence: Sequence) -> None:
        if self._engine.owners.pop(sequence.sequence_id, None) is not None:
            self._engine.scheduler.end(sequence.sequence_id, self._engine.clock.now())

    def metrics(self, now: float) -> RequestMetrics:
        """Times, work and waits of all its sequences together."""
        times = self.token_times()
        record = SequenceRecord.merged(sequence.record for sequence in self.sequences)
        record.stall(WaitReason.GRAMMAR, self.compile_s, self.request.arrived + self.compile_s)
        record.stall(WaitReason.FETCHING, self.request.fetch_s)
        return RequestMetrics(
            arrival=self.request.arrived,
            first_scheduled=min((s.admitted_at for s in self.sequences if s.admitted_at is not None), default=None),
            first_token=min((each[0] for each in times if each), default=None),
            finished=now,
            token_times=times,
            prompt_tokens=len(self.request.token_ids),
            cached_tokens=self.sequences[0].record.cached if self.sequences else 0,
            request_id=self.request_id,
            finish_reasons=self.finish_reasons(),
            record=record,
            timeline=self.timeline(),
            repeats=self.repeats(),
            open_ended=self.open_ended,
        )

    def timeline(self) -> RequestTimeline | None:
        """Its steps, and those of its tokens; None unless it asks for them."""
        return None

    def repeats(self) -> Repetition | None:
        """The longest repetition in its completions."""
        return None


class Generation(ActiveRequest):
    """Completions that are sampled independently. With ``best_of`` all deltas are sent at the end.

    ``delivered`` has each completion, and ``sequences`` has by index those that the caller does not have whole.
    """

    def __init__(
        self,
        request: EngineRequest,
        engine: EngineState,
        sequences: Mapping[int, Sequence],
        params: SamplingParams,
        delivered: List[DeliveredCompletion],
    ) -> None:
        super().__init__(request, engine, list(sequences.values()))
        self._params = params
        self._chooses = params.answers > params.n
        self._prompt_logprobs = None if params.prompt_logprobs is None else [None]
        self._scored, self._begun = 0, False
        before = request.token_ids[len(request.token_ids) - min(request.answered, MAX_CHARACTER_BYTES) :]
        self._completions: dict[int, SequenceCompletion] = {}
        for index, known in enumerate(delivered):
            completion = SequenceCompletion(
                request.request_id, index, engine.tokenizer, params, before, stop_loops=engine.stop_loops
            )
            completion.restore(known)
            key = sequences[index].sequence_id if index in sequences else -1 - index
            self._completions[key] = completion

    @property
    def finished(self) -> bool:
        return all(completion.finish is not None for completion in self._completions.values())

    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:
        scored = self._score(event.prompt_logprobs)
        if not event.tokens and event.finish is None:
            return [] if scored is None else [OutputDelta(self.request_id, 0, "", (), scored=scored)]
        completion = self._completions[event.sequence_id]
        delta = completion.take(event, now)
        delta = delta if scored is None else replace(delta, scored=scored)
        if not self._begun:
            cached = self.sequences[0].record.cached
            self._begun, delta = True, replace(delta, cached=cached, open_ended=self.open_ended)
        if completion.finish is not None:
            del self._engine.owners[event.sequence_id]
            if event.finish is None:
                self._engine.scheduler.end(event.sequence_id, self._engine.clock.now(), "stop")
        if not self._chooses:
            return [delta]
        return self._whole_deltas() if self.finished else []

    def _score(self, positions: List[PositionLogprobs]) -> ScoredPrompt | None:
        """Adds log-probabilities of the prompt; returns those to send. The first token's is sent with the next ones, or
        with the first token of the completion."""
        known = self._prompt_logprobs
        if known is None:
            return None
        known.extend(readable(position, self._engine.tokenizer) for position in positions)
        start, self._scored = self._scored, len(known)
        sends = self.request.stream and not self._chooses and start < len(known)
        return ScoredPrompt(start, tuple(known[start:])) if sends else None

    def completions(self) -> tuple[CompletionOutput, ...]:
        """All completions, or the n of the highest mean log-probability, best first."""
        completions = list(self._completions.values())
        if not self._chooses:
            return tuple(each.output() for each in completions)
        completions.sort(key=lambda each: -each.mean_logprob)
        return tuple(replace(each.output(), index=index) for index, each in enumerate(completions[: self._params.n]))

    def end(self) -> None:
        for completion in self._completions.values():
            if completion.finish is None:
                completion.abort()

    def token_times(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(each.times) for each in self._completions.values())

    def timeline(self) -> RequestTimeline | None:
        trace = self.sequences[0].trace
        if trace is None:
            return None
        made = self._completions.values()
        return RequestTimeline(
            trace.steps, tuple(tuple(each.steps) for each in made), tuple(each.origins for each in made)
        )

    def repeats(self) -> Repetition | None:
        return Repetition.longest(each.repeats for each in self._completions.values())

    def finish_reasons(self) -> tuple[FinishReason, ...]:
        return tuple(each.finish for each in self._completions.values() if each.finish is not None)


class Embedding(ActiveRequest):
    """The vector of one text. It does not depend on batches or chunks, since sums of rows are exact."""

    def __init__(self, request: EngineRequest, engine: EngineState, sequence: Sequence, params: PoolingParams) -> None:
        super().__init__(request, engine, [sequence])
        self._params = params
        self._vector: list[float] = []
        self._reason: FinishReason | None = None

    @property
    def finished(self) -> bool:
        return self._reason is not None

    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:  # noqa: ARG002 - a vector has no times
        if event.hidden is not None:
            self._gather(list(event.hidden))
        if event.finish is None:
            return []
        self._reason = event.finish
        del self._engine.owners[event.sequence_id]
        return [OutputDelta(self.request_id, 0, "", (), None, event.finish)]

    def completions(self) -> tuple[CompletionOutput, ...]:
        return ()

    def output(self, now: float) -> RequestOutput:
        return replace(super().output(now), embedding=self._result() if self._reason == "stop" else None)

    def end(self) -> None:
        self._reason = self._reason or "abort"

    def finish_reasons(self) -> tuple[FinishReason, ...]:
        return () if self._reason is None else (self._reason,)

    def token_times(self) -> tuple[tuple[float, ...], ...]:
        return ()

    def _gather(self, hidden: list[float]) -> None:
        if self._params.pooling == "last" or not self._vector:
            self._vector = hidden
        else:
            self._vector = [total + value for total, value in zip(self._vector, hidden, strict=True)]

    def _result(self) -> tuple[float, ...]:
        vector = self._vector
        if self._params.pooling == "mean":
            vector = [total / (HIDDEN_SCALE * len(self.request.token_ids)) for total in vector]
        if not self._params.normalize:
            return tuple(vector)
        length = math.sqrt(sum(value * value for value in vector))
        return tuple(value / length for value in vector) if length else tuple(vector)
