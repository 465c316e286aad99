"""Embeddings: the hidden states of a text after the last norm, as one vector."""

from __future__ import annotations

from math import sqrt

from twofold.core.request import EngineRequest, PoolingParams
from twofold.core.step import HIDDEN_SCALE, FinishReason, TokenEvent
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.request import ActiveRequest, EngineState
from twofold.engine.scheduler.sequence import Sequence


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
