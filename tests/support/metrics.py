"""Metrics of requests that a test makes up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from twofold.core.record import SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.step import FinishReason


def request_metrics(
    request_id: str,
    arrival: float,
    admitted: float | None,
    first_token: float | None,
    last_token: float | None,
    finished: float,
    prompt_tokens: int,
    cached_tokens: int,
    output_tokens: int,
    finish_reasons: tuple[FinishReason, ...],
    record: SequenceRecord,
) -> RequestMetrics:
    """Of a request with one completion, whose tokens came at ``first_token`` and all others at ``last_token``."""
    return RequestMetrics(
        arrival,
        admitted,
        first_token,
        finished,
        output_times(output_tokens, first_token, last_token),
        prompt_tokens,
        cached_tokens,
        request_id,
        finish_reasons,
        record,
    )


def output_times(count: int, first: float | None, last: float | None) -> tuple[tuple[float, ...], ...]:
    """``token_times`` of one completion."""
    return (cast(tuple[float, ...], _Times(first, last, count)),) if count else ()


@dataclass(frozen=True)
class _Times:
    """As much of a tuple of times as metrics read; it may have billions."""

    first: float | None
    last: float | None
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float | None:
        return self.first if index == 0 else self.last
