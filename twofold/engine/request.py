"""A request while the engine has it: its sequences, and the outputs they give.

ActiveRequest   what requests of all kinds have in common
Generation      n sampled completions, or the n best of more  (this module)
BeamSearch      the most likely completions                   (beams.py)
Embedding       one vector                                    (embedding.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from math import sqrt

from twofold.core.clock import Clock
from twofold.core.errors import TwofoldError
from twofold.core.params import SamplingParams
from twofold.core.record import SequenceRecord, WaitReason
from twofold.core.report import RequestMetrics
from twofold.core.request import EngineRequest, PoolingParams
from twofold.core.step import HIDDEN_SCALE, FinishReason, TokenEvent
from twofold.engine.answer import SequenceCompletion, readable
from twofold.engine.outputs import CompletionOutput, Logprobs, OutputDelta, RequestOutput
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence
from twofold.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the requests of an engine share. ``owners`` has the request of each sequence whose events are wanted."""

    scheduler: Scheduler
    tokenizer: Tokenizer
    clock: Clock
    owners: dict[int, ActiveRequest] = field(default_factory=dict)


class ActiveRequest(ABC):
    """A request from its arrival to its end. ``sequences`` are all that ever worked for it, and ``compile_s`` is how
    long it waited for its grammar."""

    def __init__(self, request: EngineRequest, engine: EngineState, sequences: List[Sequence]) -> None:
        self.request = request
        self.sequences = [*sequences]
        self.compile_s = 0.0
        self._engine = engine

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    @abstractmethod
    def finished(self) -> bool: ...

    @abstractmethod
    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:
        """The deltas that an event of one of its sequences gives."""

    @abstractmethod
    def output(self, now: float) -> RequestOutput:
        """The whole output so far."""

    @abstractmethod
    def end(self) -> None:
        """Ends completions that are not finished, as aborted."""

    @abstractmethod
    def finish_reasons(self) -> tuple[FinishReason, ...]:
        """How the completions that have ended did so."""

    @abstractmethod
    def token_times(self) -> tuple[tuple[float, ...], ...]:
        """When the tokens of each completion were sampled."""

    def enter(self) -> None:
        """Queues its sequences: all of them, or none where one is refused. Raises what ``Scheduler.add`` raises."""
        try:
            for sequence in self.sequences:
                self._engine.scheduler.add(sequence, self._engine.clock.now())
                self._engine.owners[sequence.sequence_id] = self
        except TwofoldError:
            self.cancel_all()
            raise

    def abort(self) -> None:
        """Removes its sequences from the scheduler and ends what is not finished."""
        self.cancel_all()
        self.end()

    def cancel_all(self) -> None:
        """Removes its sequences from the scheduler; their events are ignored from now on."""
        for sequence in self.sequences:
            self._cancel(sequence)

    def _cancel(self, sequence: Sequence) -> None:
        if self._engine.owners.pop(sequence.sequence_id, None) is not None:
            self._engine.scheduler.cancel(sequence.sequence_id, self._engine.clock.now())

    def metrics(self, now: float) -> RequestMetrics:
        """Times, work and waits of all its sequences together."""
        times = self.token_times()
        record = SequenceRecord.merged(sequence.record for sequence in self.sequences)
        record.stall(WaitReason.GRAMMAR, self.compile_s, self.request.arrived + self.compile_s)
        return RequestMetrics(
            arrival=self.request.arrived,
            first_scheduled=min((s.admitted_at for s in self.sequences if s.admitted_at is not None), default=None),
            first_token=min((answer[0] for answer in times if answer), default=None),
            finished=now,
            token_times=times,
            prompt_tokens=len(self.request.token_ids),
            cached_tokens=self.sequences[0].record.cached if self.sequences else 0,
            request_id=self.request_id,
            finish_reasons=self.finish_reasons(),
            record=record,
        )


class Generation(ActiveRequest):
    """Completions that are sampled independently. With ``best_of`` all deltas are sent at the end."""

    def __init__(
        self, request: EngineRequest, engine: EngineState, sequences: List[Sequence], params: SamplingParams
    ) -> None:
        super().__init__(request, engine, sequences)
        self._params = params
        self._chooses = params.answers > params.n
        self._prompt_logprobs: list[Logprobs | None] | None = None if params.prompt_logprobs is None else [None]
        self._answers = {
            sequence.sequence_id: SequenceCompletion(request.request_id, index, sequence, engine.tokenizer, params)
            for index, sequence in enumerate(sequences)
        }

    @property
    def finished(self) -> bool:
        return all(answer.finished for answer in self._answers.values())

    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.extend(readable(p, self._engine.tokenizer) for p in event.prompt_logprobs)
        if not event.tokens and event.finish is None:
            return []
        answer = self._answers[event.sequence_id]
        delta = answer.take(event, now)
        if answer.finished:
            del self._engine.owners[event.sequence_id]
            if event.finish is None:
                self._engine.scheduler.stop(event.sequence_id, self._engine.clock.now())
        if not self._chooses:
            return [delta]
        return [_whole_delta(self.request_id, kept) for kept in self._kept()] if self.finished else []

    def output(self, now: float) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self.request.prompt,
            self.request.token_ids,
            None if self._prompt_logprobs is None else tuple(self._prompt_logprobs),
            tuple(self._kept()),
            self.metrics(now),
            self.finished,
        )

    def end(self) -> None:
        for answer in self._answers.values():
            if not answer.finished:
                answer.abort()

    def token_times(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(answer.times) for answer in self._answers.values())

    def finish_reasons(self) -> tuple[FinishReason, ...]:
        return tuple(answer.finish for answer in self._answers.values() if answer.finish is not None)

    def _kept(self) -> list[CompletionOutput]:
        """All answers, or the n of the highest mean log-probability, best first."""
        answers = list(self._answers.values())
        if not self._chooses:
            return [answer.output() for answer in answers]
        answers.sort(key=lambda answer: -answer.mean_logprob)
        return [replace(answer.output(), index=index) for index, answer in enumerate(answers[: self._params.n])]


def _whole_delta(request_id: str, answer: CompletionOutput) -> OutputDelta:
    return OutputDelta(
        request_id,
        answer.index,
        answer.text,
        answer.token_ids,
        answer.logprobs,
        answer.finish_reason,
        answer.stop_reason,
    )


class Embedding(ActiveRequest):
    """One text's vector.

    It is the same in any batch and any chunks: sums of rows are exact.
    """

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

    def output(self, now: float) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self.request.prompt,
            self.request.token_ids,
            None,
            (),
            self.metrics(now),
            self.finished,
            embedding=self._result() if self._reason == "stop" else None,
        )

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
        length = sqrt(sum(value * value for value in vector))
        return tuple(value / length for value in vector) if length else tuple(vector)
