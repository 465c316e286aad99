"""The times of a request that was served, as clients and engines measure them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from twofold.core.report import RequestMetrics
from twofold.observe.served import ServedRequest


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; None where a request has no such time.

    ttft_s   to the first token: given to the connection in a stream, made by the engine otherwise
    tpot_s   for each token after the first one, as the engine made them: the slowest of the request's prompts
    e2e_s    to the last byte
    """

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float

    @classmethod
    def of(cls, served: ServedRequest) -> Self:
        first = served.first_token_s if served.stream or not served.reports else _first_token_s(served.reports)
        tpots = [tpot for report in served.reports if (tpot := tpot_s(report)) is not None]
        return cls(first, max(tpots, default=None), served.duration_s)


def tpot_s(report: RequestMetrics) -> float | None:
    """Seconds of decode for each token after the first one; answers of one prompt are decoded side by side."""
    later = report.output_tokens - report.completions
    return report.decode_s * report.completions / later if later > 0 else None


def _first_token_s(reports: Sequence[RequestMetrics]) -> float | None:
    return min((each.first_token - each.arrival for each in reports if each.first_token is not None), default=None)


def phase_seconds(served: ServedRequest) -> dict[str, float]:
    """Seconds of each phase, all prompts together, where the least that it could have taken is known."""
    took = {
        "prefill": sum(report.prefill_s for report in served.reports),
        "decode": sum(report.decode_s for report in served.reports),
    }
    return {phase: seconds for phase, seconds in took.items() if seconds > 0 and phase in served.limits_s}
