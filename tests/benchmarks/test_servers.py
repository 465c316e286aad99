"""What is made of the answers of several servers."""

from __future__ import annotations

import pytest

from benchmarks.http.servers import _ahead, figures
from twofold.bench.load.base import Ask, Outcome
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import RequestFigures
from twofold.bench.record import RecordedResponse, RequestSample

OBJECTIVES = Objectives(ttft=1.0, tpot=0.05)


def served(*times: float, outcome: Outcome = "ok") -> RequestFigures:
    """A request that was due at 0, and whose tokens came at these times."""
    answer = RecordedResponse()
    for moment in times:
        answer.chunk(moment, "a", 1)
    return RequestFigures.of(RequestSample(Ask(0, 0.0, 1, 2), answer, outcome, started_s=0.0))


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (served(0.9, 0.94), 1),
        (served(1.1, 1.14), 0),
        (served(0.9, 0.96), 0),
        (served(0.9, 0.94, outcome="unfinished"), 0),
        (served(0.9), 1),
    ],
)
def test_goodput_is_whole_answers_in_time(one: RequestFigures, met: int) -> None:
    assert figures([one], OBJECTIVES, 10.0)["goodput_requests_s"] == met / 10


def test_figures_without_a_bound_are_none_and_lose() -> None:
    good = figures([served(0.2, 0.21)] * 2, OBJECTIVES, 10.0)
    bad = figures([served(0.2, 0.22), served(outcome="broken")], OBJECTIVES, 10.0)
    assert (good["goodput_requests_s"], bad["goodput_requests_s"]) == (0.2, 0.1)
    assert (bad["ttft_p50_s"], bad["ttft_p99_s"], bad["whole_share"]) == (0.2, None, 0.5)
    measures = ["ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "goodput_requests_s"]
    assert _ahead({"twofold": good, "other": bad}) == {"other": measures}
    assert _ahead({"twofold": bad, "other": good}) == {"other": ["ttft_p50_s"]}


def test_a_server_that_got_no_request_has_no_figures() -> None:
    nothing = figures([], OBJECTIVES, 10.0)
    assert (nothing["requests"], nothing["goodput_requests_s"], nothing["ttft_p50_s"]) == (0, 0.0, None)
