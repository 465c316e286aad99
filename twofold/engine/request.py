"""A request while it is under way: what came in, the sequences that answer it, and what leaves.

Request      what the engine knows of any request
Generation   n answers, drawn; or the n best of more          (this module)
BeamSearch   the most likely answers                          (beams.py)
Embedding    one vector                                       (embedding.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as List
from dataclasses import dataclass, replace

from twofold.core.errors import TwofoldError
from twofold.core.params import SamplingParams
from twofold.core.record import SequenceRecord, Stall
from twofold.core.report import RequestReport
from twofold.core.request import RequestOptions
from twofold.core.step import FinishReason, TokenEvent
from twofold.engine.answer import SequenceCompletion, readable
from twofold.engine.outputs import CompletionOutput, Logprobs, OutputDelta, RequestMetrics, RequestOutput
from twofold.engine.roster import Roster
from twofold.engine.scheduler.sequence import Sequence
from twofold.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Given:
    """What came in. ``arrival`` is on the engine's clock; ``grammar_s`` were spent on compiling a grammar before."""

    request_id: str
    prompt: str | None
    token_ids: tuple[int, ...]
    arrival: float
    options: RequestOptions
    grammar_s: float = 0.0


class EngineRequest(ABC):
    """One request. ``sequences`` are all that ever worked for it."""

    def __init__(self, given: Given, roster: Roster) -> None:
        self.given = given
        self.sequences: list[Sequence] = []
        self._roster = roster

    @property
    @abstractmethod
    def finished(self) -> bool: ...

    @abstractmethod
    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:
        """What an event of one of its sequences means to the caller."""

    @abstractmethod
    def output(self, now: float) -> RequestOutput:
        """The whole, as far as it has come."""

    @abstractmethod
    def end(self) -> None:
        """Closes what is open, as aborted."""

    @abstractmethod
    def finish_reasons(self) -> tuple[FinishReason, ...]:
        """How each answer ended, those that did."""

    @abstractmethod
    def token_times(self) -> tuple[tuple[float, ...], ...]:
        """When the tokens of each answer came."""

    def abort(self) -> None:
        """Takes its sequences from the scheduler and closes what is open."""
        for sequence in self.sequences:
            self._roster.cancel(sequence)
        self.end()

    def metrics(self, now: float) -> RequestMetrics:
        admitted = [s.admitted_at for s in self.sequences if s.admitted_at is not None]
        times = self.token_times()
        return RequestMetrics(
            arrival=self.given.arrival,
            first_scheduled=min(admitted, default=None),
            first_token=min((answer[0] for answer in times if answer), default=None),
            finished=now,
            token_times=times,
            prompt_tokens=len(self.given.token_ids),
            cached_tokens=self.sequences[0].record.cached if self.sequences else 0,
        )

    def report(self, now: float) -> RequestReport:
        """What happened to it, all its sequences together."""
        metrics = self.metrics(now)
        times = [answer for answer in metrics.token_times if answer]
        record = SequenceRecord.merged(sequence.record for sequence in self.sequences)
        record.stall(Stall.GRAMMAR, self.given.grammar_s, self.given.arrival + self.given.grammar_s)
        return RequestReport(
            request_id=self.given.request_id,
            arrival=self.given.arrival,
            admitted=metrics.first_scheduled,
            first_token=metrics.first_token,
            last_token=max((answer[-1] for answer in times), default=None),
            finished=now,
            prompt_tokens=metrics.prompt_tokens,
            cached_tokens=metrics.cached_tokens,
            output_tokens=metrics.output_tokens,
            finish_reasons=self.finish_reasons(),
            record=record,
        )

    def _add(self, sequence: Sequence) -> None:
        self._roster.add(sequence, self)
        self.sequences.append(sequence)


class Generation(EngineRequest):
    """Answers that are drawn independently. With ``best_of`` nothing leaves before all are there."""

    def __init__(
        self, given: Given, roster: Roster, params: SamplingParams, tokenizer: Tokenizer, sequences: List[Sequence]
    ) -> None:
        super().__init__(given, roster)
        self._params = params
        self._tokenizer = tokenizer
        self._chooses = params.answers > params.n
        self._answers: dict[int, SequenceCompletion] = {}
        self._prompt_logprobs: list[Logprobs | None] | None = None if params.prompt_logprobs is None else [None]
        self._add_all(sequences)
        for index, sequence in enumerate(sequences):
            self._answers[sequence.sequence_id] = SequenceCompletion(
                given.request_id, index, sequence, tokenizer, params
            )

    @property
    def finished(self) -> bool:
        return all(answer.finished for answer in self._answers.values())

    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.extend(readable(p, self._tokenizer) for p in event.prompt_logprobs)
        if not event.tokens and event.finish is None:
            return []
        answer = self._answers[event.sequence_id]
        delta = answer.take(event, now)
        if answer.finished:
            (self._roster.stop if event.finish is None else self._roster.forget)(answer.sequence)
        if not self._chooses:
            return [delta]
        return [_whole_delta(self.given.request_id, kept) for kept in self._kept()] if self.finished else []

    def output(self, now: float) -> RequestOutput:
        return RequestOutput(
            self.given.request_id,
            self.given.prompt,
            self.given.token_ids,
            None if self._prompt_logprobs is None else tuple(self._prompt_logprobs),
            tuple(self._kept()),
            self.metrics(now),
            self.finished,
            self.report(now),
        )

    def end(self) -> None:
        for answer in self._answers.values():
            if not answer.finished:
                answer.abort()

    def token_times(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(answer.times) for answer in self._answers.values())

    def finish_reasons(self) -> tuple[FinishReason, ...]:
        return tuple(answer.finish for answer in self._answers.values() if answer.finish is not None)

    def _add_all(self, sequences: List[Sequence]) -> None:
        """Queues all of them or none."""
        try:
            for sequence in sequences:
                self._add(sequence)
        except TwofoldError:
            for sequence in self.sequences:
                self._roster.cancel(sequence)
            raise

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
