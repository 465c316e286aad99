"""What is made of the replies of several servers."""

from __future__ import annotations

import math

import pytest

from benchmarks.http.load import Reply, Told
from benchmarks.http.servers import FULL, Asked, Objectives, Served, _ahead, _arrivals, _figures

OBJECTIVES = Objectives(ttft_s=1.0, tpot_s=0.05)


def test_arrivals_are_the_same_for_the_same_seed_and_of_the_rate_that_was_asked_for() -> None:
    arrivals = _arrivals(FULL, 20.0, 1)
    assert arrivals == _arrivals(FULL, 20.0, 1)
    assert arrivals != _arrivals(FULL, 20.0, 2)
    assert len(arrivals) == pytest.approx(20 * FULL.seconds, rel=0.2)
    assert [one.due for one in arrivals] == sorted(one.due for one in arrivals)
    assert all(FULL.answer[0] <= one.count <= FULL.answer[1] for one in arrivals)
    assert _arrivals(FULL, 1e-9, 1) == [Asked(0.0, arrivals[0].words, arrivals[0].count, 1)]


def test_ttft_counts_from_when_a_request_was_due() -> None:
    told = Told(status=200, tokens=3, first=2.5, last=2.7)
    served = Served.of(Reply(due=2.0, sent=2.4, ended=2.8), told)
    assert (served.ttft_s, served.whole) == (0.5, True)
    assert served.tpot_s == pytest.approx(0.1)
    assert Served.of(Reply(due=2.0), Told(error="no answer")) == Served(math.inf, None, False)


@pytest.mark.parametrize(
    ("served", "met"),
    [
        (Served(0.9, 0.04, True), True),
        (Served(1.1, 0.04, True), False),
        (Served(0.9, 0.06, True), False),
        (Served(0.9, 0.04, False), False),
        (Served(0.9, None, True), True),
    ],
)
def test_objectives_are_met_by_whole_answers_in_time(served: Served, met: bool) -> None:
    assert OBJECTIVES.met_by(served) is met


def test_figures_without_a_bound_are_none_and_lose() -> None:
    good = _figures([Served(0.2, 0.01, True)] * 2, OBJECTIVES, 10.0)
    bad = _figures([Served(0.2, 0.02, True), Served(math.inf, None, False)], OBJECTIVES, 10.0)
    assert (good["goodput_requests_s"], bad["goodput_requests_s"]) == (0.2, 0.1)
    assert (bad["ttft_p50_s"], bad["ttft_p99_s"], bad["whole_share"]) == (0.2, None, 0.5)
    measures = ["ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "goodput_requests_s"]
    assert _ahead({"twofold": good, "other": bad}) == {"other": measures}
    assert _ahead({"twofold": bad, "other": good}) == {"other": ["ttft_p50_s"]}
