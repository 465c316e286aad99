"""Beam search: the most likely completions of a prompt."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from twofold.core.params import BeamSearchParams
from twofold.core.request import EngineRequest
from twofold.core.step import FinishReason, TokenEvent, TokenLogprob
from twofold.engine.outputs import CompletionOutput, OutputDelta
from twofold.engine.request import ActiveRequest, EngineState
from twofold.engine.scheduler.sequence import Sequence

MakeBeam = Callable[[tuple[int, ...]], Sequence]
"""Makes a new sequence of the request's prompt and the given completion tokens."""


@dataclass(slots=True)
class _Beam:
    sequence: Sequence
    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    candidates: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class _EndedBeam:
    tokens: tuple[int, ...]
    logprob: float
    score: float
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class _Continuation:
    beam: _Beam
    token: int
    logprob: float


class BeamSearch(ActiveRequest):
    """The ``beam_width`` most likely completions of a prompt. Nothing is sent before they are found.

    Every live beam is a sequence whose steps return candidates instead of a sample. When all beams have candidates, the
    best continuations over all beams survive: the first of each beam in its own sequence, others in forks that share
    its blocks. A continuation that ends the text is a completion. Completions are ranked by log-probability /
    length^penalty (Wu et al. 2016, with the plain power of length). The search stops when no live beam can beat the
    worst of ``beam_width`` completions: a sum of log-probabilities only falls.
    """

    def __init__(
        self,
        request: EngineRequest,
        engine: EngineState,
        params: BeamSearchParams,
        make_beam: MakeBeam,
        *,
        longest: int,
    ) -> None:
        """``longest`` is the maximum length of a completion: ``max_tokens``, or the room that the context leaves."""
        first = make_beam(())
        super().__init__(request, engine, [first])
        self._params = params
        self._make_beam = make_beam
        self._longest = longest
        self._ends = frozenset() if params.ignore_eos else frozenset(engine.tokenizer.eos_ids)
        self._ended: list[_EndedBeam] = []
        self._times: list[float] = []
        self._live = {first.sequence_id: _Beam(first)}

    @property
    def finished(self) -> bool:
        return not self._live

    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:
        if event.finish is not None:
            self._give_up(event.finish)
        else:
            self._live[event.sequence_id].candidates = event.candidates
            if any(beam.candidates is None for beam in self._live.values()):
                return []
            self._times.append(now)
            self._advance()
        return self._whole_deltas() if self.finished else []

    def completions(self) -> tuple[CompletionOutput, ...]:
        best = sorted(self._ended, key=lambda ended: -ended.score)[: self._params.beam_width]
        return tuple(self._output(index, ended) for index, ended in enumerate(best))

    def end(self) -> None:
        self._give_up("abort")

    def finish_reasons(self) -> tuple[FinishReason, ...]:
        return tuple(each.finish_reason for each in self.completions() if each.finish_reason is not None)

    def token_times(self) -> tuple[tuple[float, ...], ...]:
        return (tuple(self._times),)

    def _give_up(self, reason: FinishReason) -> None:
        """Ends all live beams as completions."""
        for beam in self._live.values():
            self._end_beam(beam.tokens, beam.logprob, reason)
            self._cancel(beam.sequence)
        self._live = {}

    def _advance(self) -> None:
        """One round: the best continuations survive, and those that end the text become completions."""
        width = self._params.beam_width
        survivors: list[_Continuation] = []
        for continuation in self._ranked()[: 2 * width]:
            tokens = (*continuation.beam.tokens, continuation.token)
            if continuation.token in self._ends:
                self._end_beam(tokens, continuation.logprob, "stop")
            elif len(tokens) == self._longest:
                self._end_beam(tokens, continuation.logprob, "length")
            elif len(survivors) < width:
                survivors.append(continuation)
        self._ended.sort(key=lambda ended: -ended.score)
        del self._ended[width:]
        self._grow([] if self._settled(survivors) else survivors)

    def _ranked(self) -> list[_Continuation]:
        everything = [
            _Continuation(beam, candidate.token, beam.logprob + candidate.logprob)
            for beam in self._live.values()
            for candidate in beam.candidates or ()
        ]
        return sorted(everything, key=lambda c: -c.logprob)

    def _settled(self, survivors: list[_Continuation]) -> bool:
        """Whether there are enough completions, and no survivor can beat the worst."""
        if len(self._ended) < self._params.beam_width or not survivors:
            return not survivors
        best = survivors[0]
        lengths = (len(best.beam.tokens) + 2, self._longest)
        return max(self._score(best.logprob, length) for length in lengths) <= self._ended[-1].score

    def _grow(self, survivors: list[_Continuation]) -> None:
        """Cancels the other beams first, so that forks find free slots; then forks and extends the survivors."""
        surviving = {continuation.beam.sequence.sequence_id for continuation in survivors}
        for beam in self._live.values():
            if beam.sequence.sequence_id not in surviving:
                self._cancel(beam.sequence)
        live: dict[int, _Beam] = {}
        kept: dict[int, int] = {}
        for continuation in survivors:
            parent, tokens = continuation.beam, (*continuation.beam.tokens, continuation.token)
            sequence = parent.sequence
            if sequence.sequence_id in kept:
                sequence = self._make_beam(tokens)
                self._engine.scheduler.fork(parent.sequence.sequence_id, sequence, self._engine.clock.now())
                self._engine.owners[sequence.sequence_id] = self
                self.sequences.append(sequence)
            else:
                kept[sequence.sequence_id] = continuation.token
            live[sequence.sequence_id] = _Beam(sequence, tokens, continuation.logprob)
        for sequence_id, token in kept.items():
            live[sequence_id].sequence.extend(token)
        self._live = live

    def _end_beam(self, tokens: tuple[int, ...], logprob: float, finish: FinishReason) -> None:
        self._ended.append(_EndedBeam(tokens, logprob, self._score(logprob, len(tokens)), finish))

    def _score(self, logprob: float, length: int) -> float:
        return logprob / math.pow(max(length, 1), self._params.length_penalty)

    def _output(self, index: int, ended: _EndedBeam) -> CompletionOutput:
        text = self._engine.tokenizer.decode(ended.tokens, skip_special_tokens=True, continuation=True)
        return CompletionOutput(index, text, ended.tokens, None, ended.logprob, ended.finish, None)
