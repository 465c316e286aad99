"""Times of a served request, as clients and engines measure them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from twofold.observe.served import ServedRequest


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; None where a request has no such time.

    ttft_s   to the first token: given to the connection for a stream, made by the engine otherwise
    tpot_s   per token after the first, as the engine made them; the longest of the request's prompts
    e2e_s    to the last byte
    """

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float

    @classmethod
    def of(cls, served: ServedRequest) -> Self:
        first = served.first_token_s
        if not served.stream and served.reports:
            first = min((ttft for report in served.reports if (ttft := report.ttft_s) is not None), default=None)
        return cls(first, max(tpots(served), default=None), served.duration_s)


def tpots(served: ServedRequest) -> list[float]:
    """The TPOT of each prompt that has one."""
    return [tpot for report in served.reports if (tpot := report.tpot_s) is not None]


def phase_seconds(served: ServedRequest) -> dict[str, float]:
    """Seconds of each phase, over all prompts, where the least possible time is known."""
    took = {
        "prefill": sum(report.prefill_s for report in served.reports),
        "decode": sum(report.decode_s for report in served.reports),
    }
    return {phase: seconds for phase, seconds in took.items() if seconds > 0 and phase in served.limits_s}
