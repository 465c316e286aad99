"""The line of statistics, for given times."""

from __future__ import annotations

import pytest

from twofold.cli.chat.phases import PhaseShare, RooflineShares, phase_line
from twofold.core.report import RequestMetrics

SHARES = RooflineShares(PhaseShare(0.7, "arithmetic"), PhaseShare(0.8, "memory"))


def metrics(*times: float, cached: int = 0) -> RequestMetrics:
    return RequestMetrics(0.0, 0.01, times[0] if times else None, 1.0, (times,), 100, cached)


@pytest.mark.parametrize(
    ("given", "shares", "line"),
    [
        (
            metrics(0.06, 0.07, 0.08),
            SHARES,
            "100 prompt tokens: TTFT 60.0 ms, 2,000 tok/s, 70% of the arithmetic limit · "
            "3 output tokens: TPOT 10.0 ms, 100 tok/s, 80% of the memory limit",
        ),
        (
            metrics(0.21, 0.71, cached=40),
            None,
            "100 prompt tokens (40 cached): TTFT 210 ms, 300 tok/s · 2 output tokens: TPOT 500 ms, 2.0 tok/s",
        ),
        (
            metrics(0.06, 0.07, 0.08),
            RooflineShares(PhaseShare(1.004, "arithmetic"), PhaseShare(2.25, "memory")),
            "100 prompt tokens: TTFT 60.0 ms, 2,000 tok/s, 100% of the arithmetic limit · "
            "3 output tokens: TPOT 10.0 ms, 100 tok/s, at the measured memory limit",
        ),
        (metrics(0.06), None, "100 prompt tokens: TTFT 60.0 ms, 2,000 tok/s · 1 output token"),
        (metrics(), None, "100 prompt tokens: stopped before the first token"),
    ],
)
def test_phase_line(given: RequestMetrics, shares: RooflineShares | None, line: str) -> None:
    assert phase_line(given, shares) == line


def test_the_highest_share_counts() -> None:
    assert SHARES.highest == 0.8
    assert RooflineShares(None, None).highest == 0
