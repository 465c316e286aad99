"""Embeddings: the hidden states of a text after the last norm, as one vector."""

from __future__ import annotations

from math import sqrt
from typing import get_args

from twofold.core.errors import ParameterError, nearest
from twofold.core.step import HIDDEN_SCALE, FinishReason, Pooling, TokenEvent
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.request import EngineRequest, Given
from twofold.engine.roster import Roster
from twofold.engine.scheduler.sequence import Sequence


def check_pooling(pooling: object) -> None:
    """Raises ParameterError for a pooling that is none."""
    if pooling not in get_args(Pooling):
        close = nearest(str(pooling), get_args(Pooling))
        raise ParameterError(
            f"pooling must be mean or last, not {pooling!r:.40}.",
            param="pooling",
            hint=f"Did you mean {close!r}?" if close else None,
        )


class Embedding(EngineRequest):
    """One text's vector: the mean of its rows or the last one, of length 1 if ``normalize``.

    It is the same in any batch and any chunks: sums of rows are exact.
    """

    def __init__(self, given: Given, roster: Roster, sequence: Sequence, pooling: Pooling, *, normalize: bool) -> None:
        super().__init__(given, roster)
        self._pooling = pooling
        self._normalize = normalize
        self._vector: list[float] = []
        self._reason: FinishReason | None = None
        self._add(sequence)

    @property
    def finished(self) -> bool:
        return self._reason is not None

    def take(self, event: TokenEvent, now: float) -> list[OutputDelta]:  # noqa: ARG002 - a vector has no times
        if event.hidden is not None:
            self._gather(list(event.hidden))
        if event.finish is None:
            return []
        self._reason = event.finish
        self._roster.forget(self.sequences[0])
        return [OutputDelta(self.given.request_id, 0, "", (), None, event.finish)]

    def output(self, now: float) -> RequestOutput:
        return RequestOutput(
            self.given.request_id,
            self.given.prompt,
            self.given.token_ids,
            None,
            (),
            self.metrics(now),
            self.finished,
            self.report(now),
            embedding=self._result() if self._reason == "stop" else None,
        )

    def end(self) -> None:
        self._reason = self._reason or "abort"

    def finish_reasons(self) -> tuple[FinishReason, ...]:
        return () if self._reason is None else (self._reason,)

    def token_times(self) -> tuple[tuple[float, ...], ...]:
        return ()

    def _gather(self, hidden: list[float]) -> None:
        if self._pooling == "last" or not self._vector:
            self._vector = hidden
        else:
            self._vector = [total + value for total, value in zip(self._vector, hidden, strict=True)]

    def _result(self) -> tuple[float, ...]:
        vector = self._vector
        if self._pooling == "mean":
            vector = [total / (HIDDEN_SCALE * len(self.given.token_ids)) for total in vector]
        if not self._normalize:
            return tuple(vector)
        length = sqrt(sum(value * value for value in vector))
        return tuple(value / length for value in vector) if length else tuple(vector)
